"""Whose turn it is: what a person does is answered before more of a bus is taken in."""

from __future__ import annotations

import asyncio
from typing import Final

MAX_WAIT_S: Final = 0.025
"""Seconds after which more is taken in all the same: not everything that a person does changes the screen."""

MAX_TOTAL_WAIT_S: Final = 0.1
"""The same where much is done that changes nothing, such as a wheel that turns on at the end of a list."""


class InputPriority:
    """Between the screen and those who follow a bus, all of one event loop."""

    def __init__(self) -> None:
        """Nobody waits for an answer."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def input_received(self) -> None:
        """A person has done something."""
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
        """The screen shows something new."""
        self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait for the turn of those who take in what is said."""
        await self._idle.wait()
