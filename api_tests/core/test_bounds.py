"""Bounds of the separation κ against reference values, and their shape."""

# pyright: reportArgumentType=false, reportOptionalOperand=false, reportOperatorIssue=false
# A None where a number is expected fails the test, as it should.

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.bounds import (
    epsilon_floor,
    minimum_noise,
    published_curve,
    separation,
    threshold,
)
from service.core.bounds import lower as tests_of
from service.core.bounds import upper as bounds_above
from service.core.bounds.characteristic import allocation_bracket
from service.core.bounds.published import derived_shuffle_floor, floor_below_threshold
from service.core.errors import InvalidInput, NotCertified

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "bounds.json").read_text())
SQRT2 = math.sqrt(2)


def _cases(quantity, *fields):
    """Parameters (inputs, *fields) of every reference case of a quantity."""
    found = [case for case in GOLDEN if case["quantity"] == quantity]
    assert found, quantity
    return [pytest.param(c["inputs"], *(c[f] for f in fields), id=c["id"]) for c in found]


def _kappa(inputs, sampler, neighboring="zero_out"):
    return separation(
        noise_multiplier=inputs["sigma"],
        updates_per_epoch=inputs["M"],
        epochs=inputs.get("E", 1),
        sampler=sampler,
        neighboring=neighboring,
    ).kappa


def _contains(interval, value, slack=0.0):
    return interval.lower - slack <= value <= interval.upper + slack


@pytest.mark.parametrize(("inputs", "value"), _cases("kappa_random_allocation_exact", "value"))
@pytest.mark.parametrize("neighboring", ["zero_out", "add_or_remove_one"])
def test_random_allocation_lies_in_its_interval(inputs, value, neighboring):
    assert _contains(_kappa(inputs, "balls_in_bins", neighboring), value)


@pytest.mark.parametrize(
    ("inputs", "value"), _cases("kappa_replace_one_random_allocation_pair_exact", "value")
)
def test_random_allocation_with_replacement_lies_in_its_interval(inputs, value):
    assert _contains(_kappa(inputs, "balls_in_bins", "replace_one"), value)


@pytest.mark.parametrize(("inputs", "value"), _cases("tv_random_allocation_multi_epoch", "value"))
def test_many_epochs_of_random_allocation_lie_in_their_interval(inputs, value):
    assert _contains(_kappa(inputs, "balls_in_bins"), value / SQRT2)


@pytest.mark.parametrize(
    ("inputs", "value", "tolerance"),
    _cases("kappa_poisson_exact", "value", "tolerance_or_interval"),
)
def test_poisson_sampling_lies_in_its_interval(inputs, value, tolerance):
    assert _contains(_kappa(inputs, "poisson"), value, tolerance)


@pytest.mark.parametrize(
    ("inputs", "tolerance"), _cases("tv_poisson_dp_accounting_bracket", "tolerance_or_interval")
)
def test_poisson_sampling_meets_the_bracket_of_dp_accounting(inputs, tolerance):
    low, high = tolerance
    kappa = _kappa(inputs, "poisson")
    assert kappa.lower * SQRT2 <= high
    assert low <= kappa.upper * SQRT2


@pytest.mark.parametrize(
    ("inputs", "value"), _cases("kappa_fixed_shuffle_worstcase_pair_exact", "value")
)
def test_shuffling_is_bounded_around_its_worst_known_pair(inputs, value):
    assert _contains(_kappa(inputs, "shuffle"), value)


@pytest.mark.parametrize(("inputs", "value"), _cases("paper_sigma_threshold", "value"))
def test_the_published_threshold(inputs, value):
    assert threshold(inputs["M"]) == pytest.approx(value, rel=1e-13)


def test_five_million_updates_have_the_threshold_0_18004():
    assert threshold(5_000_000) == pytest.approx(0.18004, abs=5e-6)
    assert threshold(1) is None


@pytest.mark.parametrize(("inputs", "value"), _cases("kappa_lb_max_test_optimal", "value"))
def test_the_max_test_reaches_its_optimum_from_below(inputs, value):
    found = tests_of.max_test(1 / inputs["sigma"], updates_per_epoch=inputs["M"], high=1, low=0)
    assert value * (1 - 1e-6) <= found / SQRT2 <= value * (1 + 1e-9)


