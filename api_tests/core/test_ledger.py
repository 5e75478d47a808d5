"""Budget arithmetic: caps hold, parts never exceed their whole, refusals change nothing."""

# pyright: reportOptionalOperand=false, reportOperatorIssue=false, reportArgumentType=false
# A dead dimension (None) where a number is expected fails the test, as it should.

import itertools
import json
import math
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core import ledger
from service.core.accounting.rdp import conversion, epsilon_upper
from service.core.errors import InvalidInput, NotCertified
from service.core.events import (
    NOTHING,
    ApproximateDp,
    Composed,
    EpochDpSgd,
    Gaussian,
    Laplace,
    RandomizedResponse,
    Repeated,
    Segment,
    StepwiseDpSgd,
    Zcdp,
    poisson,
    prefix,
)

GOLDEN = Path(__file__).parent.parent / "golden"
ADD = "add_or_remove_one"
RUN = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=3000)
SHUFFLED = EpochDpSgd(sampler="shuffle", updates_per_epoch=10, epochs=5, noise_multiplier=20.0)


def _terms(composition="renyi", epsilon="8.0", delta="1e-5", neighboring=ADD):
    return ledger.default_terms(
        epsilon=Decimal(epsilon),
        delta=Decimal(delta),
        neighboring=neighboring,
        privacy_unit="patient",
        composition=composition,
    )


def _post(terms, charges):
    """Reserve and settle each charge in turn; the answers and the final balance."""
    caps, balance = ledger.caps(terms), ledger.opening_balance(terms)
    answers = []
    for charge in charges:
        answers.append(ledger.admits(caps, balance, charge))
        if answers[-1]:
            holding, entry = ledger.reserve(charge)
            balance = ledger.apply(balance, entry)
            _, entry = ledger.settle(holding, charge)
            balance = ledger.apply(balance, entry)
    return answers, balance


# --- caps and weights -------------------------------------------------------------------


@pytest.mark.parametrize("weights", [("0.5", "0.5"), ("0.9", "0.1"), ("0.1", "0.9")])
def test_R9_the_adaptive_adversary_is_refused_in_both_branches(weights):
    assert _branches(tuple(map(Decimal, weights))) == [False, False]


def test_R9_without_the_union_over_orders_the_adversary_passes_in_both_branches():
    # Two accounts of one order each, both at the full δ: "some order is under budget".
    case = json.loads((GOLDEN / "grid_filter_counterexample.json").read_text())
    singles = [_single_order(order, case) for order in case["orders"]]
    for stage in case["stage2"]:
        within = [
            ledger.admits(ledger.caps(terms), ledger.opening_balance(terms), (charge,))
            for terms, charge in zip(singles, _path(case, stage), strict=True)
        ]
        assert any(within)
    assert case["true_delta_at_eps"] > 1.9 * case["delta_claimed"]


def _branches(weights):
    case = json.loads((GOLDEN / "grid_filter_counterexample.json").read_text())
    terms = ledger.AccountTerms(
        epsilon=Decimal(8),
        delta=Decimal("1e-5"),
        neighboring=ADD,
        privacy_unit="patient",
        orders=tuple(case["orders"]),
        weights=weights,
    )
    caps, balance = ledger.caps(terms), ledger.opening_balance(terms)
    return [ledger.admits(caps, balance, _path(case, stage)) for stage in case["stage2"]]


def _single_order(order, case):
    return ledger.AccountTerms(
        epsilon=Decimal(str(case["eps"])),
        delta=Decimal("1e-5"),
        neighboring=ADD,
        privacy_unit="patient",
        orders=(order,),
        weights=(Decimal(1),),
    )


def _path(case, stage):
    # The file's budget was met to the last bit, so its amounts are taken at nearest.
    return tuple(
        math.floor(stage["path_total"][str(order)] * ledger.UNIT) for order in case["orders"]
    )


