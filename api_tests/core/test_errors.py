"""Errors cross process borders whole."""

import pickle

import pytest

from service.core.errors import BudgetExceeded, InvalidInput, NotCertified
from service.core.noise_log import SequenceGap


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("Too large.", pointer="/epsilon", code="OUT_OF_RANGE"),
        NotCertified("No answer.", code="CALCULATION_TOO_LONG"),
        BudgetExceeded("No room.", fields={"dataset_id": "ds_1"}),
        SequenceGap(expected_step=3, found_step=5, line=0),
    ],
)
def test_an_error_is_the_same_after_a_journey_between_processes(error):
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
