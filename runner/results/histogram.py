"""Histogram of the rewards of a selection's rated episodes."""

from __future__ import annotations

import msgspec

from runner.results.summary import IS_RATED, ResultSource, Selection
from runner.store.safe_json import finite

N_BINS = 20
"""Number of bins of equal width."""


class Histogram(msgspec.Struct, frozen=True):
    """Numbers of episodes by reward, in bins of equal width from ``low`` to ``high``.

    The range includes all rewards, 0 and 1. A reward on the border of two bins is in the upper one.
    """

    low: float
    high: float
    counts: list[int]


def reward_histogram(source: ResultSource, selection: Selection) -> Histogram | None:
    """Return the histogram of a selection; None if no episode of it is rated.

    Raises:
        StoreError: the index cannot be read, or has values that no episode has.
    """
    condition, parameters = selection.condition()
    rated = f"FROM episodes WHERE {condition} AND {IS_RATED}"
    ((least, most),) = source.select(f"SELECT min(reward), max(reward) {rated}", parameters)
    if least is None:
        return None
    counts = [0] * N_BINS
    try:
        low, high = min(_reward(least), 0.0), max(_reward(most), 1.0)
        query = f"SELECT {_BIN} AS bin, count(*) {rated} GROUP BY bin"
        for number, count in source.select(query, {**parameters, "low": low, "high": high, "n": N_BINS}):
            counts[msgspec.convert(number, int)] = count
    except (ValueError, OverflowError) as exc:
        raise source.unusable(exc) from exc
    return Histogram(low, high, counts)


_BIN = "max(0, min(CAST((reward / 2 - :low / 2) / (:high / 2 - :low / 2) * :n AS INTEGER), :n - 1))"
"""Number of a reward's bin; the rewards are halved because their difference may overflow."""


def _reward(value: object) -> float:
    return finite(msgspec.convert(value, float))
