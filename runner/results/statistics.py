"""Statistics of success rates: intervals, pass@k, pass^k, and the paired test of two selections."""

from __future__ import annotations

import math

_Z = 1.959963984540054
"""97.5% quantile of the standard normal distribution, for 95% intervals."""


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """Return the 95% Wilson score interval of a success rate (E. B. Wilson, 1927); (0, 1) if ``n`` is 0."""
    if n == 0:
        return 0.0, 1.0
    rate, spread = successes / n, _Z * _Z / n
    center = rate + spread / 2
    half_width = _Z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n))
    low, high = (center - half_width) / (1 + spread), (center + half_width) / (1 + spread)
    return max(0.0, min(low, rate)), min(1.0, max(high, rate))  # also where rounding moves a bound past the rate


def pass_at_k(successes: int, n: int, k: int) -> float:
    """Return the probability that at least one of ``k`` attempts of a task succeeds.

    The unbiased estimate of Chen et al., "Evaluating Large Language Models Trained on Code" (2021): the share of the
    subsets of ``k`` out of the ``n`` played attempts that contain a success. Raises ``ValueError`` if ``k`` is not
    between 1 and ``n``, or ``successes`` not between 0 and ``n``.
    """
    return 1.0 - pass_hat_k(n - successes, n, k)


def pass_hat_k(successes: int, n: int, k: int) -> float:
    """Return the probability that all of ``k`` attempts of a task succeed, written pass^k.

    The unbiased estimate of Yao et al., "tau-bench" (2024): the share of the subsets of ``k`` out of the ``n`` played
    attempts that contain only successes. Raises like ``pass_at_k``.
    """
    if not (0 <= successes <= n and 1 <= k <= n):
        raise ValueError(f"{n} attempts with {successes} of one kind have no subsets of {k}")
    return math.comb(successes, k) / math.comb(n, k)


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of the exact sign test: the probability of a split at least as uneven by chance.

    With one attempt per task it is McNemar's exact test (Q. McNemar, 1947). Ties do not count. Raises ``ValueError`` if
    a number is negative.
    """
    if min(wins, losses) < 0:
        raise ValueError(f"{wins} wins and {losses} losses: neither can be negative")
    n = wins + losses
    tail = sum(math.comb(n, i) for i in range(min(wins, losses) + 1))
    return min(1.0, tail / (1 << max(n - 1, 0)))
