"""The terms of an account: what it promises, fixed at its creation and for ever (R7, R9).

Three ways to compose, one promise (ε, δ):

- ``renyi``: one dimension per order α of Λ; the invariant is that *some* order is within its
  cap B(α). The weights pay for letting outputs decide which order that will be.
- ``zcdp``: one dimension, ρ. Gaussian noise and zCDP statements only.
- ``pure``: one dimension, ε. Pure mechanisms only; δ plays no part.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_DOWN, Decimal
from fractions import Fraction
from typing import Final, Literal

from service.core.accounting.rdp import conversion, rdp
from service.core.errors import InvalidInput
from service.core.events import Event, Neighboring, for_unit
from service.core.ledger.amounts import UNIT, Amounts

Composition = Literal["renyi", "zcdp", "pure"]

MAX_EPSILON: Final = Decimal(1_000_000)
MAX_ORDERS: Final = 64
MAX_ORDER: Final = Decimal(10_000)
LEAST_DELTA: Final = Decimal("1e-30")
DEFAULT_ORDERS: Final = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0)
PLANNED_WEIGHTS: Final = tuple(map(Decimal, ("0.9", "0.05", "0.03", "0.02")))
DIGITS: Final = Decimal("1e-6")  # ε is shown with six decimals, rounded against the spender


_THEOREMS: Final = {
    "renyi": "Rényi filter on a weighted grid of orders, fully adaptive: some order stays within "
    "its cap (Feldman & Zrnic 2021; Lécuyer 2021; union over orders by weights)",
    "zcdp": "zCDP filter, fully adaptive: the sum of ρ stays within one cap "
    "(Whitehouse, Ramdas, Rogers & Wu 2023)",
    "pure": "basic composition of pure differential privacy, fully adaptive "
    "(Rogers, Roth, Ullman & Vadhan 2016)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountTerms:
    """What an account promises and how it adds up.

    ``records_per_unit`` is the most records that one privacy unit holds; events describe what
    one record contributes, and are priced for the whole unit.

    ``orders`` and ``weights`` are empty unless ``composition`` is "renyi"; then they have
    equal length, each order is above 1, the orders rise, and the weights sum to 1.
    """

    epsilon: Decimal
    delta: Decimal
    neighboring: Neighboring
    privacy_unit: str
    composition: Composition = "renyi"
    orders: tuple[float, ...] = ()
    weights: tuple[Decimal, ...] = ()
    records_per_unit: int = 1

    def __post_init__(self) -> None:
        if not (self.epsilon.is_finite() and 0 < self.epsilon <= MAX_EPSILON):
            raise InvalidInput(f"epsilon lies in (0, {MAX_EPSILON}].", pointer="/budget/epsilon")
        self._check_delta()
        if not self.privacy_unit:
            raise InvalidInput("privacy_unit names what is protected.", pointer="/privacy_unit")
        if self.composition == "renyi":
            self._check_orders()
            self._check_weights()
        elif self.orders or self.weights:
            raise InvalidInput(
                "orders and weights belong to the composition renyi.",
                pointer="/budget/orders",
                code="INCONSISTENT",
            )

    @property
    def theorem(self) -> str:
        """The statement that the account's promise rests on, for people."""
        return _THEOREMS[self.composition]

    @property
    def dimensions(self) -> int:
        """The number of amounts that the account adds up."""
        return len(self.orders) if self.composition == "renyi" else 1

    def _check_delta(self) -> None:
        pure = self.composition == "pure"
        bottom = Decimal(0) if pure else LEAST_DELTA
        if not (self.delta.is_finite() and bottom <= self.delta < 1):
            raise InvalidInput(
                f"delta lies in [{bottom}, 1) for composition {self.composition}.",
                pointer="/budget/delta",
            )

    def _check_orders(self) -> None:
        if not 1 <= len(self.orders) <= MAX_ORDERS:
            raise InvalidInput(f"There are 1 to {MAX_ORDERS} orders.", pointer="/budget/orders")
        for index, alpha in enumerate(self.orders):
            if not 1 < alpha <= MAX_ORDER or (index and alpha <= self.orders[index - 1]):
                raise InvalidInput(
                    f"Orders lie in (1, {MAX_ORDER}] and rise.", pointer=f"/budget/orders/{index}"
                )

    def _check_weights(self) -> None:
        if len(self.weights) != len(self.orders):
            raise InvalidInput("There is one weight per order.", pointer="/budget/weights")
        for index, weight in enumerate(self.weights):
            if not (weight.is_finite() and LEAST_DELTA <= weight <= 1):
                raise InvalidInput(
                    f"A weight lies in [{LEAST_DELTA}, 1].", pointer=f"/budget/weights/{index}"
                )
        # Compared as fractions: a sum above 1 by any amount would void the guarantee.
        total = sum((Fraction(weight) for weight in self.weights), Fraction(0))
        if not 1 - Fraction(1, 10**9) <= total <= 1:
            raise InvalidInput(
                f"The weights sum to 1, not {float(total):.12g}.", pointer="/budget/weights"
            )


