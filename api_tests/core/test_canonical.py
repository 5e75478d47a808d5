"""RFC 8785: numbers as ECMAScript prints them, names by UTF-16 code units."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.canonical import canonical, number
from service.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("value", "text"),
    # RFC 8785, appendix B, and the border cases of Number::toString.
    [
        (0.0, "0"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (333333333.3333332, "333333333.3333332"),
        (0.000001, "0.000001"),
        (1e-7, "1e-7"),
        (-0.0000033333333333333333, "-0.0000033333333333333333"),
        (1.1, "1.1"),
        (600.0, "600"),
        (1e-5, "0.00001"),
        (1234.5, "1234.5"),
    ],
)
def test_a_number_is_printed_as_ecmascript_prints_it(value, text):
    assert number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_equal(value):
    assert float(number(value)) == value


def test_names_are_sorted_by_utf16_code_units():
    # RFC 8785, section 3.2.3: the emoji (a surrogate pair) sorts before U+FB33.
    assert canonical({"\ufb33": 1, "\U0001f600": 2, "1": 3, "\r": 4}) == (
        '{"\\r":4,"1":3,"\U0001f600":2,"\ufb33":1}'.encode()
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(json_values)
def test_the_canonical_form_is_json_of_the_same_value_and_stays_as_it_is(value):
    once = canonical(value)
    assert json.loads(once) == value
    assert canonical(json.loads(once)) == once


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 2**53 + 1, {"a": object()}, "\ud800", {"\ud800": 1}]
)
def test_what_has_no_canonical_form_is_refused(value):
    with pytest.raises(InvalidInput):
        canonical(value)
