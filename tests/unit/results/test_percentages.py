"""A percentage is 0% or 100% only where nothing or all is meant."""

from __future__ import annotations

import pytest

from runner.cli.reports import format_interval, format_success
from runner.results.statistics import wilson_interval
from runner.types.time_shares import percent_text


@pytest.mark.parametrize(
    ("n", "of", "whole", "tenths"),
    [
        (0, 300, "0%", "0.0%"),
        (1, 300, "<1%", "0.3%"),
        (1, 9_000, "<1%", "<0.1%"),
        (150, 300, "50%", "50.0%"),
        (299, 300, ">99%", "99.7%"),
        (8_999, 9_000, ">99%", ">99.9%"),
        (300, 300, "100%", "100.0%"),
    ],
)
def test_no_percentage_is_rounded_onto_nothing_or_all(n: int, of: int, whole: str, tenths: str) -> None:
    assert (percent_text(n / of), percent_text(n / of, 1)) == (whole, tenths)
    assert format_success(n / of, of, of) == tenths


@pytest.mark.parametrize("n", [1, 3, 7, 10, 300, 9_999])
def test_an_interval_that_reaches_all_or_nothing_says_so_in_spite_of_rounding(n: int) -> None:
    assert format_interval(wilson_interval(n, n)).endswith(" to 100.0%")
    assert format_interval(wilson_interval(0, n)).startswith("0.0% to ")