def test_R9_the_budget_curve_of_weight_one_is_the_published_one():
    case = json.loads((GOLDEN / "grid_filter_counterexample.json").read_text())
    for order in case["orders"]:
        (cap,) = ledger.caps(_single_order(order, case))
        exact = case["budget_curve"][str(order)] * ledger.UNIT
        assert exact - 2 <= cap <= exact


def test_R9_planned_weights_cost_little():
    terms = ledger.planned_terms(
        RUN, epsilon=Decimal(3), delta=Decimal("1e-5"), neighboring=ADD, privacy_unit="patient"
    )
    assert max(terms.weights) == Decimal("0.9")
    assert terms.weights[-1] == Decimal("0.9")  # the rest lies below
    spent = ledger.spent_epsilon(terms, ledger.price(RUN, terms))
    best = epsilon_upper(RUN, delta=1e-5, neighboring=ADD)
    assert best < spent < best + 0.04


def test_default_weights_are_shown_and_sum_to_one():
    terms = _terms()
    assert terms.orders == ledger.DEFAULT_ORDERS
    assert sum(terms.weights) == 1


@given(st.floats(0.05, 50.0), st.integers(2, 25))
@settings(max_examples=25, deadline=None)
def test_R9_whatever_is_within_a_cap_converts_to_no_more_than_the_promise(epsilon, digits):
    delta = Decimal(10) ** -digits
    terms = _terms(epsilon=repr(round(epsilon, 6)), delta=str(delta))
    for alpha, weight, cap in zip(terms.orders, terms.weights, ledger.caps(terms), strict=True):
        if cap is not None:
            extra = conversion(alpha, math.log(delta * weight))
            assert cap / ledger.UNIT + extra <= float(terms.epsilon) * (1 + 1e-12)


def test_zcdp_caps_and_views_are_inverse():
    terms = _terms("zcdp", epsilon="1.0", delta="1e-6")
    (cap,) = ledger.caps(terms)
    assert Decimal("0.999999") <= ledger.spent_epsilon(terms, (cap,)) <= Decimal(1)
    assert ledger.spent_epsilon(terms, (cap + 10_000,)) > 1


def test_ten_zcdp_queries_have_the_tight_view():
    terms = _terms("zcdp", epsilon="4.0", delta="1e-6")
    price = ledger.price(Zcdp(rho=0.01, count=10), terms)
    assert price == (ledger.UNIT // 10,)
    tight = epsilon_upper(Zcdp(rho=0.1), delta=1e-6, neighboring=ADD)
    assert float(ledger.spent_epsilon(terms, price)) == pytest.approx(tight, abs=2e-6)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"epsilon": Decimal(0)}, "/budget/epsilon"),
        ({"epsilon": Decimal("NaN")}, "/budget/epsilon"),
        ({"delta": Decimal(1)}, "/budget/delta"),
        ({"delta": Decimal(0)}, "/budget/delta"),
        ({"orders": (1.0, 2.0)}, "/budget/orders/0"),
        ({"orders": (3.0, 2.0)}, "/budget/orders/1"),
        ({"orders": ()}, "/budget/orders"),
        ({"weights": (Decimal("0.5"),)}, "/budget/weights"),
        ({"weights": (Decimal("0.5"), Decimal("0.6"))}, "/budget/weights"),
        ({"weights": (Decimal("1.5"), Decimal("-0.5"))}, "/budget/weights/0"),
        ({"composition": "zcdp"}, "/budget/orders"),
        ({"privacy_unit": ""}, "/privacy_unit"),
    ],
)
def test_R7_terms_that_promise_nothing_are_refused_by_name(change, pointer):
    good = {
        "epsilon": Decimal(8),
        "delta": Decimal("1e-5"),
        "neighboring": ADD,
        "privacy_unit": "patient",
        "orders": (2.0, 3.0),
        "weights": (Decimal("0.5"), Decimal("0.5")),
    }
    ledger.AccountTerms(**good)
    with pytest.raises(InvalidInput) as error:
        ledger.AccountTerms(**(good | change))
    assert error.value.pointer == pointer


