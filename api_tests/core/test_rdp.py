"""Rényi accounting: certified from above, and tight."""

# pyright: reportArgumentType=false

import itertools
import json
import math
from pathlib import Path

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.accounting.rdp import delta_upper, epoch_shift, epsilon_upper, rdp
from service.core.accounting.rdp_poisson import step_divergence
from service.core.errors import InvalidInput, NotCertified
from service.core.events import (
    NOTHING,
    ApproximateDp,
    Composed,
    DiscreteGaussian,
    EpochDpSgd,
    Gaussian,
    Laplace,
    RandomizedResponse,
    Repeated,
    Segment,
    StepwiseDpSgd,
    Zcdp,
    poisson,
)

ADD = "add_or_remove_one"
GOLDEN = Path(__file__).parent.parent / "golden"
EPSILON_CASES = json.loads((GOLDEN / "epsilon.json").read_text())["cases"]
RUN = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=3000)


def _exact(alpha, q, sigma, *, replace):
    """D_α of the pair by adaptive quadrature at 30 digits."""
    with mpmath.workdps(30):
        alpha, q, t = mpmath.mpf(alpha), mpmath.mpf(q), 1 / mpmath.mpf(sigma)

        def integrand(x):
            p = 1 - q + q * mpmath.exp(t * x - t * t / 2)
            r = 1 - q + q * mpmath.exp(-t * x - t * t / 2) if replace else 1
            return mpmath.npdf(x) * p**alpha * r ** (1 - alpha)

        reach = int(20 + 2 * alpha * t)
        total = mpmath.quad(integrand, mpmath.linspace(-reach, reach, 2 * reach))
        return float(mpmath.log(total) / (alpha - 1))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    ("alpha", "q", "sigma"),
    [
        (1.1, 0.5, 4.0),
        (1.5, 0.01, 1.0),
        (2.5, 0.2, 0.5),
        (7.3, 0.01, 1.1),
        (20.0, 0.3, 2.0),
        (33.3, 0.001, 20.0),
        (3.5, 0.999, 1.0),
    ],
)
def test_the_poisson_step_is_certified_from_above_and_tight(alpha, q, sigma, replace):
    exact = _exact(alpha, q, sigma, replace=replace)
    upper = step_divergence(alpha, sampling_rate=q, noise_multiplier=sigma, replace=replace)
    assert exact <= upper <= exact * (1 + 3e-9)


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.1), (1e-4, 0.7), (0.2, 0.5), (0.001, 20.0)])
def test_whole_orders_agree_with_dp_accounting(q, sigma):
    import dp_accounting as dp  # noqa: PLC0415
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    orders = [2, 3, 8, 20, 64, 256]
    peer = RdpAccountant(orders=orders)
    peer.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)), 1000)
    event = poisson(sampling_rate=q, noise_multiplier=sigma, steps=1000)
    assert rdp(event, orders=orders, neighboring=ADD) == pytest.approx(list(peer._rdp), rel=2e-9)


def test_orders_of_thousands_stay_finite():
    event = poisson(sampling_rate=0.001, noise_multiplier=20.0, steps=1)
    for neighboring in (ADD, "replace_one", "zero_out"):
        values = rdp(event, orders=[500, 1500, 5000], neighboring=neighboring)
        assert all(0 < value < 1e-4 for value in values)


def test_full_sampling_is_the_gaussian():
    orders = [1.001, 1.5, 2, 17.3, 4000]
    sampled = poisson(sampling_rate=1.0, noise_multiplier=1.3, steps=7)
    gaussian = Gaussian(noise_multiplier=1.3, count=7)
    for neighboring in (ADD, "replace_one"):
        shift = 2 if neighboring == "replace_one" else 1
        exact = [7 * a * shift**2 / (2 * 1.3**2) for a in orders]
        for event in (sampled, gaussian):
            values = rdp(event, orders=orders, neighboring=neighboring)
            assert all(e <= v <= e * (1 + 1e-11) for e, v in zip(exact, values, strict=True))


