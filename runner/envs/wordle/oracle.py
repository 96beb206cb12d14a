"""A planner that narrows the candidates down; it sees the guesses and their marks, never the hidden word."""

from __future__ import annotations

import random
from collections.abc import Sequence

from runner.envs.wordle.rules import Marking, filter_candidates

MANY_WORDS = 500
OPENING = "tales"
"""The first guess, where a search would be too slow: it splits the 3,568 shipped words into 165 classes."""
MARKINGS_PER_GUESS = 10_000
"""How many markings one search may cost; about 20 ms."""


class WordleOracle:
    """Guesses what tells the most candidates apart.

    Args:
        words: what can be guessed.
        marking: the rules of the episode.
        history: the ``(guess, marks)`` so far, which the episode extends.
        seed: decides which guesses are weighed where there are too many to weigh all.
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
        """The next guess."""
        for guess, marks in self._history[self._n_read :]:
            self._candidates = filter_candidates(self._candidates, self._marking, guess, marks)
        self._n_read = len(self._history)
        if len(self._candidates) > MANY_WORDS:
            return OPENING
        if len(self._candidates) <= 2:
            return self._candidates[0]
        return max(self._weighed(), key=self._n_classes)

    def _weighed(self) -> list[str]:
        """As many guesses as there is time for: candidates first, so that one wins a tie, then others to split them."""
        n_weighed = MARKINGS_PER_GUESS // len(self._candidates)
        own = self._random.sample(self._candidates, min(n_weighed, len(self._candidates)))
        others = self._random.sample(self._words, min(n_weighed - len(own), len(self._words)))
        return own + others

    def _n_classes(self, guess: str) -> int:
        return len({self._marking(guess, word) for word in self._candidates})
