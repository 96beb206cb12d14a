from __future__ import annotations

from datetime import timedelta

import pytest
from textual.pilot import Pilot

from runner.events.codec import encode
from runner.events.live import LiveBatch, LiveItem
from runner.events.subjects import BATCH_COMPLETED, EPISODE_COMPLETED, LIVE_STREAM
from runner.subscribe.buffer import RawMessage
from tests.support.console.fake_session import FakeSession, busy_session
from tests.support.console.hostile_console import hostile_messages
from tests.support.console.pilot import SIZE, console_app, wait_for_widget_text
from tests.support.console.samples import (
    BOOT,
    HOSTILE,
    NODE,
    START,
    batch_completed,
    completed,
    started,
    timestep,
    token,
)
from tests.support.console.snapshots import SIZES, TABLE_SIZES, RunBefore, SnapCompare, stop_cursor_blink

pytestmark = pytest.mark.usefixtures("utc")


def message_at(second: float, subject: str, payload: bytes, **headers: str) -> RawMessage:
    at = START + timedelta(seconds=second)
    return RawMessage(subject, headers, payload, LIVE_STREAM, round(second * 10), at)


def live_message(second: float, channel: str, *items: LiveItem) -> RawMessage:
    batch = LiveBatch(node=NODE, boot=BOOT, dropped=0, items=list(items))
    return message_at(second, f"agentgym.live.{channel}.v1.{NODE}", encode(batch))


def busy_bus() -> FakeSession:
    """Return a session whose bus carries an episode, foreign subjects and one malformed message."""
    session = busy_session()
    source = {"ce-source": NODE, "ce-time": (START + timedelta(seconds=42)).isoformat()}
    session.fake_events.initial = [
        live_message(1, "episode", started(3)),
        *(live_message(2 + n, "token", token(3), token(3)) for n in range(20)),
        *(
            message_at(22 + n, f"orders.{('eu', 'us')[n % 2]}.new", b'{"order": %d, "shop": "s%d"}' % (n, n))
            for n in range(9)
        ),
        live_message(32, "timestep", timestep(3)),
        message_at(33, "agentgym.live.span.v1.n7", b"nonsense"),
        message_at(40, EPISODE_COMPLETED, encode(completed(3)), **source),
        message_at(41, BATCH_COMPLETED, encode(batch_completed()), **source),
    ]
    session.store.n_malformed = 1
    return session


def hostile_bus() -> FakeSession:
    session = busy_session()
    messages = [item for item in hostile_messages(HOSTILE) if isinstance(item, RawMessage)]
    for message in messages:
        message.time = START  # not the time of the test
    streams = list(dict.fromkeys(message.stream for message in messages))
    messages.sort(key=lambda message: streams.index(message.stream))  # as a subscription orders equal times
    session.fake_events.initial = list(messages)
    return session


def when_shown(selector: str, *texts: str, keys: tuple[str, ...] = ()) -> RunBefore:
    """Open the events screen, wait for texts of a widget and press keys."""

    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.press("3")
        stop_cursor_blink(pilot)
        await wait_for_widget_text(pilot, selector, *texts)
        await pilot.press(*keys)
        await pilot.pause(0.25)

    return run_before


@TABLE_SIZES
def test_busy_bus(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    before = when_shown("#payload", '"n_episodes": 10')
    assert snap_compare(console_app(busy_bus()), terminal_size=size, run_before=before)


@SIZES
def test_paused_bus_with_subject_tree_and_headers(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    before = when_shown("#payload", '"n_episodes": 10', keys=("k", "v", "v", "v", "space", "t"))
    assert snap_compare(console_app(busy_bus()), terminal_size=size, run_before=before)


@SIZES
def test_hex_view_of_hostile_messages(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    before = when_shown("#messages", "⚠", keys=("v", "v"))
    assert snap_compare(console_app(hostile_bus()), terminal_size=size, run_before=before)


def test_bus_without_messages(snap_compare: SnapCompare) -> None:
    before = when_shown("#nothing", "No messages yet", keys=("J",))
    assert snap_compare(console_app(busy_session()), run_before=before)


def test_sorted_subject_tree_with_resized_panes(snap_compare: SnapCompare) -> None:
    keys = ("plus", "t", "o", "greater_than_sign", "greater_than_sign")
    before = when_shown("#payload", '"n_episodes": 10', keys=keys)
    assert snap_compare(console_app(busy_bus()), terminal_size=SIZE, run_before=before)