@pytest.mark.parametrize(("inputs", "value"), _cases("kappa_lb_sum_test", "value"))
def test_the_sum_test(inputs, value):
    found = tests_of.sum_test(
        1 / inputs["sigma"], updates_per_epoch=inputs["M"], epochs=1, distance=1
    )
    assert found / SQRT2 == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(("inputs", "value"), _cases("kappa_lb_moment", "value"))
def test_the_moment_bound(inputs, value):
    found = tests_of.moment_bound(1 / inputs["sigma"], draws=inputs["M"], rounds=1)
    assert found / SQRT2 == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(("inputs", "value"), _cases("tv_lb_multi_epoch_count_test", "value"))
def test_the_count_test_of_many_epochs(inputs, value):
    found = tests_of.count_test(
        1 / inputs["sigma"], updates_per_epoch=inputs["M"], epochs=inputs["E"], high=1, low=0
    )
    assert found >= value - 1e-5


@pytest.mark.parametrize(("inputs", "value"), _cases("kappa_ub_chi2", "value"))
def test_the_chi_square_bound(inputs, value):
    found = bounds_above.chi_square(
        1 / inputs["sigma"], updates_per_epoch=inputs["M"], epochs=1, sampler="balls_in_bins"
    )
    assert value * (1 - 1e-12) <= found / SQRT2 <= value * (1 + 1e-9)


@pytest.mark.parametrize(("inputs", "value"), _cases("kappa_ub_single_step", "value"))
def test_the_unamplified_bound(inputs, value):
    found = bounds_above.unamplified(
        inputs["sigma"], epochs=1, sampler="shuffle", neighboring="zero_out"
    )
    assert value * (1 - 1e-12) <= found / SQRT2 <= value * (1 + 1e-9)


@pytest.mark.parametrize(
    ("inputs", "value", "tolerance"),
    _cases("sigma_exact_for_tv_target", "value", "tolerance_or_interval"),
)
def test_the_certified_noise_is_at_least_the_exact_one(inputs, value, tolerance):
    answer = minimum_noise(
        updates_per_epoch=inputs["M"],
        epochs=inputs["E"],
        sampler="balls_in_bins",
        max_kappa=inputs["tv_target"] / SQRT2,
    )
    for sigma in (answer.noise_multiplier, answer.closed_form):
        assert sigma is not None
        assert sigma >= value - tolerance


@pytest.mark.parametrize(("inputs", "value"), _cases("derived_fixed_shuffle_threshold", "value"))
def test_the_derived_floor_of_shuffling_reaches_to_twice_the_published_threshold(inputs, value):
    m = inputs["M"]
    assert derived_shuffle_floor(noise_multiplier=value * 1.001, updates_per_epoch=m) is None
    floor = derived_shuffle_floor(noise_multiplier=value * 0.999, updates_per_epoch=m)
    assert floor is not None
    assert floor < floor_below_threshold(m)
    # The floor must lie below the best test at the same noise.
    best = tests_of.max_test(1 / value, updates_per_epoch=m, high=2, low=1) / SQRT2
    assert floor <= best


@pytest.mark.parametrize(("inputs", "value"), _cases("f_sub_upper_bound_tradeoff", "value"))
def test_the_published_curve(inputs, value):
    found = published_curve(
        inputs["alpha"], noise_multiplier=inputs["sigma"], updates_per_epoch=inputs["M"]
    )
    assert found == pytest.approx(value, rel=1e-9)


def test_the_published_curve_ends_in_the_corners():
    options = {"noise_multiplier": 0.5, "updates_per_epoch": 100}
    assert published_curve(0.0, **options) == 1
    assert published_curve(1.0, **options) == 0


@pytest.mark.parametrize(("inputs", "value"), _cases("eps_lb_from_kappa", "value"))
def test_kappa_excludes_small_epsilon(inputs, value):
    found = epsilon_floor(inputs["kappa"] * SQRT2, delta=inputs["delta"])
    assert found == pytest.approx(max(value, 0), abs=1e-9)
    assert found <= value + 1e-12 or found == 0


def test_a_total_variation_of_one_excludes_every_epsilon_in_reach():
    assert epsilon_floor(1.0, delta=1e-5) > 600
    assert epsilon_floor(0.0, delta=1e-5) == 0


