from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, pairwise
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.results.statistics import pass_at_k, pass_hat_k, sign_test, wilson_interval

ATTEMPTS = st.lists(st.booleans(), min_size=1, max_size=9)
COUNTS = st.integers(1, 10**5).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
QUANTILE = NormalDist().inv_cdf(0.975)

SCIPY_INTERVALS = [
    (0, 1, 0.0, 0.7934506856227626),
    (3, 10, 0.10779126740630102, 0.6032218525388546),
    (1, 200, 0.0008831687156009762, 0.02777370439789293),
    (123, 200, 0.5459986722024608, 0.6796669027307678),
    (99999, 100000, 0.9999433529034095, 0.9999982347522695),
]
"""Successes, n, and ``scipy.stats.binomtest(successes, n).proportion_ci(0.95, "wilson")`` of SciPy 1.17.1."""

SCIPY_P_VALUES = [
    (0, 0, 1.0),
    (6, 14, 0.11531829833984375),
    (1000, 1000, 1.0),
    (260, 200, 0.0058839224731039984),
    (3, 41, 1.6183321349672042e-09),
]
"""Wins, losses, and ``scipy.stats.binomtest(wins, wins + losses).pvalue`` of SciPy 1.17.1."""


@pytest.mark.parametrize(("successes", "n", "low", "high"), SCIPY_INTERVALS)
def test_intervals_equal_those_of_scipy(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=1e-12)


@given(COUNTS)
def test_an_interval_contains_the_rates_that_a_score_test_does_not_reject(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1

    def z_score(rate: float) -> float:
        return abs(successes / n - rate) / math.sqrt(rate * (1 - rate) / n)

    for bound in (low, high):
        if 1e-12 < bound < 1 - 1e-12:
            assert z_score(bound) == pytest.approx(QUANTILE, rel=1e-6)


@given(COUNTS)
def test_an_interval_is_mirrored_when_successes_and_failures_are_swapped(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert wilson_interval(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_without_episodes_every_rate_is_possible() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(ATTEMPTS, st.data())
def test_pass_at_k_and_pass_hat_k_are_the_shares_of_subsets_with_a_success_and_with_only_successes(
    attempts: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(attempts)))
    subsets = list(combinations(attempts, k))
    counts = sum(attempts), len(attempts), k
    assert pass_at_k(*counts) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(*counts) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@given(COUNTS, st.integers(1, 64))
def test_pass_hat_k_of_many_attempts_is_the_probability_of_successive_draws(counts: tuple[int, int], k: int) -> None:
    successes, n = counts
    k = min(k, n)
    drawn = Fraction(1)
    for index in range(k):
        drawn *= Fraction(max(successes - index, 0), n - index)
    assert pass_hat_k(successes, n, k) == pytest.approx(float(drawn), abs=1e-15)
    assert pass_at_k(n - successes, n, k) == pytest.approx(1 - float(drawn), abs=1e-15)


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_sign_test_of_many_tasks_adds_the_probabilities_of_all_splits_as_uneven(wins: int, losses: int) -> None:
    n = wins + losses
    row = [1]
    for _ in range(n):
        row = [1, *map(sum, pairwise(row)), 1]
    as_uneven = sum(count for k, count in enumerate(row) if abs(2 * k - n) >= abs(wins - losses))
    assert sign_test(wins, losses) == pytest.approx(float(Fraction(as_uneven, 2**n)), rel=1e-12)


@pytest.mark.parametrize(("wins", "losses", "p_value"), SCIPY_P_VALUES)
def test_p_values_equal_those_of_scipy(wins: int, losses: int, p_value: float) -> None:
    assert sign_test(wins, losses) == pytest.approx(p_value, rel=1e-9)


@pytest.mark.parametrize(("successes", "n", "k"), [(3, 2, 1), (-1, 2, 1), (1, 2, 3), (1, 2, 0)])
def test_impossible_counts_are_refused(successes: int, n: int, k: int) -> None:
    with pytest.raises(ValueError, match="no subsets"):
        pass_at_k(successes, n, k)
    with pytest.raises(ValueError, match="no subsets"):
        pass_hat_k(successes, n, k)


def test_negative_counts_have_no_p_value() -> None:
    with pytest.raises(ValueError, match="neither can be negative"):
        sign_test(-1, 2)
