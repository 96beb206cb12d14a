"""Gives input priority over bus messages: a key press is shown before more messages are applied."""

from __future__ import annotations

import asyncio
from typing import Final

MAX_WAIT_S: Final = 0.025
"""Seconds after which messages are applied although nothing was painted; not all input changes the screen."""

MAX_TOTAL_WAIT_S: Final = 0.1
"""The same for continuous input that changes nothing, such as a wheel turned at the end of a list."""


class InputPriority:
    """Coordinates the screen and the readers of a bus, all in one event loop."""

    def __init__(self) -> None:
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def input_received(self) -> None:
        """Record input from the user."""
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
        """Wait until pending input has been painted."""
        await self._idle.wait()