def test_the_known_run_costs_2_9331():
    assert 2.9330 < epsilon_upper(RUN, delta=1e-5, neighboring=ADD) <= 2.9331
    assert epsilon_upper(RUN, delta=1e-5, neighboring="replace_one") > 4.6118


@pytest.mark.parametrize("case", EPSILON_CASES, ids=lambda case: case["id"])
def test_rdp_lies_above_the_certified_epsilon(case):
    neighboring = {"add_remove": ADD}.get(case["adjacency"], case["adjacency"])
    parts = tuple(_event(phase) for phase in case["phases"])
    found = epsilon_upper(Composed(parts=parts), delta=case["delta"], neighboring=neighboring)
    assert found >= case["lower"]
    if case["lower"] > 4:
        assert found <= 1.15 * case["upper"]


def _event(phase):
    if phase["mech"] == "laplace":
        return Laplace(noise_multiplier=phase["sigma"], count=phase["steps"])
    if phase["mech"] == "gauss":
        return Gaussian(noise_multiplier=phase["sigma"], count=phase["steps"])
    return poisson(sampling_rate=phase["q"], noise_multiplier=phase["sigma"], steps=phase["steps"])


def test_the_same_run_shuffled_is_not_amplified():
    event = EpochDpSgd(sampler="shuffle", updates_per_epoch=100, epochs=30, noise_multiplier=1.1)
    exact = 32.91  # the tight ε of the Gaussian of shift √30/1.1
    assert exact < epsilon_upper(event, delta=1e-5, neighboring="zero_out") < exact * 1.07
    assert epsilon_upper(event, delta=1e-5, neighboring="replace_one") > 2 * exact


@pytest.mark.parametrize(
    ("neighboring", "remainder", "shift"),
    [
        ("zero_out", None, 1.0),
        ("replace_one", "kept", 2.0),
        (ADD, "dropped", 2.0),
        (ADD, "kept", math.sqrt(5)),
        (ADD, None, math.sqrt(5)),
    ],
)
def test_R4_a_shuffled_epoch_is_one_gaussian_of_its_shift(neighboring, remainder, shift):
    event = EpochDpSgd(
        sampler="shuffle",
        updates_per_epoch=50,
        epochs=3,
        noise_multiplier=2.0,
        remainder=remainder,
    )
    assert epoch_shift(event, neighboring=neighboring) == pytest.approx(shift / 2)
    (value,) = rdp(event, orders=[4.0], neighboring=neighboring)
    assert value == pytest.approx(3 * 4 * (shift / 2) ** 2 / 2)


def test_R22_adaptive_clipping_joins_gradient_and_count_noise():
    plain = StepwiseDpSgd(
        sampler="full_batch",
        schedule=(Segment(steps=5, noise_multiplier=1.0, sampling_rate=1.0),),
    )
    adaptive = StepwiseDpSgd(sampler="full_batch", schedule=plain.schedule, count_noise_stddev=0.5)
    for neighboring in (ADD, "replace_one"):
        (one,) = rdp(plain, orders=[3.0], neighboring=neighboring)
        (two,) = rdp(adaptive, orders=[3.0], neighboring=neighboring)
        assert two == pytest.approx(2 * one)  # z⁻² = 1 + 1


def test_pure_mechanisms_have_their_closed_forms():
    alpha, epsilon = 5.0, 0.7
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    odds = p**alpha * (1 - p) ** (1 - alpha) + (1 - p) ** alpha * p ** (1 - alpha)
    answer = math.log(odds) / (alpha - 1)
    for event in (RandomizedResponse(epsilon=epsilon), ApproximateDp(epsilon=epsilon, delta=0)):
        assert rdp(event, orders=[alpha], neighboring=ADD)[0] == pytest.approx(answer, rel=1e-10)
    laplace = math.log(5 / 9 * math.exp(4 * epsilon) + 4 / 9 * math.exp(-5 * epsilon)) / 4
    event = Laplace(noise_multiplier=1 / epsilon)
    assert rdp(event, orders=[alpha], neighboring=ADD)[0] == pytest.approx(laplace, rel=1e-10)