# --- prices -----------------------------------------------------------------------------


def test_R8_ten_tenths_fill_one_exactly_and_an_eleventh_is_refused():
    terms = _terms("pure", epsilon="1.0", delta="0")
    charge = ledger.price(ApproximateDp(epsilon=0.1, delta=0.0), terms)
    answers, balance = _post(terms, [charge] * 11)
    assert answers == [True] * 10 + [False]
    refused = ledger.refusal(terms, ledger.caps(terms), balance, charge)
    assert refused.available == 0
    assert refused.shortfall == refused.requested == Decimal("0.1")
    assert ledger.spent_epsilon(terms, balance.posted) == 1


def test_R8_eleven_elevenths_round_up_past_one():
    terms = _terms("pure", epsilon="1.0", delta="0")
    answers, _ = _post(terms, [ledger.price(RandomizedResponse(epsilon=1 / 11), terms)] * 11)
    assert answers == [True] * 10 + [False]  # 11 × 90,909,091 units > 10⁹


def test_R8_a_subnormal_spend_costs_a_unit_and_is_refused_when_nothing_is_left():
    for composition in ("pure", "renyi"):
        terms = _terms(composition, epsilon="1.0")
        charge = ledger.price(ApproximateDp(epsilon=5e-324, delta=0.0), terms)
        assert set(charge) == {1}
        caps = ledger.caps(terms)
        full = ledger.Balance(posted=caps, pending=(0,) * len(caps))
        assert not ledger.admits(caps, full, charge)


def test_a_refused_charge_does_not_poison_the_account():
    terms = _terms("pure", epsilon="1.0", delta="0")
    sizes = [0.4, 0.4, 0.4, 0.1, 0.1, 0.1]
    charges = [ledger.price(RandomizedResponse(epsilon=size), terms) for size in sizes]
    assert _post(terms, charges)[0] == [True, True, False, True, True, False]


def test_R8_an_order_that_overflows_is_dead_and_the_others_live_on():
    terms = ledger.AccountTerms(
        epsilon=Decimal(1000),
        delta=Decimal("1e-5"),
        neighboring=ADD,
        privacy_unit="patient",
        orders=(1.5, 10_000.0),
        weights=(Decimal("0.5"), Decimal("0.5")),
    )
    charge = ledger.price(Zcdp(rho=100.0, count=10_000), terms)
    assert charge == (None, None) or charge[1] is None
    caps, balance = ledger.caps(terms), ledger.opening_balance(terms)
    assert not ledger.admits(caps, balance, (None, None))
    assert ledger.admits(caps, balance, (5, None))
    holding, entry = ledger.reserve((5, None))
    balance = ledger.apply(balance, entry)
    balance = ledger.apply(balance, ledger.release(holding)[1])
    assert balance.committed == (0, None)
    assert ledger.spent_epsilon(terms, (None, None)) is None
    assert ledger.refusal(terms, caps, balance, (None, 5)).shortfall is None


def test_events_that_an_account_cannot_carry_are_refused():
    with pytest.raises(NotCertified):
        ledger.price(ApproximateDp(epsilon=1.0, delta=1e-9), _terms())
    for event in (Gaussian(noise_multiplier=1.0), ApproximateDp(epsilon=1.0, delta=1e-9)):
        with pytest.raises(InvalidInput):
            ledger.price(event, _terms("pure"))
    for event in (Laplace(noise_multiplier=1.0), RUN):
        with pytest.raises(InvalidInput):
            ledger.price(event, _terms("zcdp"))


@pytest.mark.parametrize("composition", ["renyi", "zcdp", "pure"])
def test_nothing_costs_nothing_and_composition_adds(composition):
    terms = _terms(composition, neighboring="replace_one")
    part = (
        Laplace(noise_multiplier=8.0) if composition == "pure" else Gaussian(noise_multiplier=4.0)
    )
    assert not any(ledger.price(NOTHING, terms))
    whole = ledger.price(Composed(parts=(part, Repeated(of=part, times=3))), terms)
    one = ledger.price(part, terms)
    for total, single in zip(whole, one, strict=True):
        assert 4 * (single - 1) <= total <= 4 * single


