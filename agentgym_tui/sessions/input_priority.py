"""Gives user input priority over bus messages: the effect of a key is painted before more messages are applied."""

from __future__ import annotations

import asyncio
from typing import Final

MAX_WAIT_S: Final = 0.025
"""Seconds to wait for a repaint after input; then messages are applied, because not all input changes the screen."""

MAX_TOTAL_WAIT_S: Final = 0.1
"""Seconds to wait for a repaint during continuous input, such as a mouse wheel turned at the end of a list."""


class InputPriority:
    """Lets the readers of a bus wait until the screen has painted pending input; used in one event loop only.

    Between the arrival of a key and its handling, a repaint shows only what has arrived before and ends no wait.
    """

    def __init__(self) -> None:
        self._idle = asyncio.Event()
        self._idle.set()
        self._n_unhandled = 0
        self._busy_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def input_received(self) -> None:
        """Record that the user has pressed a key or used the mouse."""
        if self._idle.is_set():
            self._idle.clear()
            self._busy_since = asyncio.get_running_loop().time()
        self._n_unhandled += 1
        self._limit_wait()

    def input_handled(self) -> None:
        """Record that input was handled; the next repaint shows its effect."""
        self._n_unhandled = max(self._n_unhandled - 1, 0)
        if not self._idle.is_set():
            self._limit_wait()

    def painted(self) -> None:
        """Record that the screen was painted."""
        if not self._n_unhandled:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until the screen has painted pending input, or until the longest wait is over."""
        await self._idle.wait()

    def _limit_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        if (now := loop.time()) < (latest := self._busy_since + MAX_TOTAL_WAIT_S):
            self._timer = loop.call_at(min(now + MAX_WAIT_S, latest), self._give_up)
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._n_unhandled = 0
        self._idle.set()
