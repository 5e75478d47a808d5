"""The error tree: every expected failure of dpledger is one of these.

    DomainError                         code, message, fields shown to the caller
    ├── InvalidInput                    readable but invalid; names the field      422
    │   └── NotCertified                no certified answer within the limits      422
    ├── NotFound                        unknown, or somebody else's                404
    ├── Forbidden                       the key lacks a scope                      403
    ├── Unauthenticated                 no key, unknown key, expired key           401
    ├── Conflict                        the state of a resource forbids it         409
    │   └── BudgetExceeded              a reservation would pass a cap             409
    ├── PreconditionFailed              If-Match names another version             412
    ├── PreconditionRequired            If-Match is missing                        428
    └── Unavailable                     a part is away; try again                  503

The HTTP status lives in ``service/api/problems.py`` alone. A bug is not a DomainError:
it stays an ``AssertionError`` (or whatever it is) and becomes a 500 without inner text.
"""

from collections.abc import Mapping
from typing import Any


class DomainError(Exception):
    """An expected failure with a stable ``code`` that clients may branch on."""

    code = "DOMAIN_ERROR"
    retryable = False

    def __init__(
        self, message: str, *, code: str | None = None, fields: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.fields: dict[str, Any] = dict(fields or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel from the processes that calculate: rebuilt without their ``__init__``."""
        return _rebuilt, (type(self), self.message), self.__dict__


class InvalidInput(DomainError):
    """A value that can be read but not accepted. ``pointer`` is an RFC 6901 JSON pointer."""

    code = "OUT_OF_RANGE"

    def __init__(self, message: str, *, pointer: str, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.pointer = pointer


class NotCertified(InvalidInput):
    """No certified answer exists within the limits; never replaced by a guess."""

    code = "NOT_CERTIFIED"

    def __init__(self, message: str, *, pointer: str = "", code: str | None = None) -> None:
        super().__init__(message, pointer=pointer, code=code)


class NotFound(DomainError):
    """The object does not exist, or belongs to another tenant: the two look the same."""

    code = "NOT_FOUND"


class Forbidden(DomainError):
    """The key is good but lacks ``required_scope``."""

    code = "MISSING_SCOPE"


class Unauthenticated(DomainError):
    """No usable API key came with the request."""

    code = "UNAUTHENTICATED"


class Conflict(DomainError):
    """The present state of a resource forbids the request."""

    code = "CONFLICT"


class BudgetExceeded(Conflict):
    """A reservation would pass the cap of an account; nothing was changed."""

    code = "PRIVACY_BUDGET_EXCEEDED"


class PreconditionFailed(DomainError):
    """``If-Match`` names a version that is no longer the current one."""

    code = "PRECONDITION_FAILED"


class PreconditionRequired(DomainError):
    """The change needs ``If-Match``."""

    code = "PRECONDITION_REQUIRED"


class Unavailable(DomainError):
    """A part that the request needs is away for the moment."""

    code = "UNAVAILABLE"
    retryable = True


def _rebuilt(kind: type[DomainError], message: str) -> DomainError:
    return kind.__new__(kind, message)
