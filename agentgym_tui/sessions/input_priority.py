"""Whose turn it is: what a person does is answered before more of a bus is taken in."""

from __future__ import annotations

import asyncio
from typing import Final

REST_S: Final = 0.025
"""Seconds after which more is taken in all the same: not everything that a person does changes the screen."""

MOST_S: Final = 0.1
"""The same where much is done that changes nothing, such as a wheel that turns on at the end of a list."""


class Turns:
    """Between the screen and those who follow a bus, all of one event loop."""

    def __init__(self) -> None:
        """Nobody waits for an answer."""
        self._free = asyncio.Event()
        self._free.set()
        self._since = 0.0
        self._over: asyncio.TimerHandle | None = None

    def asked(self) -> None:
        """A person has done something."""
        if self._over is not None:
            self._over.cancel()
        loop = asyncio.get_running_loop()
        if self._free.is_set():
            self._free.clear()
            self._since = loop.time()
        if (now := loop.time()) < self._since + MOST_S:
            self._over = loop.call_at(min(now + REST_S, self._since + MOST_S), self._free.set)
        else:
            self._free.set()

    def answered(self) -> None:
        """The screen shows something new."""
        self._free.set()

    async def mine(self) -> None:
        """Wait for the turn of those who take in what is said."""
        await self._free.wait()
