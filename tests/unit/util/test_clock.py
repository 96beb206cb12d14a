"""ULIDs, which are those of ``python-ulid``, a stopwatch that can be paused, and amounts as text."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from runner.util.amounts import format_amount
from runner.util.clock import Stopwatch, derive_ulid, is_ulid, new_ulid, ulid_milliseconds
from tests.support.manual_clock import ManualClock


def test_a_new_ulid_has_the_time_of_its_creation() -> None:
    before, created, after = ULID(), new_ulid(), ULID()
    assert is_ulid(created)
    assert before.milliseconds <= ULID.from_str(created).milliseconds <= after.milliseconds


@pytest.mark.parametrize("milliseconds", [0, 1, 1_700_000_000_123, 2**48 - 1])
def test_a_ulid_keeps_its_time(milliseconds: int) -> None:
    created = new_ulid(milliseconds)
    assert is_ulid(created)
    assert ULID.from_str(created).milliseconds == ulid_milliseconds(created) == milliseconds


def test_ulids_of_one_millisecond_differ() -> None:
    assert len({new_ulid(1) for _ in range(1000)}) == 1000


def test_ulids_of_one_process_increase() -> None:
    created = [new_ulid() for _ in range(5000)]
    assert len({ulid_milliseconds(ulid) for ulid in created}) < 5000
    assert created == sorted(set(created))


def test_a_derived_ulid_has_the_time_of_the_other_and_the_digest() -> None:
    ulid, digest = ULID(), os.urandom(10)
    assert derive_ulid(str(ulid), digest) == str(ULID.from_bytes(ulid.bytes[:6] + digest))


def test_a_stopwatch_does_not_count_its_pauses() -> None:
    clock = ManualClock()
    watch = Stopwatch(clock)
    watch.set_paused(False)
    clock.now += 5
    for _ in range(2):
        watch.set_paused(True)
        clock.now += 30
        assert watch.seconds == 5
    watch.set_paused(False)
    clock.now += 2
    assert watch.seconds == 7


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
