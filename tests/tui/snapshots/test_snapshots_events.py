from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.app.console import Console
from runner.events.codec import encode
from runner.events.durable import LiveBatch, LiveItem
from runner.events.subjects import BATCH_COMPLETED, EPISODE_COMPLETED, LIVE_STREAM
from runner.subscribe.buffer import RawMessage
from tests.support.console.fake_session import FakeSession, busy_session
from tests.support.console.hostile_console import hostile_messages
from tests.support.console.pilot import wait_for_widget_text
from tests.support.console.samples import (
    BOOT,
    HOSTILE,
    NODE,
    START,
    FakeClock,
    batch_completed,
    completed,
    started,
    timestep,
    token,
)

pytestmark = pytest.mark.usefixtures("utc")
Compare = Callable[..., bool]
Before = Callable[[Pilot[None]], Awaitable[None]]

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")


def said(second: float, subject: str, payload: bytes, **headers: str) -> RawMessage:
    at = START + timedelta(seconds=second)
    return RawMessage(subject, headers, payload, LIVE_STREAM, round(second * 10), at)


def live(second: float, channel: str, *items: LiveItem) -> RawMessage:
    batch = LiveBatch(node=NODE, boot=BOOT, dropped=0, items=list(items))
    return said(second, f"agentgym.live.{channel}.v1.{NODE}", encode(batch))


def busy() -> FakeSession:
    """An episode, and somebody else's orders."""
    session = busy_session()
    source = {"ce-source": NODE, "ce-time": (START + timedelta(seconds=42)).isoformat()}
    session.fake_events.initial = [
        live(1, "episode", started(3)),
        *(live(2 + n, "token", token(3), token(3)) for n in range(20)),
        *(
            said(22 + n, f"orders.{('eu', 'us')[n % 2]}.new", b'{"order": %d, "shop": "s%d"}' % (n, n))
            for n in range(9)
        ),
        live(32, "timestep", timestep(3)),
        said(33, "agentgym.live.span.v1.n7", b"nonsense"),
        said(40, EPISODE_COMPLETED, encode(completed(3)), **source),
        said(41, BATCH_COMPLETED, encode(batch_completed()), **source),
    ]
    session.store._reducer.n_malformed = 1
    return session


def hostile() -> FakeSession:
    session = busy_session()
    found = [each for each in hostile_messages(HOSTILE) if isinstance(each, RawMessage)]
    for each in found:
        each.time = START  # else it is the time of the test
    session.fake_events.initial = list(found)
    return session


def empty() -> FakeSession:
    return busy_session()


def after(selector: str, *texts: str, keys: tuple[str, ...] = ()) -> Before:
    async def go(pilot: Pilot[None]) -> None:
        await pilot.press("3")
        for blinking in pilot.app.screen.query(Input):
            blinking.cursor_blink = False
        await wait_for_widget_text(pilot, selector, *texts)
        await pilot.press(*keys)
        await pilot.pause(0.25)

    return go


def app_of(session: FakeSession) -> Console:
    app = Console(session, now=FakeClock())
    app.animation_level = "none"
    return app


@SIZES
def test_a_busy_bus(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("#payload", '"n_episodes": 10')
    assert snap_compare(app_of(busy()), terminal_size=size, run_before=before)


@SIZES
def test_a_paused_bus_with_its_subjects_and_headers(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("#payload", '"n_episodes": 10', keys=("k", "v", "v", "v", "space", "t"))
    assert snap_compare(app_of(busy()), terminal_size=size, run_before=before)


@SIZES
def test_bytes_of_hostile_messages(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("#messages", "⚠", keys=("v", "v"))
    assert snap_compare(app_of(hostile()), terminal_size=size, run_before=before)


@SIZES
def test_a_silent_bus(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("#nothing", "No messages yet", keys=("J",))
    assert snap_compare(app_of(empty()), terminal_size=size, run_before=before)


def test_a_busy_bus_on_the_largest_terminal(snap_compare: Compare) -> None:
    before = after("#payload", '"n_episodes": 10')
    assert snap_compare(app_of(busy()), terminal_size=(300, 100), run_before=before)


@SIZES
def test_a_sorted_tree_after_parts_were_resized(snap_compare: Compare, size: tuple[int, int]) -> None:
    keys = ("plus", "t", "o", "greater_than_sign", "greater_than_sign")
    before = after("#payload", '"n_episodes": 10', keys=keys)
    assert snap_compare(app_of(busy()), terminal_size=size, run_before=before)
