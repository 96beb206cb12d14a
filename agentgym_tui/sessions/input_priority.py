"""Gives user input priority over bus messages: the effect of a key is painted before more messages are applied."""

from __future__ import annotations

import asyncio
from typing import Final

MAX_WAIT_S: Final = 0.025
"""Seconds to wait for a repaint after input; then messages are applied, because not all input changes the screen."""

MAX_TOTAL_WAIT_S: Final = 0.1
"""Seconds to wait for a repaint during continuous input, such as a mouse wheel turned at the end of a list."""


class InputPriority:
    """Lets the readers of a bus wait until the screen has painted pending input; used in one event loop only."""

    def __init__(self) -> None:
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def input_received(self) -> None:
        """Record that the user has pressed a key or used the mouse."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        if self._idle.is_set():
            self._idle.clear()
            self._busy_since = loop.time()
        if (now := loop.time()) < self._busy_since + MAX_TOTAL_WAIT_S:
            self._timer = loop.call_at(min(now + MAX_WAIT_S, self._busy_since + MAX_TOTAL_WAIT_S), self._idle.set)
        else:
            self._idle.set()

    def painted(self) -> None:
        """Record that the screen was painted."""
        self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until the screen has painted pending input, or until the longest wait is over."""
        await self._idle.wait()