# --- verdicts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sigma", "m", "sampler", "neighboring", "verdict"),
    [
        (0.2, 1000, "shuffle", "zero_out", "below"),
        (0.2, 1000, "poisson", "add_or_remove_one", "below"),
        (0.2, 1000, "balls_in_bins", "zero_out", "below"),
        (0.3, 1000, "shuffle", "zero_out", "silent"),
        (0.2, 1, "shuffle", "zero_out", "not_applicable"),
        (0.2, 1000, "shuffle", "replace_one", "not_applicable"),
        (0.2, 1000, "shuffle", "add_or_remove_one", "not_applicable"),
    ],
)
def test_the_published_verdict(sigma, m, sampler, neighboring, verdict):
    answer = separation(
        noise_multiplier=sigma, updates_per_epoch=m, sampler=sampler, neighboring=neighboring
    )
    assert answer.published.verdict == verdict
    assert (answer.published.kappa_floor is not None) == (verdict == "below")
    codes = {warning.code for warning in answer.warnings}
    assert ("THRESHOLD_IS_NO_CERTIFICATE" in codes) == (verdict == "silent")
    assert ("NO_PROVEN_AMPLIFICATION" in codes) == (sampler == "shuffle")


@pytest.mark.parametrize("m", [2, 3, 10, 1000, 10**6, 10**9])
def test_the_published_floor_lies_below_the_best_test_at_the_threshold(m):
    best = tests_of.max_test(1 / threshold(m), updates_per_epoch=m, high=1, low=0) / SQRT2
    assert floor_below_threshold(m) <= best
    answer = separation(noise_multiplier=threshold(m), updates_per_epoch=m, sampler="poisson")
    assert answer.published.verdict == "below"
    assert answer.published.kappa_floor <= max(
        line.value for line in answer.bounds if line.method == "largest of all coordinates"
    )


def test_R5_no_bound_of_random_allocation_is_quoted_for_shuffle():
    for neighboring in ("zero_out", "replace_one", "add_or_remove_one"):
        answer = separation(
            noise_multiplier=0.5,
            updates_per_epoch=10_000,
            sampler="shuffle",
            neighboring=neighboring,
        )
        assert all("shuffle" in line.proven_for for line in answer.bounds)
        assert [line for line in answer.bounds if "χ²" in line.method] == []


@pytest.mark.parametrize("sampler", ["shuffle", "balls_in_bins", "poisson"])
@pytest.mark.parametrize("neighboring", ["zero_out", "replace_one"])
def test_one_update_per_epoch_is_exact(sampler, neighboring):
    answer = separation(
        noise_multiplier=3.0,
        updates_per_epoch=1,
        epochs=4,
        sampler=sampler,
        neighboring=neighboring,
    )
    distance = 2 if neighboring == "replace_one" else 1
    exact = math.erf(distance * 2 / 3 / math.sqrt(8)) / SQRT2
    assert _contains(answer.kappa, exact)
    assert answer.kappa.width < 1e-11


# --- shape ------------------------------------------------------------------------------

sigmas = st.floats(0.02, 1e4)
updates = st.integers(1, 10**9)
epochs = st.integers(1, 10**6)
samplers = st.sampled_from(["shuffle", "balls_in_bins", "poisson"])
relations = st.sampled_from(["zero_out", "replace_one", "add_or_remove_one"])


@settings(max_examples=50, deadline=None)
@given(sigma=sigmas, m=updates, e=epochs, sampler=samplers, neighboring=relations)
def test_the_interval_is_ordered_and_capped(sigma, m, e, sampler, neighboring):
    answer = separation(
        noise_multiplier=sigma,
        updates_per_epoch=m,
        epochs=e,
        sampler=sampler,
        neighboring=neighboring,
    )
    best = {"lower": 0.0, "upper": 1.0}
    best["lower"] = max(line.value for line in answer.bounds if line.side == "lower")
    best["upper"] = min(line.value for line in answer.bounds if line.side == "upper")
    assert 0 <= best["lower"] <= best["upper"] <= (1 + 1e-11) / SQRT2
    assert answer.total_variation.upper <= 1
    assert answer.implied_epsilon_floor >= 0


@settings(max_examples=30, deadline=None)
@given(
    sigma=st.floats(0.05, 1e3),
    factor=st.floats(1.1, 5),
    m=st.integers(1, 10**8),
    e=st.integers(1, 10**4),
    sampler=samplers,
    neighboring=relations,
)
def test_less_noise_and_more_epochs_never_lower_the_bounds_below_the_others(
    sigma, factor, m, e, sampler, neighboring
):
    def at(sigma, e):
        return separation(
            noise_multiplier=sigma,
            updates_per_epoch=m,
            epochs=e,
            sampler=sampler,
            neighboring=neighboring,
        ).kappa

    base = at(sigma, e)
    for stronger in (at(sigma / factor, e), at(sigma, 2 * e)):
        assert base.lower <= stronger.upper
        assert base.upper <= stronger.upper * (1 + 1e-11)


