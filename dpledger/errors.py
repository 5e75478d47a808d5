"""What can go wrong on the client's side.

    ClientError
    ├── ApiError       the service answered with a problem (RFC 9457)
    └── Unreachable    no answer, after every safe retry

The ``code`` of an :class:`ApiError` is the stable code of the service's own error tree
(``service/core/errors.py``): branch on it, never on the text.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Members that every problem has; whatever else one has is about the case at hand.
_COMMON: Final = frozenset(
    ("type", "title", "status", "detail", "instance", "code", "request_id", "retryable", "errors")
)


class ClientError(Exception):
    """The request did not succeed."""


class Unreachable(ClientError):
    """The service gave no answer. A changing request may or may not have been carried out."""


class ApiError(ClientError):
    """The service refused the request."""

    def __init__(self, problem: Mapping[str, Any], *, status: int) -> None:
        """Read a problem document.

        Args:
            problem: The JSON body; members that are missing get defaults.
            status: The HTTP status of the answer.
        """
        self.status = status
        self.code = str(problem.get("code", "HTTP_ERROR"))
        self.detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
        self.errors: Sequence[Mapping[str, Any]] = problem.get("errors") or ()
        self.request_id = str(problem.get("request_id", ""))
        self.retryable = problem.get("retryable") is True
        self.fields: Mapping[str, Any] = problem
        super().__init__(f"{self.code}: {self.detail}")

    @property
    def extra(self) -> dict[str, Any]:
        """What helps beyond the text, such as ``available``, ``shortfall`` or ``suggestions``."""
        known = {name: value for name, value in self.fields.items() if name not in _COMMON}
        return {name: value for name, value in known.items() if value not in (None, [], {})}
