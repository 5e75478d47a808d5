"""Second opinions: Gaussian DP and two peer libraries."""

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from service.core.accounting.gdp import epsilon_estimate, gaussian_epsilon
from service.core.accounting.peers import pld_delta, pld_epsilon, prv_delta, prv_epsilon
from service.core.accounting.rdp import epsilon_upper
from service.core.errors import InvalidInput
from service.core.events import (
    NOTHING,
    Composed,
    DiscreteGaussian,
    EpochDpSgd,
    Gaussian,
    Laplace,
    RandomizedResponse,
    Zcdp,
    poisson,
)
from service.core.interval import Interval

ADD = "add_or_remove_one"
RUN = poisson(sampling_rate=0.01, noise_multiplier=1.1, steps=3000)
QUERIES = Composed(parts=(Gaussian(noise_multiplier=5.0, count=2), Laplace(noise_multiplier=9.0)))


def test_R2_the_clt_estimate_lies_below_the_true_value_and_certifies_nothing():
    exact, estimate = epsilon_estimate(RUN, delta=1e-5, neighboring=ADD)
    assert exact is None
    assert estimate == pytest.approx(2.5412, abs=1e-4)
    assert estimate < pld_epsilon(RUN, delta=1e-5, neighboring=ADD).upper


def test_the_clt_estimate_of_replacement_is_near_its_true_value():
    _, estimate = epsilon_estimate(RUN, delta=1e-5, neighboring="replace_one")
    assert estimate == pytest.approx(4.6118, rel=0.02)


@pytest.mark.parametrize("neighboring", [ADD, "replace_one", "zero_out"])
def test_gaussian_noise_is_exact(neighboring):
    event = Gaussian(noise_multiplier=4.0, count=10)
    exact, estimate = epsilon_estimate(event, delta=1e-5, neighboring=neighboring)
    mu = math.sqrt(10) / 4 * (2 if neighboring == "replace_one" else 1)
    assert exact is not None
    assert exact.width < 1e-9
    assert exact.contains(estimate)
    at = norm.cdf(-estimate / mu + mu / 2) - math.exp(estimate) * norm.cdf(-estimate / mu - mu / 2)
    assert at == pytest.approx(1e-5, rel=1e-6)


def test_the_shuffled_run_is_bounded_by_32_91():
    event = EpochDpSgd(sampler="shuffle", updates_per_epoch=100, epochs=30, noise_multiplier=1.1)
    bound, _ = epsilon_estimate(event, delta=1e-5, neighboring="zero_out")
    assert bound is not None
    assert bound.upper == pytest.approx(32.91, abs=5e-3)
    assert bound.lower == 0


def test_an_estimate_is_never_negative_and_no_noise_is_unbounded():
    weak = poisson(sampling_rate=1e-4, noise_multiplier=5.0, steps=1)
    assert epsilon_estimate(weak, delta=0.1, neighboring=ADD) == (None, 0.0)
    assert epsilon_estimate(NOTHING, delta=1e-5, neighboring=ADD)[1] == 0.0
    bare = Gaussian(noise_multiplier=0.0)
    assert epsilon_estimate(bare, delta=1e-5, neighboring=ADD)[1] == math.inf
    loud = poisson(sampling_rate=0.1, noise_multiplier=0.01, steps=1)
    assert epsilon_estimate(loud, delta=1e-5, neighboring=ADD) == (None, math.inf)


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(1e-4, 200.0), digits=st.floats(0.1, 30.0), factor=st.floats(1.001, 2.0))
def test_the_gaussian_interval_is_narrow_and_monotone(mu, digits, factor):
    delta = 10.0**-digits
    interval = gaussian_epsilon(mu, mu, delta=delta)
    assert interval.width <= 1e-8 * (1 + interval.upper)
    assert interval.lower <= gaussian_epsilon(mu * factor, mu * factor, delta=delta).upper
    assert interval.lower <= gaussian_epsilon(mu, mu, delta=delta / factor).upper