@pytest.mark.parametrize(
    ("neighboring", "remainder", "rho"),
    [
        ("zero_out", None, "0.5"),
        ("replace_one", None, "2"),
        (ADD, "dropped", "2"),
        (ADD, None, "2.5"),
    ],
)
def test_R4_a_shuffled_epoch_is_one_gaussian_in_zcdp_too(neighboring, remainder, rho):
    event = EpochDpSgd(
        sampler="shuffle", updates_per_epoch=7, epochs=2, noise_multiplier=1.0, remainder=remainder
    )
    terms = _terms("zcdp", epsilon="20", neighboring=neighboring)
    assert ledger.price(event, terms) == (int(2 * Decimal(rho) * ledger.UNIT),)


def test_R22_adaptive_clipping_is_exact_in_zcdp():
    segment = Segment(steps=3, noise_multiplier=1.0, sampling_rate=1.0)
    event = StepwiseDpSgd(sampler="full_batch", schedule=(segment,), count_noise_stddev=0.5)
    assert ledger.price(event, _terms("zcdp", epsilon="20")) == (3 * ledger.UNIT,)


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 3000), max_size=6), sigma=st.floats(0.5, 200.0))
def test_R8_parts_sum_to_their_whole_to_the_unit(cuts, sigma):
    event = poisson(sampling_rate=0.01, noise_multiplier=sigma, steps=3000)
    terms = _few_orders()
    bounds = [0, *sorted(cuts), 3000]
    total = (0,) * terms.dimensions
    for first, end in itertools.pairwise(bounds):
        part = ledger.price_range(event, terms, first=first, end=end)
        assert all(amount >= 0 for amount in part)
        total = ledger.add(total, part)
    assert total == ledger.price(event, terms)


def _few_orders(epsilon="8"):
    return ledger.AccountTerms(
        epsilon=Decimal(epsilon),
        delta=Decimal("1e-5"),
        neighboring=ADD,
        privacy_unit="patient",
        orders=(2.0, 4.0, 8.0),
        weights=(Decimal("0.2"), Decimal("0.3"), Decimal("0.5")),
    )


def test_R12_the_first_lease_in_an_epoch_pays_it_whole():
    terms = _terms()
    epoch = ledger.price(prefix(SHUFFLED, 10), terms)
    assert ledger.price_range(SHUFFLED, terms, first=0, end=1) == epoch
    assert not any(ledger.price_range(SHUFFLED, terms, first=1, end=10))
    again = ledger.price_range(SHUFFLED, terms, first=5, end=8, again=True)
    assert again == epoch


@given(sigma=st.floats(0.3, 50.0), factor=st.floats(1.0, 3.0), steps=st.integers(1, 10**6))
@settings(max_examples=25, deadline=None)
def test_prices_fall_with_noise_and_rise_with_steps(sigma, factor, steps):
    terms = _few_orders()

    def at(s, n):
        return ledger.price(poisson(sampling_rate=0.02, noise_multiplier=s, steps=n), terms)

    base = at(sigma, steps)
    for less, more in ((at(sigma * factor, steps), base), (base, at(sigma, steps + 1))):
        assert all(a <= b for a, b in zip(less, more, strict=True))


# --- balances and reservations ----------------------------------------------------------

amounts = st.tuples(st.integers(0, 1000), st.integers(0, 1000))


@given(charges=st.lists(amounts, max_size=30), caps=amounts)
def test_R9_no_sequence_of_admitted_charges_passes_every_cap(charges, caps):
    balance = ledger.Balance(posted=(0, 0), pending=(0, 0))
    for charge in charges:
        before = balance
        if ledger.admits(caps, balance, charge):
            balance = ledger.apply(balance, ledger.reserve(charge)[1])
        else:
            assert balance == before
        assert any(used <= cap for used, cap in zip(balance.committed, caps, strict=True))


