"""Canonical JSON (RFC 8785, JCS): one byte string per value, so that hashes can be compared.

Accepted: null, booleans, strings, integers up to 2^53 in size, finite floats, lists and
objects with string keys. Amounts of the ledger are decimal strings, never numbers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from service.core.errors import InvalidInput

_MAX_INTEGER: Final = 2**53


def canonical(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value.

    Raises:
        InvalidInput: NaN, an infinity, an integer above 2^53, or no JSON value at all.

    Source: RFC 8785, section 3.2.
    """
    try:
        return _text(value).encode()
    except UnicodeEncodeError as error:
        raise _refused("half a surrogate pair") from error


def _text(value: Any) -> str:
    match value:
        case None | bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            if abs(value) > _MAX_INTEGER:
                raise _refused("an integer above 2^53")
            return str(value)
        case float():
            return number(value)
        case Mapping():
            items = cast("Mapping[str, Any]", value)
            # Names are sorted by their UTF-16 code units (section 3.2.3).
            names = sorted(items, key=lambda name: name.encode("utf-16-be"))
            return "{" + ",".join(f"{_text(n)}:{_text(items[n])}" for n in names) + "}"
        case Sequence():
            return "[" + ",".join(_text(v) for v in cast("Sequence[Any]", value)) + "]"
        case _:
            raise _refused(type(value).__name__)


def number(value: float) -> str:
    """A finite float as ECMAScript prints it: the shortest digits that read back equal.

    Source: RFC 8785, section 3.2.2.3; ECMA-262, Number::toString.
    """
    if not math.isfinite(value):
        raise _refused("a number that is not finite")
    if value == 0:
        return "0"  # also for -0.0
    sign, text = ("-", repr(-value)) if value < 0 else ("", repr(value))
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    # value = 0.digits * 10**point
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def _refused(what: str) -> InvalidInput:
    return InvalidInput(f"Canonical JSON has no form for {what}.", pointer="", code="NOT_CANONICAL")
