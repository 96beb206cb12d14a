"""What happened to the following itself, such as lost connections, to be told to the user."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from agentgym_tui.store.bounds import MAX_CAUSE, count

MAX_NOTES: Final = 200


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

    def add(self, text: str, n: int) -> None:
        """Add one."""
        text = text[:MAX_CAUSE]
        if self.notes and self.notes[-1].text == text:
            n += self.notes.pop().n
        self.notes.append(Note(text, self._now(), count(n)))
