"""Handles keys one at a time, so that keys typed ahead act on the screen or dialog that the key before them opens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from textual import events
    from textual.app import App
    from textual.message_pump import MessagePump

MAX_WAIT_S: Final = 1.0
"""Seconds after which a waiting key is handled although the screen or the key before it is not ready for it."""

_CHECK_S: Final = 0.01
"""Seconds between two checks whether a screen that is being mounted accepts keys."""


class KeyQueue:
    """Keys that wait until the messages caused by the key before them have been handled.

    A key may open a dialog in several steps: the focused list posts a message, which passes through its ancestors to
    the screen, which opens the dialog, whose widgets are mounted later. A callback that takes the same way through
    the same queues arrives after all of that.

    Args:
        app: the console.
        handle: handles one key.
        is_ready: returns whether the current screen accepts keys.
    """

    def __init__(
        self,
        app: App[Any],
        handle: Callable[[events.Key], Awaitable[None]],
        is_ready: Callable[[], bool],
    ) -> None:
        self._app, self._handle, self._is_ready = app, handle, is_ready
        self._waiting: deque[events.Key] = deque()
        self._wait_until: float | None = None
        self._n_handled = 0

    async def add(self, key: events.Key) -> None:
        """Handle a key now, or after the keys before it."""
        self._waiting.append(key)
        if self._wait_until is None:
            await self._handle_next()
        elif len(self._waiting) == 1:
            self._give_up_later()

    async def _handle_next(self) -> None:
        if not self._waiting:
            self._wait_until = None
            return
        now = time.monotonic()
        if self._wait_until is None:
            self._wait_until = now + MAX_WAIT_S
        if not self._is_ready() and now < self._wait_until:
            self._app.set_timer(_CHECK_S, self._handle_next)
            return
        self._n_handled += 1
        self._wait_until = now + MAX_WAIT_S
        path = self._path()
        await self._handle(self._waiting.popleft())
        if self._waiting:
            self._give_up_later()
        await self._follow(path, self._n_handled)

    def _path(self) -> Iterator[MessagePump]:
        """Yield the queues that the effects of a key pass through; the last ones as they are when they are reached."""
        yield from (self._app.focused or self._app.screen).ancestors_with_self
        yield self._app.screen
        yield self._app
        yield self._app.screen
        yield self._app

    async def _follow(self, path: Iterator[MessagePump], number: int) -> None:
        """Pass through the queues of ``path``, then handle the key after key ``number``."""
        if number != self._n_handled:
            return  # the wait was too long, and another key was handled meanwhile
        for pump in path:
            if pump.is_running and pump.call_later(self._follow, path, number):
                return
        await self._handle_next()

    def _give_up_later(self) -> None:
        self._app.set_timer(MAX_WAIT_S, partial(self._give_up, self._n_handled))

    async def _give_up(self, number: int) -> None:
        if number == self._n_handled and self._waiting:
            await self._handle_next()
