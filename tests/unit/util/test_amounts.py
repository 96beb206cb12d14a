from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.util.amounts import format_amount


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1e-12, "< 0.00000001"),
        (0.0000123, "0.0000123"),
        (0.002, "0.002"),
        (0.5, "0.5"),
        (0.99999, "1.00"),
        (1.2, "1.20"),
        (999.994, "999.99"),
        (12_345.6, "12,346"),
        (3e13, "> 1T"),
        (float("nan"), "-"),
    ],
)
def test_amounts_have_no_exponent(value: float, text: str) -> None:
    assert format_amount(value) == text
    assert format_amount(value, "USD") == f"{text} USD" if text != "-" else text


@given(st.floats(min_value=1e-8, max_value=1e12, exclude_max=True))
def test_an_amount_is_near_its_value_and_short(value: float) -> None:
    text = format_amount(value)
    assert re.fullmatch(r"[0-9,]+(\.[0-9]+)?", text) and len(text) <= 17
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.006)
