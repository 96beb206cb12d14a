"""How long to wait before trying again."""

from __future__ import annotations

import random


class Pauses:
    """Seconds between attempts: growing to ``longest``, each shortened by chance so that clients spread."""

    def __init__(self, longest: float) -> None:
        """Start small."""
        self._longest = longest
        self.reset()

    def reset(self) -> None:
        """Start small again."""
        self._next = 0.05

    def next(self) -> float:
        """How long to wait now."""
        self._next = min(self._next * 2, self._longest)
        return self._next * random.uniform(0.5, 1.0)