@pytest.mark.parametrize("accountant", [prv_epsilon, pld_epsilon])
def test_peers_agree_with_the_known_run(accountant):
    interval = accountant(RUN, delta=1e-5, neighboring=ADD)
    assert interval.lower <= 2.6755 <= interval.upper + 1e-4
    assert interval.upper <= epsilon_upper(RUN, delta=1e-5, neighboring=ADD)


def test_the_replacement_pair_agrees_with_the_known_run():
    interval = pld_epsilon(RUN, delta=1e-5, neighboring="replace_one")
    assert interval.lower <= 4.6118 <= interval.upper + 1e-4
    assert interval.upper == pytest.approx(4.6118, abs=1e-3)


def test_peers_agree_on_gaussian_and_laplace_noise():
    one = prv_epsilon(QUERIES, delta=1e-5, neighboring=ADD)
    two = pld_epsilon(QUERIES, delta=1e-5, neighboring=ADD)
    assert one.lower <= two.upper
    assert two.lower <= one.upper


@pytest.mark.parametrize("accountant", [prv_delta, pld_delta])
def test_delta_is_the_inverse_of_epsilon(accountant):
    interval = accountant(RUN, epsilon=2.6755, neighboring=ADD)
    assert interval.lower <= 1e-5 * 1.001
    assert interval.upper >= 1e-5 * 0.999


def test_pld_bounds_randomised_response_by_its_epsilon():
    event = RandomizedResponse(epsilon=1.0)
    interval = pld_epsilon(event, delta=1e-9, neighboring=ADD)
    assert interval.upper == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("accountant", [prv_epsilon, pld_epsilon])
def test_peers_need_no_engine_for_nothing_and_for_no_noise(accountant):
    assert accountant(NOTHING, delta=1e-5, neighboring=ADD) == Interval(0.0, 0.0)
    bare = Gaussian(noise_multiplier=0.0)
    assert accountant(bare, delta=1e-5, neighboring=ADD) == Interval(math.inf, math.inf)


@pytest.mark.parametrize(
    ("accountant", "event", "neighboring"),
    [
        (prv_epsilon, RUN, "replace_one"),
        (prv_epsilon, RandomizedResponse(epsilon=1.0), ADD),
        (prv_epsilon, Zcdp(rho=0.1), ADD),
        (pld_epsilon, DiscreteGaussian(noise_multiplier=2.0), ADD),
        (epsilon_estimate, Laplace(noise_multiplier=2.0), ADD),
    ],
)
def test_what_an_accountant_does_not_know_is_refused_by_name(accountant, event, neighboring):
    with pytest.raises(InvalidInput) as error:
        accountant(event, delta=1e-5, neighboring=neighboring)
    assert (error.value.code, error.value.pointer) == ("INCONSISTENT", "/accountant")


@pytest.mark.parametrize("accountant", [prv_epsilon, pld_epsilon])
def test_an_engine_that_would_need_too_much_memory_is_not_started(accountant):
    event = poisson(sampling_rate=0.2, noise_multiplier=0.3, steps=10**9)
    with pytest.raises(InvalidInput) as error:
        accountant(event, delta=1e-5, neighboring=ADD)
    assert error.value.code == "ACCOUNTANT_NUMERICAL_FAILURE"


def test_an_engine_that_gives_up_is_a_named_failure():
    # microsoft/prv_accountant#42: the mean check breaks for little noise.
    event = poisson(sampling_rate=0.2, noise_multiplier=0.2, steps=100)
    with pytest.raises(InvalidInput) as error:
        prv_epsilon(event, delta=1e-7, neighboring=ADD)
    assert error.value.code == "ACCOUNTANT_NUMERICAL_FAILURE"


def test_importing_the_peers_loads_neither_engine_nor_torch():
    code = (
        "import sys, service.core.accounting.peers\n"
        "assert not {'torch', 'opacus', 'dp_accounting', 'prv_accountant'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
