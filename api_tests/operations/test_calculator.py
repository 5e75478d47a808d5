"""The pool of calculations: a limit that ends one call, and what becomes of the others."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.calculator import Calculator
from service.core.errors import DomainError, NotCertified


def test_a_call_that_runs_too_long_leaves_those_behind_it_with_an_error_to_retry():
    calculator = Calculator(processes=1, timeout_s=1.5)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(calculator.run, time.sleep, 30.0 + i) for i in range(4)]
        found = [one.exception() for one in asked]
    assert any(isinstance(error, NotCertified) for error in found)
    assert all(isinstance(error, DomainError) for error in found), found
    calculator.close()


def test_a_closed_pool_is_an_error_to_retry_and_opens_again():
    calculator = Calculator(processes=1, timeout_s=30)
    calculator.close()
    with pytest.raises(DomainError) as caught:
        calculator.run(divmod, 7, 2)
    assert caught.value.retryable
    assert calculator.run(divmod, 7, 2) == (3, 1)
    calculator.close()