def default_terms(
    *,
    epsilon: Decimal,
    delta: Decimal,
    neighboring: Neighboring,
    privacy_unit: str,
    records_per_unit: int = 1,
    composition: Composition = "renyi",
) -> AccountTerms:
    """Terms for an unknown workload.

    For "renyi" the grid is ``DEFAULT_ORDERS``. The weights are centred on the order that is
    best for Gaussian noise filling (ε, δ), 1 + √(ln(1/δ)/ρ) with ρ the zCDP cap; they halve
    with each step below it (subsampling moves the best order down) and quarter above it.
    """
    orders: tuple[float, ...] = ()
    weights: tuple[Decimal, ...] = ()
    if composition == "renyi":
        _check_promise(epsilon, delta)
        orders = DEFAULT_ORDERS
        centre_at = 1 + math.sqrt(-math.log(delta) / _largest_rho(epsilon, delta))
        centre = min(range(len(orders)), key=lambda i: abs(math.log(orders[i] / centre_at)))
        shares = [
            2.0 ** (i - centre if i <= centre else 2 * (centre - i)) for i in range(len(orders))
        ]
        weights = _weights(shares, centre)
    return AccountTerms(
        epsilon=epsilon,
        delta=delta,
        neighboring=neighboring,
        privacy_unit=privacy_unit,
        composition=composition,
        orders=orders,
        weights=weights,
        records_per_unit=records_per_unit,
    )


def planned_terms(
    event: Event,
    *,
    epsilon: Decimal,
    delta: Decimal,
    neighboring: Neighboring,
    privacy_unit: str,
    records_per_unit: int = 1,
) -> AccountTerms:
    """Rényi terms for a known workload: 0.9 on its best order, the rest below it (R9).

    The best order is the one at which most copies of ``event`` fit under the cap.

    Raises:
        InvalidInput: no order has a cap above zero, or the event is unbounded at all of them.
        NotCertified: the event states a δ of its own.
    """
    _check_promise(epsilon, delta)
    log_delta = math.log(delta) + math.log(PLANNED_WEIGHTS[0])
    gaps = [0.125 * 1.25**i for i in range(50)]
    candidates = [1 + gap if gap < 8 else float(round(1 + gap)) for gap in gaps]
    candidates = [alpha for alpha in candidates if alpha <= MAX_ORDER]
    event = for_unit(event, records=records_per_unit)
    costs = rdp(event, orders=candidates, neighboring=neighboring)
    room = [float(epsilon) - conversion(alpha, log_delta) for alpha in candidates]
    copies = [have / cost if cost > 0 else 0.0 for have, cost in zip(room, costs, strict=True)]
    best = max(range(len(candidates)), key=copies.__getitem__)
    if copies[best] <= 0:
        raise InvalidInput(
            "No Rényi order leaves room for the planned mechanism.",
            pointer="/budget/planned",
            code="INCONSISTENT",
        )
    gap = candidates[best] - 1
    planned = [candidates[best], *(round(1 + gap * share, 6) for share in (0.75, 0.5, 0.25))]
    pairs = sorted(zip(planned, PLANNED_WEIGHTS, strict=True))
    return AccountTerms(
        epsilon=epsilon,
        delta=delta,
        neighboring=neighboring,
        privacy_unit=privacy_unit,
        orders=tuple(alpha for alpha, _ in pairs),
        weights=tuple(weight for _, weight in pairs),
        records_per_unit=records_per_unit,
    )


def equal_weights(count: int) -> tuple[Decimal, ...]:
    """``count`` weights as equal as nine decimals allow, with sum 1."""
    return _weights([1.0] * count, 0)


