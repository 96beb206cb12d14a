"""A pilot's wait that asks only the busy widgets, since asking each one costs more than most keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from textual.app import ScreenStackError
from textual.message_pump import MessagePump
from textual.pilot import Pilot, WaitForScreenTimeout

TIMEOUT_S: Final = 30.0


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
