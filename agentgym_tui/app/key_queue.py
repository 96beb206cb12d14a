"""Handles keys one at a time, so that keys typed ahead act on the screen or dialog that the key before them opens."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from textual import events
    from textual.app import App
    from textual.message_pump import MessagePump

_CHECK_S: Final = 0.01
"""Seconds between two checks whether a screen that is being mounted accepts keys."""


class KeyQueue:
    """Keys that wait until the messages caused by the key before them have been handled, however long that takes.

    A key may open a dialog in several steps: the focused list posts a message, which passes through its ancestors to
    the screen, which opens the dialog, whose widgets are mounted later. A callback that takes the same way through
    the same queues arrives after all of that. There is no limit of time: on a busy machine a key that no longer waits
    acts on the wrong screen, or on one that is not ready and ignores it.

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
        self._waits_in: MessagePump | None = None

    async def add(self, key: events.Key) -> None:
        """Handle a key now, or after the keys before it."""
        self._waiting.append(key)
        # a queue that ended with the callback in it never calls it
        if self._waits_in is None or not self._waits_in.is_running:
            await self._handle_next()

    async def _handle_next(self) -> None:
        if not self._waiting:
            self._waits_in = None
            return
        self._waits_in = self._app
        if not self._is_ready():
            self._app.set_timer(_CHECK_S, self._handle_next)
            return
        path = self._path()
        await self._handle(self._waiting.popleft())
        await self._follow(path)

    def _path(self) -> Iterator[MessagePump]:
        """Yield the queues that the effects of a key pass through; the last ones as they are when they are reached."""
        yield from (self._app.focused or self._app.screen).ancestors_with_self
        yield self._app.screen
        yield self._app
        yield self._app.screen
        yield self._app

    async def _follow(self, path: Iterator[MessagePump]) -> None:
        """Pass through the queues of ``path``, then handle the next key."""
        for pump in path:
            if pump.is_running and pump.call_later(self._follow, path):
                self._waits_in = pump
                return
        await self._handle_next()
