"""Amounts: whole units of 10⁻⁹, one per dimension of an account, and their arithmetic.

A dimension is a Rényi order (composition "renyi"), ρ ("zcdp") or ε ("pure"). ``None`` is a
dead dimension: its charge overflowed, so it can never again show that the cap holds. Dead is
for ever: nothing is subtracted from what has no size.
"""

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Final

UNIT: Final = 10**9  # units per 1 of RDP, ρ or ε
MAX_AMOUNT: Final = 2**63 - 1  # amounts are int64 wherever they are stored

Amounts = tuple[int | None, ...]


def ceiling(value: Fraction) -> int | None:
    """``value`` in units, rounded up; None if it does not fit an int64."""
    units = -(-value.numerator * UNIT // value.denominator)
    return units if units <= MAX_AMOUNT else None


def add(left: Amounts, right: Amounts) -> Amounts:
    """The sum per dimension; dead where a term is dead or the sum overflows."""
    return tuple(_add(a, b) for a, b in zip(left, right, strict=True))


def subtract(left: Amounts, right: Amounts) -> Amounts:
    """``left − right`` per dimension; dead where a term is dead. Never negative (asserted)."""
    return tuple(_subtract(a, b) for a, b in zip(left, right, strict=True))


def largest(left: Amounts, right: Amounts) -> Amounts:
    """The larger of both per dimension; dead is larger than any number."""
    return tuple(_largest(a, b) for a, b in zip(left, right, strict=True))


def largest_sum(blocks: Iterable[Amounts], *, touched: int) -> Amounts:
    """What a parent pays: per dimension, the largest sum over ``touched`` blocks (R14).

    Args:
        blocks: the posted amounts of each block, at least one.
        touched: the number of blocks that one privacy unit may lie in, at least 1.
    """
    rows = tuple(blocks)
    assert rows, "a parent has at least one block"
    assert touched >= 1, touched
    return tuple(_largest_sum(column, touched) for column in zip(*rows, strict=True))


def nothing_of(amounts: Amounts) -> Amounts:
    """Zero in every dimension of ``amounts``."""
    return (0,) * len(amounts)


def to_decimal(units: int) -> Decimal:
    """``units`` as an exact decimal number."""
    return Decimal(units).scaleb(-9)


def _add(a: int | None, b: int | None) -> int | None:
    if a is None or b is None or a + b > MAX_AMOUNT:
        return None
    return a + b


def _subtract(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return None
    assert a >= b, (a, b)
    return a - b


def _largest(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _largest_sum(column: tuple[int | None, ...], touched: int) -> int | None:
    live = sorted((amount for amount in column if amount is not None), reverse=True)
    if len(live) < len(column):
        return None
    total = sum(live[:touched])
    return total if total <= MAX_AMOUNT else None
