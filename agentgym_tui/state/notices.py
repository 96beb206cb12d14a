"""Notices about the subscription itself, such as lost connections and lost messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, clamp_count

MAX_NOTICES: Final = 200
"""Notices that are kept."""

RECENT_S: Final = 15.0
"""Seconds for which a loss of messages counts as recent."""

SHOWN_S: Final = 60.0
"""Seconds for which the newest notice is shown; later it would look as if it had only just happened."""


class FeedNotice(NamedTuple):
    """A notice.

    Attributes:
        text: untrusted text.
        at: seconds of the console's monotonic clock.
        n: number of lost messages; 0 where the notice is about something else.
    """

    text: str
    at: float
    n: int = 0


class NoticeList:
    """The newest notices, the newest last; a notice that repeats the one before adds to its count.

    Args:
        now: the console's monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.notices: deque[FeedNotice] = deque(maxlen=MAX_NOTICES)
        self._now = now
        self._last_shown: tuple[FeedNotice | None, FeedNotice | None] = (None, None)

    @property
    def newest(self) -> FeedNotice | None:
        """The newest notice, unless it is older than ``SHOWN_S``."""
        return self.notices[-1] if self.notices and self.notices[-1].at >= self._now() - SHOWN_S else None

    @property
    def needs_tick(self) -> bool:
        """Whether a shown notice may become old."""
        return self._last_shown != (None, None)

    def tick(self) -> bool:
        """Return whether a shown notice has become old since the last call."""
        before, self._last_shown = self._last_shown, (self.newest, self.recent_loss)
        return self._last_shown != before

    @property
    def recent_loss(self) -> FeedNotice | None:
        """The newest notice about lost messages, unless it is older than ``RECENT_S``."""
        since = self._now() - RECENT_S
        return next((note for note in reversed(self.notices) if note.n and note.at >= since), None)

    def add(self, text: str, n: int) -> None:
        """Add a notice about ``n`` lost messages."""
        text = text[:MAX_CAUSE_CHARS]
        if self.notices and self.notices[-1].text == text:
            n += self.notices.pop().n
        self.notices.append(FeedNotice(text, self._now(), clamp_count(n)))
        self._last_shown = (self.newest, self.recent_loss)
