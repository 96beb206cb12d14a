"""An app that runs a session, redraws its screens when the session's store changes, and reports ended batches."""

from __future__ import annotations

import asyncio
import gc
import math
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Final

from textual import events
from textual.notifications import SeverityLevel
from textual.timer import Timer

from agentgym_tui.app.key_queue import KeyQueue
from agentgym_tui.app.notifications import (
    TOAST_MARGIN,
    BatchEndDetector,
    FailoverDetector,
    notify_batch_ends,
    notify_failover,
    short_toast,
)
from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.config.settings import Settings
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.services.timers import RedrawThrottle, ReliableTimers
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.textual_compat import OrderedKeysApp

GC_THRESHOLDS: Final = (10_000, 50, 20)
"""Thresholds of the garbage collector.

Hardly any object of the console is part of a reference cycle, and collecting ten thousand new objects takes 2 to 7 ms.
"""

TICK_MARGIN_S: Final = 0.01
"""Seconds after which a limit is surely exceeded."""

_INPUT_EVENTS: Final = (events.Key, events.Paste, events.MouseDown, events.MouseScrollDown, events.MouseScrollUp)
"""Input that expects a visible reaction; mouse movement does not."""


class RefreshingApp(OrderedKeysApp[None], ReliableTimers, inherit_bindings=False):
    """An app that redraws the screens it shows whenever the session's store has changed.

    Args:
        session: the session; opened after the first paint and closed when the app ends.
        settings: the user's settings, which include how the end of a batch is reported.
        now: returns the time of a monotonic clock in seconds.
        styles: the style sheets to load at the start, relative to this file.
    """

    def __init__(
        self, session: Session, settings: Settings, now: Callable[[], float], styles: list[str | PurePath]
    ) -> None:
        ansi_color = True if "NO_COLOR" in os.environ else None  # else Textual turns colors into grays
        super().__init__(css_path=styles, ansi_color=ansi_color)
        self.session, self.settings = session, settings
        self._end_detector, self._failover_detector = BatchEndDetector(), FailoverDetector()
        self._session_task: asyncio.Task[None] | None = None
        self._throttle, self._now = RedrawThrottle(now), now
        self._keys = KeyQueue(self, self._handle_input, lambda: self._screen_accepts_keys)
        self._draw_timer: Timer | None = None
        self._expects_node = True
        self._tick_timer: Timer | None = None
        self._tick_at = math.inf

    def on_mount(self) -> None:
        """Start the session after the first paint."""
        self.session.store.on_change = self._schedule_draw
        self.call_after_refresh(self._start_session)

    async def on_unmount(self) -> None:
        """Stop and close the session."""
        self.session.store.on_change = None
        if self._session_task is not None:
            self._session_task.cancel()
            await asyncio.wait([self._session_task])
        await self.session.close()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, _INPUT_EVENTS) and not self.screen_stack:
            return
        if not isinstance(event, _INPUT_EVENTS) or event.is_forwarded:
            await super().on_event(event)
            return
        self.session.input_priority.input_received()
        if isinstance(event, events.Key):
            await self._keys.add(event)
        else:
            await self._handle_input(event)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        text = short_toast(message, self.size.width - TOAST_MARGIN, keymap_of(self).key("app.messages"))
        super().notify(text, title=title, severity=severity, timeout=timeout, markup=markup)

    def post_display_hook(self) -> None:
        self.session.input_priority.painted()

    async def _handle_input(self, event: events.Event) -> None:
        priority = self.session.input_priority
        await super().on_event(event)
        receiver = self.mouse_over if isinstance(event, events.MouseEvent) else self.focused
        (receiver or self).call_later(priority.input_handled)  # after the event, which may wait in the same queue

    @property
    def _screen_accepts_keys(self) -> bool:
        return isinstance(self.screen, ConsoleScreen) and self.screen.accepts_keys

    def _start_session(self) -> None:
        if not gc.isenabled():  # the command disables it during start-up
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            gc.enable()
        self._session_task = asyncio.create_task(self.session.run())
        self._session_task.add_done_callback(self._session_ended)
        self._schedule_draw()

    def _session_ended(self, task: asyncio.Task[None]) -> None:
        """If the session has failed, raise its exception in the app, as if a message handler had failed."""
        if not task.cancelled():
            failure = task.exception()
        else:
            failure = None if task.cancelling() else RuntimeError("the session task was cancelled unexpectedly")
        if failure is not None:
            self.call_later(_fail, failure)

    def _schedule_draw(self) -> None:
        """Draw once the throttle allows it; the first node is drawn at once, whatever the start-up has cost."""
        is_first_node = self._expects_node and bool(self.session.store.nodes)
        if self._draw_timer is not None:
            if not is_first_node:
                return
            self._draw_timer.stop()
        self._expects_node = self._expects_node and not is_first_node
        wait_s = 0.0 if is_first_node else self._throttle.wait_s
        self._draw_timer = self.set_timer(max(wait_s, 0.001), self._draw)

    def _draw(self) -> None:
        self._draw_timer = None
        self._throttle.mark_redrawn()
        for screen in reversed(self.screen_stack):
            if isinstance(screen, ConsoleScreen):
                screen.draw(self.session.store)
            if not screen.is_modal:
                break
        store, now, notify = self.session.store, datetime.now(UTC), self.settings.notify
        notify_failover(self, self._failover_detector.detect(store, now), notify)
        notify_batch_ends(self, self._end_detector.detect(store, now), notify, store)
        self.after_draw()
        self._keep_ticking()

    def after_draw(self) -> None:
        """React to the state that was drawn."""

    def _tick(self) -> None:
        self._tick_timer, self._tick_at = None, math.inf
        self.session.store.tick()
        self._keep_ticking()

    def _keep_ticking(self) -> None:
        """Set the timer of the next tick, unless one that is set ends earlier."""
        delay_s = max(self.session.store.next_tick_s, 0.0) + TICK_MARGIN_S
        if (tick_at := self._now() + delay_s) >= self._tick_at:
            return
        if self._tick_timer is not None:
            self._tick_timer.stop()
        self._tick_timer, self._tick_at = self.set_timer(delay_s, self._tick), tick_at


def _fail(failure: BaseException) -> None:
    raise failure
