"""An app that follows a session: when it begins and ends to, and when something is drawn."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from textual import events
from textual.app import App
from textual.timer import Timer

from agentgym_tui.app.notifications import BatchEndDetector, FailoverDetector, tell_ends, tell_fall
from agentgym_tui.config.settings import Settings
from agentgym_tui.screens.base import Redrawable
from agentgym_tui.services.timers import RedrawThrottle, ReliableTimers
from agentgym_tui.sessions.protocols import Session

TICK_S: Final = 1.0

_DONE: Final = (events.Key, events.Paste, events.MouseDown, events.MouseScrollDown, events.MouseScrollUp)
"""What a person wants an answer to; where the mouse is on its way to is none of these."""


class RefreshingApp(App[None], ReliableTimers, inherit_bindings=False):
    """Has what a session says drawn on the screens that can.

    Args:
        session: followed from the first paint on, closed at the end.
        settings: how ends of batches are told.
        now: a monotonic clock, seconds.
    """

    def __init__(self, session: Session, settings: Settings, now: Callable[[], float]) -> None:
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)  # else colours would become greys
        self.session, self.settings = session, settings
        self._ends, self._falls = BatchEndDetector(), FailoverDetector()
        self._following: asyncio.Task[None] | None = None
        self._pace = RedrawThrottle(now)
        self._next_drawing: Timer | None = None
        self._next_tick: Timer | None = None

    def on_mount(self) -> None:
        """Begin to follow once there is something to see."""
        self.session.store.on_change = self._changed
        self.call_after_refresh(self._follow)

    async def on_unmount(self) -> None:
        """Stop following."""
        self.session.store.on_change = None
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self.session.close()

    async def on_event(self, event: events.Event) -> None:
        """What a person does comes before what a bus says."""
        if isinstance(event, _DONE) and not event.is_forwarded:
            self.session.input_priority.input_received()
        await super().on_event(event)

    def post_display_hook(self) -> None:
        """Something new is on the screen."""
        self.session.input_priority.painted()

    def _follow(self) -> None:
        if not gc.isenabled():  # as the command has left it
            gc.freeze()
            gc.enable()
        self._following = asyncio.create_task(self.session.run())
        self._following.add_done_callback(self._ended)
        self._changed()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What failed there ends the console, as it would in a handler of its own."""
        if not task.cancelled():
            failure = task.exception()
        else:
            failure = None if task.cancelling() else RuntimeError("the following was cancelled, by nobody here")
        if failure is not None:
            self.call_later(_fail, failure)

    def _changed(self) -> None:
        """Draw soon; what changes until then is drawn at once."""
        if self._next_drawing is None:
            self._next_drawing = self.set_timer(max(self._pace.wait_s, 0.001), self._draw)

    def _draw(self) -> None:
        self._next_drawing = None
        self._pace.mark_redrawn()
        for screen in reversed(self.screen_stack):
            if isinstance(screen, Redrawable):
                screen.draw(self.session.store)
            if not screen.is_modal:
                break
        store, now, notify = self.session.store, datetime.now(UTC), self.settings.notify
        tell_fall(self, self._falls.look(store, now), notify)
        tell_ends(self, self._ends.look(store, now), notify)
        self._keep_ticking()

    def _tick(self) -> None:
        self._next_tick = None
        self.session.store.tick()
        self._keep_ticking()

    def _keep_ticking(self) -> None:
        store = self.session.store
        if self._next_tick is None and store.needs_tick:
            self._next_tick = self.set_timer(min(TICK_S, max(store.next_loss_s, 0.0) + 0.01), self._tick)


def _fail(failure: BaseException) -> None:
    raise failure