def caps(terms: AccountTerms) -> Amounts:
    """The cap of each dimension in units; None where no charge could ever fit.

    Guarantees: rounded down, so that amounts within a cap imply the promised (ε, δ), also
    when outputs choose the mechanisms and the surviving order. No cap is negative.

    Source: R9, B(α) = ε − [ln(1/(w_α δ)) + ln c_α]/(α−1); the weights make it a union over
        the orders of fixed-order filters (Lécuyer 2021; Feldman & Zrnic 2021). zCDP: the
        same at the one order that is best for ρ (Whitehouse et al. 2023).
    """
    match terms.composition:
        case "pure":
            return (math.floor(Fraction(terms.epsilon) * UNIT),)
        case "zcdp":
            rho = _largest_rho(terms.epsilon, terms.delta)
            return (math.floor(Fraction(rho) * UNIT) if rho > 0 else None,)
        case "renyi":
            room = (Fraction(terms.epsilon) - Fraction(extra) for extra in _extras(terms))
            return tuple(math.floor(b * UNIT) if b >= 0 else None for b in room)


def spent_epsilon(terms: AccountTerms, amounts: Amounts) -> Decimal | None:
    """ε that ``amounts`` amount to at the terms' δ: the order-optimal view of R9.

    Guarantees: rounded up to six decimals; 0 only if nothing is posted; None if every
    dimension is dead (unbounded). Not additive: a view of the entries, never itself an entry.
    """
    if all(amount == 0 for amount in amounts):
        return Decimal(0)
    match terms.composition:
        case "pure":
            found = [None if a is None else Fraction(a, UNIT) for a in amounts]
        case "zcdp":
            found = [None if a is None else _epsilon_of_rho(a, terms.delta) for a in amounts]
        case "renyi":
            found = [
                None if a is None else Fraction(a, UNIT) + Fraction(extra)
                for a, extra in zip(amounts, _extras(terms), strict=True)
            ]
    live = [value for value in found if value is not None]
    return _shown(max(min(live), Fraction(0))) if live else None


def _extras(terms: AccountTerms) -> list[float]:
    """What each order adds to its amount to give ε, rounded up."""
    log_delta = math.log(terms.delta)
    found: list[float] = []
    for alpha, weight in zip(terms.orders, terms.weights, strict=True):
        log_share = log_delta + math.log(weight)
        slack = (abs(log_delta) + 1) * 1e-14 / (alpha - 1)
        found.append(conversion(alpha, log_share) + slack)
    return found


def _largest_rho(epsilon: Decimal, delta: Decimal) -> float:
    """The largest ρ with ρ-zCDP ⇒ (ε, δ)-DP, rounded down: max over α of (ε − extra(α))/α."""
    log_delta = math.log(delta)

    def rho(log_gap: float) -> float:
        alpha = 1 + math.exp(log_gap)
        extra = conversion(alpha, log_delta)
        return (float(epsilon) - extra) / alpha

    best = _largest_value(rho)
    return best - (abs(best) + float(epsilon)) * 1e-13


def _epsilon_of_rho(units: int, delta: Decimal) -> Fraction:
    """ε of ρ-zCDP at δ, rounded up: min over α of αρ + extra(α)."""
    rho = units / UNIT
    log_delta = math.log(delta)

    def negative(log_gap: float) -> float:
        alpha = 1 + math.exp(log_gap)
        return -alpha * rho - conversion(alpha, log_delta)

    best = -_largest_value(negative)
    return Fraction(best + (abs(best) + rho) * 1e-12)


def _largest_value(function: Callable[[float], float]) -> float:
    """The largest value seen over ln(α − 1): a grid, then ever finer around its best point."""
    centre, width = 0.0, 32.0
    best = -math.inf
    for _ in range(24):
        # Not below −32: 1 + e^−37 is 1, an order that no conversion knows.
        points = [max(centre + width * (i - 20) / 20, -32.0) for i in range(41)]
        values = [function(point) for point in points]
        index = max(range(41), key=values.__getitem__)
        best = max(best, values[index])
        centre, width = points[index], width / 4
        if width < 1e-9:
            break
    return best


def _weights(shares: Sequence[float], centre: int) -> tuple[Decimal, ...]:
    """Shares scaled to decimals that sum to exactly 1; the centre takes the rounding."""
    total = sum(shares)
    digits = Decimal("1e-9")
    weights = [max(Decimal(s / total).quantize(digits, ROUND_DOWN), digits) for s in shares]
    weights[centre] += 1 - sum(weights)
    return tuple(weights)


def _check_promise(epsilon: Decimal, delta: Decimal) -> None:
    """The checks of (ε, δ) before orders are chosen for them."""
    AccountTerms(
        epsilon=epsilon,
        delta=delta,
        neighboring="add_or_remove_one",
        privacy_unit="unit",
        composition="zcdp",
    )


def _shown(value: Fraction) -> Decimal:
    units = math.ceil(value * 10**6)
    return (Decimal(units) * DIGITS).quantize(DIGITS, ROUND_CEILING)
