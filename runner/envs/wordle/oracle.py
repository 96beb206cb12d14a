"""Oracle of Wordle: narrows the candidates down by the guesses and their marks, without the hidden word."""

from __future__ import annotations

import random
from collections.abc import Sequence

from runner.envs.wordle.rules import Marking, filter_candidates

MANY_WORDS = 500
OPENING = "tales"
"""First guess among more than ``MANY_WORDS`` candidates; it splits the 3,568 shipped words into 165 classes."""
MARKINGS_PER_GUESS = 10_000
"""Maximum number of markings computed per guess, about 20 ms."""


class WordleOracle:
    """Guesses the word whose marks split the candidates into the most classes.

    Args:
        words: all valid words.
        marking: the marking rules of the episode.
        history: the ``(guess, marks)`` pairs of the episode; the environment appends each new pair.
        seed: selects the guesses to compare if there are too many guesses to compare all of them.
    """

    def __init__(
        self, words: Sequence[str], marking: Marking, history: Sequence[tuple[str, str]], seed: int | None
    ) -> None:
        self._words = words
        self._marking = marking
        self._history = history
        self._random = random.Random(seed or 0)
        self._candidates: Sequence[str] = words
        self._n_read = 0

    def next_action(self) -> str:
        """Return the next guess."""
        for guess, marks in self._history[self._n_read :]:
            self._candidates = filter_candidates(self._candidates, self._marking, guess, marks)
        self._n_read = len(self._history)
        if len(self._candidates) > MANY_WORDS:
            return OPENING
        if len(self._candidates) <= 2:
            return self._candidates[0]
        return max(self._sample_guesses(), key=self._n_classes)

    def _sample_guesses(self) -> list[str]:
        # candidates come first, so that a candidate wins a tie
        n_guesses = MARKINGS_PER_GUESS // len(self._candidates)
        candidates = self._random.sample(self._candidates, min(n_guesses, len(self._candidates)))
        others = self._random.sample(self._words, min(n_guesses - len(candidates), len(self._words)))
        return candidates + others

    def _n_classes(self, guess: str) -> int:
        return len({self._marking(guess, word) for word in self._candidates})
