"""The text of a model while it comes: many small pieces, told a few times a second."""

from __future__ import annotations

from collections.abc import Callable

COALESCE_S = 0.1
"""Seconds between two tellings, so that a fast model does not make an item of each token."""


class TokenStream:
    """Collects the pieces of one round after the other; used on the loop that plays.

    Args:
        now: a monotonic clock in seconds.
        tell: takes the round's index and the text since the last telling, an empty one for ``restart``.
    """

    def __init__(self, now: Callable[[], float], tell: Callable[[int, str], None]) -> None:
        """Start before the first round."""
        self._now = now
        self._tell = tell
        self._step = 0
        self._pieces: list[str] = []
        self._told = 0.0
        self._has_told = False

    def begin(self, step: int) -> None:
        """What comes from here on belongs to round ``step``."""
        self._step = step
        self._has_told = False
        self._pieces.clear()

    def add(self, text: str) -> None:
        """Take the next piece; an empty one is a ``restart``."""
        if not text:
            self.restart()
            return
        self._pieces.append(text)
        if self._now() - self._told >= COALESCE_S:
            self.flush()

    def flush(self) -> None:
        """Tell what has not been told."""
        if text := "".join(self._pieces):
            self._tell(self._step, text)
            self._has_told = True
        self._pieces.clear()
        self._told = self._now()

    def restart(self) -> None:
        """What came of this round does not count: its endpoint failed, and another answer follows."""
        self._pieces.clear()
        if self._has_told:
            self._has_told = False
            self._tell(self._step, "")
