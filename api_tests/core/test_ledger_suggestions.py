"""What would fit in place of a refused charge."""

from decimal import Decimal

import pytest

from service.core import ledger
from service.core.errors import InvalidInput
from service.core.events import (
    EpochDpSgd,
    Gaussian,
    RandomizedResponse,
    StepwiseDpSgd,
    poisson,
    prefix,
)

ADD = "add_or_remove_one"


def _terms(composition="renyi", epsilon="8.0", delta="1e-5", neighboring=ADD):
    return ledger.default_terms(
        epsilon=Decimal(epsilon),
        delta=Decimal(delta),
        neighboring=neighboring,
        privacy_unit="patient",
        composition=composition,
    )


@pytest.mark.parametrize(
    "event",
    [
        poisson(sampling_rate=0.01, noise_multiplier=0.6, steps=3000),
        Gaussian(noise_multiplier=0.5, count=3),
        EpochDpSgd(sampler="shuffle", updates_per_epoch=10, epochs=9, noise_multiplier=2.0),
    ],
)
def test_R11_a_refusal_says_what_would_fit_and_it_does(event):
    terms = _terms(epsilon="4.0")
    caps, balance = ledger.caps(terms), ledger.opening_balance(terms)
    assert not ledger.admits(caps, balance, ledger.price(event, terms))
    sigma, steps = ledger.suggest(event, caps, balance, terms)
    assert sigma is not None
    assert _fits_with(event, terms, sigma=sigma)
    assert not _fits_with(event, terms, sigma=sigma - 2e-4)
    if steps is not None:
        assert _fits_with(event, terms, steps=steps)


def _fits_with(event, terms, *, sigma=None, steps=None):
    from dataclasses import replace  # noqa: PLC0415

    if sigma is not None and isinstance(event, StepwiseDpSgd):
        (segment,) = event.schedule
        event = replace(event, schedule=(replace(segment, noise_multiplier=sigma),))
    elif sigma is not None:
        event = replace(event, noise_multiplier=sigma)
    elif isinstance(event, Gaussian):
        event = replace(event, count=steps)
    else:
        event = prefix(event, steps)
    charge = ledger.price(event, terms)
    return ledger.admits(ledger.caps(terms), ledger.opening_balance(terms), charge)


def test_nothing_is_suggested_for_what_has_no_noise_or_steps():
    terms = _terms("pure", epsilon="1.0")
    event = RandomizedResponse(epsilon=3.0)
    suggested = ledger.suggest(event, ledger.caps(terms), ledger.opening_balance(terms), terms)
    assert suggested == (None, None)


def test_a_planned_workload_without_noise_is_refused():
    with pytest.raises(InvalidInput):
        ledger.planned_terms(
            Gaussian(noise_multiplier=0.0),
            epsilon=Decimal(1),
            delta=Decimal("1e-5"),
            neighboring=ADD,
            privacy_unit="patient",
        )
