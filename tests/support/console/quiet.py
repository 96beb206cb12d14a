"""Apps under a pilot without the work that no test sees: waits for idle widgets, frames that nothing reads.

Asking each widget costs more than most keys, and drawing takes a third of an app's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from textual._compositor import Compositor
from textual._context import active_app, visible_screen_stack
from textual.app import ScreenStackError
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.geometry import Region
from textual.message_pump import MessagePump
from textual.pilot import Pilot, WaitForScreenTimeout

from agentgym_tui.widgets.lists import LineRenderer

TIMEOUT_S: Final = 30.0
RENDER_UPDATE: Final = Compositor.render_update
PARSE_RULES: Final = Stylesheet._parse_rules
_parsed: Final[dict[object, list[RuleSet]]] = {}


def render_what_is_read(compositor: Compositor, full: bool = False, **options: Any) -> Any:  # noqa: ANN401
    """Draw a screenshot or for a terminal; a headless app throws its other frames away, and a test draws its own.

    Of those, only the first cell of each list is drawn, with which the list measures itself.
    """
    if full or not active_app.get().is_headless:
        return RENDER_UPDATE(compositor, full, **options)
    visible_screen_stack.set(options["screen_stack"])
    compositor._dirty_regions.clear()
    for widget in compositor.visible_widgets:
        if isinstance(widget, LineRenderer):
            widget.render_lines(Region(0, 0, 1, 1))
    return None


def parse_once(stylesheet: Stylesheet, *source: Any, **options: Any) -> list[RuleSet]:  # noqa: ANN401
    """Parse a style sheet once for all apps with the same variables."""
    key = (*stylesheet._variables.items(), *source, *options.items())
    if key not in _parsed:
        _parsed[key] = PARSE_RULES(stylesheet, *source, **options)
    return _parsed[key]


async def wait_until_quiet(pilot: Pilot[Any]) -> bool:
    """Wait until the app, its screen and each busy widget have handled the messages in their queues.

    Textual sends a callback to every widget instead; a widget that waits for a message has none to handle.

    Returns:
        False if the app failed or has no screen, so that not all messages could be handled.

    Raises:
        WaitForScreenTimeout: they did not finish in ``TIMEOUT_S`` seconds.
    """
    done = asyncio.Event()
    failed: asyncio.Event = pilot.app._exception_event
    try:
        n_left = _count_calls([*_busy_pumps(pilot.app)], done)
    except ScreenStackError:
        return False
    if n_left == 0:
        return True
    waits = [asyncio.create_task(event.wait()) for event in (done, failed)]
    _, pending = await asyncio.wait(waits, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if len(pending) == len(waits):
        raise WaitForScreenTimeout("the widgets did not handle their messages in time")
    return done.is_set()


def _busy_pumps(app: Any) -> Iterator[MessagePump]:  # noqa: ANN401 - an app of any result
    yield app
    yield app.screen
    for widget in app.screen.walk_children():
        queue = widget._message_queue
        if queue.values or not queue.ready_event._waiters:  # else its task waits in an empty queue
            yield widget


def _count_calls(pumps: list[MessagePump], done: asyncio.Event) -> int:
    left = 0

    def called() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    for pump in pumps:
        left += pump.call_later(called)
    return left
