"""What happened to the following itself, such as lost connections, to be told to the user."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from agentgym_tui.state.limits import MAX_CAUSE, count

MAX_NOTES: Final = 200
FRESH_S: Final = 15.0
SHOWN_S: Final = 60.0
"""Seconds for which the newest is shown; later it would look as if it had just happened."""


class Note(NamedTuple):
    """Something to tell, hostile text: when, by the console's monotonic clock, and of how many messages (``n``)."""

    text: str
    at: float
    n: int = 0


class Notes:
    """The newest notes, the newest last; what is said again right away counts up."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Start empty."""
        self.notes: deque[Note] = deque(maxlen=MAX_NOTES)
        self._now = now
        self._told: tuple[Note | None, Note | None] = (None, None)

    @property
    def newest(self) -> Note | None:
        """The newest one, unless it is old."""
        return self.notes[-1] if self.notes and self.notes[-1].at >= self._now() - SHOWN_S else None

    @property
    def ticking(self) -> bool:
        """Whether one may become old."""
        return self._told != (None, None)

    def tick(self) -> bool:
        """Whether one has become old since it was told."""
        before, self._told = self._told, (self.newest, self.fresh_loss)
        return self._told != before

    @property
    def fresh_loss(self) -> Note | None:
        """The newest that tells of messages that did not come, while it is new."""
        since = self._now() - FRESH_S
        return next((note for note in reversed(self.notes) if note.n and note.at >= since), None)

    def add(self, text: str, n: int) -> None:
        """Add one."""
        text = text[:MAX_CAUSE]
        if self.notes and self.notes[-1].text == text:
            n += self.notes.pop().n
        self.notes.append(Note(text, self._now(), count(n)))
        self._told = (self.newest, self.fresh_loss)
