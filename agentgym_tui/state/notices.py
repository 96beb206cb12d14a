"""What happened to the following itself, such as lost connections, to be told to the user."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from agentgym_tui.state.limits import MAX_CAUSE_CHARS, clamp_count

MAX_NOTICES: Final = 200
RECENT_S: Final = 15.0
SHOWN_S: Final = 60.0
"""Seconds for which the newest is shown; later it would look as if it had just happened."""


class FeedNotice(NamedTuple):
    """Something to tell, hostile text: when, by the console's monotonic clock, and of how many messages (``n``)."""

    text: str
    at: float
    n: int = 0


class NoticeList:
    """The newest notes, the newest last; what is said again right away counts up."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Start empty."""
        self.notices: deque[FeedNotice] = deque(maxlen=MAX_NOTICES)
        self._now = now
        self._last_shown: tuple[FeedNotice | None, FeedNotice | None] = (None, None)

    @property
    def newest(self) -> FeedNotice | None:
        """The newest one, unless it is old."""
        return self.notices[-1] if self.notices and self.notices[-1].at >= self._now() - SHOWN_S else None

    @property
    def needs_tick(self) -> bool:
        """Whether one may become old."""
        return self._last_shown != (None, None)

    def tick(self) -> bool:
        """Whether one has become old since it was told."""
        before, self._last_shown = self._last_shown, (self.newest, self.recent_loss)
        return self._last_shown != before

    @property
    def recent_loss(self) -> FeedNotice | None:
        """The newest that tells of messages that did not come, while it is new."""
        since = self._now() - RECENT_S
        return next((note for note in reversed(self.notices) if note.n and note.at >= since), None)

    def add(self, text: str, n: int) -> None:
        """Add one."""
        text = text[:MAX_CAUSE_CHARS]
        if self.notices and self.notices[-1].text == text:
            n += self.notices.pop().n
        self.notices.append(FeedNotice(text, self._now(), clamp_count(n)))
        self._last_shown = (self.newest, self.recent_loss)