@settings(max_examples=25, deadline=None)
@given(
    kappa=st.floats(1e-3, 0.7),
    m=st.integers(1, 10**8),
    e=st.integers(1, 1000),
    sampler=samplers,
    neighboring=relations,
)
def test_the_certified_noise_keeps_its_target_and_is_the_least(kappa, m, e, sampler, neighboring):
    options = {
        "updates_per_epoch": m,
        "epochs": e,
        "sampler": sampler,
        "neighboring": neighboring,
    }
    try:
        sigma = minimum_noise(max_kappa=kappa, **options).noise_multiplier
    except NotCertified:
        assert separation(noise_multiplier=1e4, **options).kappa.upper > kappa
        return
    assert separation(noise_multiplier=sigma, **options).kappa.upper <= kappa
    if sigma > 2e-6:
        assert separation(noise_multiplier=sigma - 1e-6, **options).kappa.upper > kappa


def test_without_a_target_only_the_threshold_is_answered():
    answer = minimum_noise(updates_per_epoch=5_000_000, sampler="shuffle")
    assert answer.published_threshold == pytest.approx(0.18004, abs=5e-6)
    assert (answer.noise_multiplier, answer.closed_form) == (None, None)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"noise_multiplier": 0.0}, "/noise_multiplier"),
        ({"noise_multiplier": 1e5}, "/noise_multiplier"),
        ({"noise_multiplier": math.nan}, "/noise_multiplier"),
        ({"updates_per_epoch": 0}, "/updates_per_epoch"),
        ({"epochs": 10**7}, "/epochs"),
        ({"sampler": "full_batch"}, "/sampler"),
        ({"delta": 1.0}, "/delta"),
    ],
)
def test_values_out_of_range_are_refused_by_name(change, pointer):
    good = {"noise_multiplier": 1.0, "updates_per_epoch": 10, "sampler": "shuffle"}
    with pytest.raises(InvalidInput) as error:
        separation(**(good | change))
    assert error.value.pointer == pointer


@pytest.mark.parametrize("kappa", [0.0, 0.8, math.nan])
def test_a_target_beyond_the_cap_is_refused(kappa):
    with pytest.raises(InvalidInput):
        minimum_noise(updates_per_epoch=10, sampler="poisson", max_kappa=kappa)


def test_extreme_noise_is_finite():
    for sigma in (5e-324, 1e-9, 1e4):
        for sampler in ("shuffle", "balls_in_bins", "poisson"):
            answer = separation(
                noise_multiplier=sigma, updates_per_epoch=10**9, epochs=10**6, sampler=sampler
            )
            assert 0 <= answer.kappa.lower <= answer.kappa.upper


@pytest.mark.parametrize("sampler_relation", ["zero_out", "replace_one"])
def test_the_characteristic_bracket_is_narrow_and_right(sampler_relation):
    quantity = {
        "zero_out": "kappa_random_allocation_exact",
        "replace_one": "kappa_replace_one_random_allocation_pair_exact",
    }[sampler_relation]
    narrow = 0
    for case in GOLDEN:
        if case["quantity"] != quantity or case["inputs"]["M"] == 1:
            continue
        inputs, exact = case["inputs"], case["value"] * SQRT2
        found = allocation_bracket(
            1 / inputs["sigma"],
            updates_per_epoch=inputs["M"],
            replace=sampler_relation == "replace_one",
        )
        if found is None:
            continue
        assert _contains(found, exact)
        if inputs["sigma"] >= 0.8 and inputs["M"] >= 100:
            narrow += 1
            assert found.width <= 0.003 * exact
    assert narrow >= 10


@settings(max_examples=20, deadline=None)
@given(t=st.floats(1e-4, 4.0), m=st.integers(2, 10**9), replace=st.booleans())
def test_the_characteristic_bracket_meets_the_tests(t, m, replace):
    found = allocation_bracket(t, updates_per_epoch=m, replace=replace)
    assert found is not None
    low = -1.0 if replace else 0.0
    assert tests_of.max_test(t, updates_per_epoch=m, high=1.0, low=low) <= found.upper
    summed = tests_of.sum_test(t, updates_per_epoch=m, epochs=1, distance=1.0 - low)
    assert summed <= found.upper