@given(
    reserved=amounts,
    leases=st.lists(amounts, max_size=5),
    logged=amounts,
    ends=st.sampled_from(["settle", "release", "expire"]),
)
def test_R12_a_reservation_posts_the_larger_of_leased_and_logged(reserved, leases, logged, ends):
    balance = ledger.Balance(posted=(7, 7), pending=(3, 3))
    holding, entry = ledger.reserve(reserved)
    entries = [entry]
    for charge in leases:
        holding, entry = ledger.lease(holding, charge)
        entries.append(entry)
    if ends == "settle":
        holding, entry = ledger.settle(holding, logged)
    else:
        holding, entry = ledger.release(holding, kind=ends)
    entries.append(entry)
    for entry in entries:
        assert all(amount >= 0 for amount in entry.posted)
        balance = ledger.apply(balance, entry)
    leased = tuple(sum(column) for column in zip((0, 0), *leases, strict=True))
    due = tuple(map(max, leased, logged)) if ends == "settle" else leased
    assert holding.posted == due
    assert balance == ledger.Balance(posted=ledger.add((7, 7), due), pending=(3, 3))
    over = any(d > r for d, r in zip(due, reserved, strict=True))
    assert over == any(entry.overruns for entry in entries)


def test_settling_twice_posts_nothing_more():
    holding, _ = ledger.reserve((10, 20))
    holding, _ = ledger.settle(holding, (4, 5))
    _, entry = ledger.settle(holding, (4, 5))
    assert not any(entry.posted)
    assert not any(entry.pending_freed)


def test_R12_a_second_grant_over_the_same_steps_is_charged_again():
    # 2,000 reserved; killed after 1,000, resumed from 800: 2,200 steps were executed.
    event = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=2000)
    terms = _few_orders()
    holding, _ = ledger.reserve(ledger.price(event, terms))
    spans = [(0, 1000, False), (800, 1000, True), (1000, 2000, False)]
    overruns = []
    for first, end, again in spans:
        charge = ledger.price_range(event, terms, first=first, end=end, again=again)
        holding, entry = ledger.lease(holding, charge)
        overruns.append(entry.overruns)
    assert overruns == [False, False, True]
    longer = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=2200)
    for posted, exact in zip(holding.posted, ledger.price(longer, terms), strict=True):
        assert exact - 3 <= posted <= exact + 3


def test_R13_an_overrun_is_posted_in_full_and_shows_as_overdrawn():
    terms = _few_orders(epsilon="80")
    caps, balance = ledger.caps(terms), ledger.opening_balance(terms)
    charge = tuple(cap - 1 for cap in caps)
    holding, entry = ledger.reserve(charge)
    balance = ledger.apply(balance, entry)
    _, entry = ledger.settle(holding, tuple(cap + 1 for cap in caps))
    balance = ledger.apply(balance, entry)
    assert balance.posted == tuple(cap + 1 for cap in caps)
    assert ledger.is_overdrawn(caps, balance.posted)
    assert not ledger.is_overdrawn(caps, charge)


@given(charge=st.tuples(st.integers(1, 50), st.integers(1, 50)), caps=amounts, used=amounts)
def test_fits_counts_exactly_how_many_more_are_admitted(charge, caps, used):
    balance = ledger.Balance(posted=used, pending=(0, 0))
    count = ledger.fits(caps, balance, charge)
    for n in (count, count + 1):
        asked = tuple(n * amount for amount in charge)
        if n:
            assert ledger.admits(caps, balance, asked) == (n <= count)


def test_R14_a_parent_pays_the_largest_sum_over_the_blocks_a_unit_touches():
    blocks = [(5, 1), (5, 2), (5, 3), (5, 4)]
    assert ledger.largest_sum(blocks, touched=1) == (5, 4)
    assert ledger.largest_sum(blocks, touched=2) == (10, 7)
    assert ledger.largest_sum([(5, None), (1, 2)], touched=1) == (5, None)
