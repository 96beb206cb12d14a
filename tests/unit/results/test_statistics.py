from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.results.statistics import pass_at_k, pass_hat_k, sign_test

ATTEMPTS = st.lists(st.booleans(), min_size=1, max_size=9)


@given(ATTEMPTS, st.data())
def test_pass_at_k_and_pass_hat_k_are_the_shares_of_subsets_with_a_success_and_with_only_successes(
    attempts: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(attempts)))
    subsets = list(combinations(attempts, k))
    counts = sum(attempts), len(attempts), k
    assert pass_at_k(*counts) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(*counts) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@given(st.integers(0, 6), st.integers(0, 6))
def test_the_sign_test_is_the_share_of_equally_likely_results_that_are_at_least_as_uneven(
    wins: int, losses: int
) -> None:
    results = [abs(sum(signs)) for signs in product((-1, 1), repeat=wins + losses)]
    as_uneven = [result for result in results if result >= abs(wins - losses)]
    assert sign_test(wins, losses) == pytest.approx(len(as_uneven) / len(results))


def test_the_sign_test_equals_published_values() -> None:
    assert sign_test(8, 1) == pytest.approx(0.0390625)
    assert sign_test(0, 0) == 1.0
    assert sign_test(1000, 1000) == 1.0


@pytest.mark.parametrize(("successes", "n", "k"), [(3, 2, 1), (-1, 2, 1), (1, 2, 3), (1, 2, 0)])
def test_impossible_counts_are_refused(successes: int, n: int, k: int) -> None:
    with pytest.raises(ValueError, match="no subsets"):
        pass_at_k(successes, n, k)
    with pytest.raises(ValueError, match="no subsets"):
        pass_hat_k(successes, n, k)


def test_negative_counts_have_no_p_value() -> None:
    with pytest.raises(ValueError, match="neither can be negative"):
        sign_test(-1, 2)
