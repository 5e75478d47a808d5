"""Errors of the wire models say where: each error's ``loc`` is the path in the JSON itself.

Beside pydantic's own error types there are three of ours, which the API maps to codes:
``inconsistent`` (fields that contradict each other), ``out_of_range`` (a limit on several
fields together) and ``missing`` (a field that others make necessary).
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Kind = Literal["inconsistent", "out_of_range", "missing"]


def refusal(kind: Kind, *path: str | int, reason: str, value: object = None) -> ValidationError:
    """A validation error at ``path`` below the model whose validator raises it.

    Args:
        kind: what is wrong; the error's type.
        *path: the names and indices from the model to the field at fault.
        reason: one plain sentence.
        value: the input at fault, where showing it helps.
    """
    detail = InitErrorDetails(type=_typed(kind, reason), loc=path, input=value)
    return ValidationError.from_exception_data("refused", [detail])


def _without_tags(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Validate a tagged union, and leave its tags out of the paths of the errors.

    Pydantic puts the chosen tag into ``loc``; a JSON pointer made of it would point nowhere.
    """
    try:
        return handler(value)
    except ValidationError as error:
        details = [_without_tag(e) for e in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(error.title, details) from error


WITHOUT_TAGS: Final = WrapValidator(_without_tags)


def _without_tag(error: ErrorDetails) -> InitErrorDetails:
    kind, loc, context = error["type"], error["loc"][1:], error.get("ctx", {})
    if kind == "union_tag_not_found":
        return InitErrorDetails(
            type="missing", loc=(_discriminator(context),), input=error["input"]
        )
    if kind == "union_tag_invalid":
        return InitErrorDetails(
            type="literal_error",
            loc=(_discriminator(context),),
            input=context["tag"],
            ctx={"expected": context["expected_tags"]},
        )
    if "reason" in context:
        return InitErrorDetails(type=_typed(kind, context["reason"]), loc=loc, input=error["input"])
    return InitErrorDetails(type=kind, loc=loc, input=error["input"], ctx=context)


def _discriminator(context: dict[str, Any]) -> str:
    return str(context["discriminator"]).strip("'")


def _typed(kind: str, reason: str) -> PydanticCustomError:
    # The template is a constant: a reason may contain braces.
    context = {"reason": reason}
    match kind:
        case "inconsistent":
            return PydanticCustomError("inconsistent", "{reason}", context)
        case "missing":
            return PydanticCustomError("missing", "{reason}", context)
        case _:
            return PydanticCustomError("out_of_range", "{reason}", context)


def joined(base: str, path: Sequence[str | int]) -> str:
    """The JSON pointer of ``path`` below the pointer ``base`` (RFC 6901)."""
    return base + "".join(f"/{str(p).replace('~', '~0').replace('/', '~1')}" for p in path)