def test_small_pure_mechanisms_keep_their_relative_precision():
    # D_α → α ε²/2 (Laplace: α ε² as both one-sided variances are ε²) as ε → 0.
    tiny = 1e-9
    (answer,) = rdp(RandomizedResponse(epsilon=tiny), orders=[3.0], neighboring=ADD)
    assert answer == pytest.approx(3 * tiny**2 / 8, rel=1e-6)
    (laplace,) = rdp(Laplace(noise_multiplier=1e4), orders=[3.0], neighboring=ADD)
    assert laplace == pytest.approx(3e-8 / 2, rel=1e-3)


def test_pure_mechanisms_never_cost_more_than_their_epsilon():
    events = [RandomizedResponse(epsilon=900.0), Laplace(noise_multiplier=1 / 900)]
    for event, alpha in itertools.product(events, [1.5, 100.0, 1e6]):
        (value,) = rdp(event, orders=[alpha], neighboring=ADD)
        assert 0 < value <= 900 * (1 + 1e-9)


def test_booked_statements_cost_what_they_state():
    assert rdp(Zcdp(rho=0.1, count=3), orders=[4.0], neighboring=ADD)[0] == pytest.approx(1.2)
    discrete = DiscreteGaussian(noise_multiplier=4.0)
    assert rdp(discrete, orders=[4.0], neighboring=ADD)[0] == pytest.approx(4 / 32)
    assert rdp(discrete, orders=[4.0], neighboring="replace_one")[0] == pytest.approx(16 / 32)
    with pytest.raises(NotCertified):
        rdp(ApproximateDp(epsilon=0.5, delta=1e-9), orders=[4.0], neighboring=ADD)


def test_no_noise_is_unbounded_and_never_nan():
    for event in (
        Gaussian(noise_multiplier=0.0),
        Laplace(noise_multiplier=0.0),
        poisson(sampling_rate=0.1, noise_multiplier=0.0, steps=1),
        EpochDpSgd(sampler="shuffle", updates_per_epoch=2, epochs=1, noise_multiplier=0.0),
    ):
        assert rdp(event, orders=[1.5, 2.0], neighboring=ADD) == (math.inf, math.inf)
        assert epsilon_upper(event, delta=1e-5, neighboring=ADD) == math.inf
        assert delta_upper(event, epsilon=1.0, neighboring=ADD) == 1.0


@pytest.mark.parametrize("sigma", [5e-324, 1e-200, 1e-3, 1e4])
@pytest.mark.parametrize("q", [5e-324, 1e-9, 0.5, 1 - 1e-12])
def test_extreme_parameters_never_give_nan(q, sigma):
    event = poisson(sampling_rate=q, noise_multiplier=sigma, steps=10**9)
    for neighboring in (ADD, "replace_one"):
        for value in rdp(event, orders=[1 + 1e-9, 1.7, 2, 64, 1e4, 1e9], neighboring=neighboring):
            assert value > 0


def test_astronomic_repetition_overflows_to_infinity():
    event = Gaussian(noise_multiplier=1.0)
    for _ in range(40):
        event = Repeated(of=event, times=10**9)
    assert rdp(event, orders=[2.0], neighboring=ADD) == (math.inf,)


def test_composition_adds_and_nothing_costs_nothing():
    parts = (RUN, Gaussian(noise_multiplier=3.0), Repeated(of=Zcdp(rho=0.1), times=4))
    orders = [2.0, 5.5]
    whole = rdp(Composed(parts=parts), orders=orders, neighboring=ADD)
    singles = [rdp(part, orders=orders, neighboring=ADD) for part in parts]
    assert whole == pytest.approx([sum(column) for column in zip(*singles, strict=True)])
    assert rdp(NOTHING, orders=orders, neighboring=ADD) == (0.0, 0.0)
    assert epsilon_upper(NOTHING, delta=1e-5, neighboring=ADD) == 0.0


