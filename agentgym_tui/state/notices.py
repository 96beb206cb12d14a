"""Notices about the subscription itself, such as lost connections and lost messages."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, clamp_count

MAX_NOTICES: Final = 200
"""Largest number of notices kept."""

RECENT_S: Final = 15.0
"""Seconds for which a loss of messages counts as recent."""

SHOWN_S: Final = 60.0
"""Seconds for which the newest notice is shown; an older notice would look like news."""


class FeedNotice(NamedTuple):
    """A notice about the subscription.

    Attributes:
        text: what happened; untrusted text.
        at: when the notice arrived, in seconds of the console's monotonic clock.
        n: number of lost messages; 0 for a notice that does not report a loss.
    """

    text: str
    at: float
    n: int = 0


class NoticeList:
    """The newest notices, the newest last.

    A notice with the same text as the previous notice replaces it; the numbers of lost messages are added.

    Args:
        now: returns the time of the console's monotonic clock in seconds.

    Attributes:
        n_lost: number of lost messages of all notices, including those no longer kept.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.notices: deque[FeedNotice] = deque(maxlen=MAX_NOTICES)
        self.n_lost = 0
        self._now = now
        self._last_shown: tuple[FeedNotice | None, FeedNotice | None] = (None, None)

    @property
    def newest(self) -> FeedNotice | None:
        """The newest notice; None if it is older than ``SHOWN_S`` seconds or there is no notice."""
        return self.notices[-1] if self.notices and self.notices[-1].at >= self._now() - SHOWN_S else None

    @property
    def next_expiry_s(self) -> float:
        """Seconds until ``tick`` finds a shown notice too old; infinite if no notice is shown."""
        newest, loss = self._last_shown
        ends = [shown.at + limit for shown, limit in ((newest, SHOWN_S), (loss, RECENT_S)) if shown is not None]
        return min(ends, default=math.inf) - self._now()

    def tick(self) -> bool:
        """Return whether a notice in ``newest`` or ``recent_loss`` has become too old since the last call."""
        before, self._last_shown = self._last_shown, (self.newest, self.recent_loss)
        return self._last_shown != before

    @property
    def recent_loss(self) -> FeedNotice | None:
        """The newest notice about lost messages; None if all of these are older than ``RECENT_S`` seconds."""
        since = self._now() - RECENT_S
        return next((note for note in reversed(self.notices) if note.n and note.at >= since), None)

    def add(self, text: str, n: int) -> None:
        """Add a notice; ``n`` is the number of lost messages, or 0 for a notice that does not report a loss."""
        text = text[:MAX_CAUSE_CHARS]
        self.n_lost = clamp_count(self.n_lost + clamp_count(n))
        if self.notices and self.notices[-1].text == text:
            n += self.notices.pop().n
        self.notices.append(FeedNotice(text, self._now(), clamp_count(n)))
        self._last_shown = (self.newest, self.recent_loss)