@pytest.mark.parametrize("alpha", [1.0, 0.5, math.inf, math.nan])
def test_orders_lie_above_one(alpha):
    with pytest.raises(InvalidInput):
        rdp(RUN, orders=[2.0, alpha], neighboring=ADD)


def test_delta_and_epsilon_are_inverse():
    epsilon = epsilon_upper(RUN, delta=1e-5, neighboring=ADD)
    assert delta_upper(RUN, epsilon=epsilon, neighboring=ADD) == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize(
    ("sigma", "count", "delta"), [(1e4, 1, 1e-5), (1.0, 10**6, 1e-5), (5.0, 3, 1e-30)]
)
def test_the_search_has_no_grid_edge(sigma, count, delta):
    event = Gaussian(noise_multiplier=sigma, count=count)
    epsilon = epsilon_upper(event, delta=delta, neighboring=ADD)
    rho = count / (2 * sigma**2)
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-6


rates = st.floats(1e-6, 1.0)
noises = st.floats(0.1, 50.0)
some_orders = st.floats(1.001, 200.0)


@settings(max_examples=60, deadline=None)
@given(q=rates, sigma=noises, alpha=some_orders, factor=st.floats(1.01, 4.0), replace=st.booleans())
def test_the_step_rises_with_the_rate_the_order_and_less_noise(q, sigma, alpha, factor, replace):
    def at(alpha, q, sigma):
        return step_divergence(alpha, sampling_rate=q, noise_multiplier=sigma, replace=replace)

    slack = 1 + 1e-8
    base = at(alpha, q, sigma)
    assert base <= at(alpha, min(q * factor, 1.0), sigma) * slack
    assert base <= at(alpha, q, sigma / factor) * slack
    assert base <= alpha * ((2 if replace else 1) / sigma) ** 2 / 2 * slack


def test_a_long_schedule_is_rounded_against_the_spender():
    def at(count):
        segments = tuple(
            Segment(steps=1, noise_multiplier=2 - i / 2000, sampling_rate=0.01 + i * 1e-6)
            for i in range(count)
        )
        event = StepwiseDpSgd(sampler="poisson", schedule=segments)
        return rdp(event, orders=[8.0], neighboring=ADD)[0]

    assert at(499) < at(500) < at(501) < at(502) < at(500) * 1.02


@given(steps=st.integers(1, 10**9 - 1))
@settings(max_examples=20, deadline=None)
def test_more_steps_never_cost_less(steps):
    def at(n):
        event = poisson(sampling_rate=0.01, noise_multiplier=1.0, steps=n)
        return rdp(event, orders=[8.0], neighboring=ADD)[0]

    assert at(steps) <= at(steps + 1)


@pytest.mark.parametrize("alpha", [1.5, 3.0, 24.0, 256.0])
@pytest.mark.parametrize("sigma", [0.001, 0.0125, 1 / 60, 0.026])
@pytest.mark.parametrize("q", [0.01, 0.3])
def test_hardly_any_noise_under_replacement_still_has_a_price(alpha, sigma, q):
    event = poisson(sampling_rate=q, noise_multiplier=sigma, steps=1)
    found = rdp(event, orders=[alpha], neighboring="replace_one")[0]
    # Where the moment lives, P is at least qN(+1) and Q's own record adds next to nothing.
    least = (alpha * math.log(q) + (1 - alpha) * math.log1p(-q)) / (alpha - 1)
    assert found >= least + alpha / (2 * sigma**2) * (1 - 1e-9)
    assert found <= 2 * alpha / sigma**2 * (1 + 1e-9)
