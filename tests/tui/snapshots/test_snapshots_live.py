from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.app.console import Console
from agentgym_tui.screens.dialogs.hex_dump import HexDumpDialog
from agentgym_tui.state.run_store import RunStore
from runner.types import Outcome
from tests.support.console.fake_session import FakeSession, busy_session, empty_session, error_session
from tests.support.console.pilot import wait_for_text, wait_until
from tests.support.console.samples import (
    HOSTILE,
    FakeClock,
    batch_state,
    busy_store,
    completed,
    durable,
    hostile_store,
    live,
    node_list,
    span,
    span_closed,
    streaming_store,
    timestep,
)

Compare = Callable[..., bool]
Before = Callable[[Pilot[None]], Awaitable[None]]

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
REPLY = "The letters c and e are in the word, but not where you put them. That leaves fewer guesses. " * 2


def app_of(session: FakeSession) -> Console:
    app = Console(session, now=FakeClock())
    app.animation_level = "none"
    return app


def full_store() -> RunStore:
    """An episode of seven steps with its trace, after sixty others."""
    store = busy_store()
    for n in range(10, 70):
        success = n % 3 > 0
        outcome = Outcome.SUCCESS if success else Outcome.FAILURE
        event = completed(n, outcome=outcome, success=success, reward=n % 5 / 4, model="qwen35_9b")
        store.apply_events([durable(event)])
    for index in range(2, 7):
        reply = [{"role": "user", "content": REPLY}]
        reward = (0.0, 0.5, -1.0)[index % 3]
        store.apply_events([live(timestep(3, index, seq=10 * index, observation=reply, reward=reward))])
    start = 0
    for n in range(21):
        end = start + 300_000_000 + n % 4 * 150_000_000
        name = ("agent.act", "env.step", "timestep")[n % 3]
        store.apply_events([live(span_closed(span(n, start=start, end=end, name=name), 3, seq=100 + n))])
        start = end
    return store


def after(*keys: str, see: tuple[str, ...]) -> Before:
    """Press keys, once the screen and once what they lead to is there."""

    async def go(pilot: Pilot[None]) -> None:
        await wait_until(
            pilot, lambda: bool(pilot.app.screen.query("#steps")) and pilot.app.focused is not None, "the panes"
        )
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        for blinking in pilot.app.screen.query(Input):
            blinking.cursor_blink = False
        await wait_for_text(pilot, *see)
        await pilot.pause()

    return go


@SIZES
def test_live_empty(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after(see=("Nothing is running yet", "not installed"))
    assert snap_compare(app_of(empty_session()), terminal_size=size, run_before=before)


@SIZES
def test_live_before_there_is_a_node(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after(see=("Nothing is running yet", "no broker"))
    assert snap_compare(app_of(FakeSession(RunStore())), terminal_size=size, run_before=before)


@SIZES
def test_live_busy(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("tab", see=("task 3", "guess 6", "following", "3/10"))
    assert snap_compare(app_of(FakeSession(full_store())), terminal_size=size, run_before=before)


@SIZES
@pytest.mark.parametrize("fallback", [False, True], ids=["streaming", "fallback"])
def test_live_while_a_model_answers(snap_compare: Compare, size: tuple[int, int], fallback: bool) -> None:
    see = ("↷ ollama · ≈ 18 tokens/s", "guess") if fallback else ("gateway · ≈ 18 tokens/s", "guess")
    before = after("tab", see=see)
    assert snap_compare(app_of(FakeSession(streaming_store(fallback=fallback))), terminal_size=size, run_before=before)


@SIZES
def test_live_with_a_step_that_another_endpoint_answered(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("tab", "k", see=("not following (G)", "step 1"))
    assert snap_compare(app_of(FakeSession(streaming_store(fallback=True))), terminal_size=size, run_before=before)


def test_live_on_the_largest_terminal(snap_compare: Compare) -> None:
    before = after(see=("task 3", "guess 6", "following", "3/10"))
    assert snap_compare(app_of(FakeSession(full_store())), terminal_size=(300, 100), run_before=before)


@SIZES
def test_live_after_panes_were_resized(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("tab", "plus", "plus", "plus", see=("task 3", "▌"))
    assert snap_compare(app_of(FakeSession(full_store())), terminal_size=size, run_before=before)


@SIZES
def test_live_with_an_older_step(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("tab", "k", "k", see=("not following (G)", "step 4"))
    assert snap_compare(app_of(FakeSession(full_store())), terminal_size=size, run_before=before)


@SIZES
@pytest.mark.parametrize("n_views", [1, 2], ids=["trace", "rewards"])
def test_live_other_views(snap_compare: Compare, size: tuple[int, int], n_views: int) -> None:
    before = after(*["v"] * n_views, see=(("", "▌Trace", "▌Rewards")[n_views],))
    assert snap_compare(app_of(FakeSession(full_store())), terminal_size=size, run_before=before)


@SIZES
def test_live_zoomed(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("v", "z", see=("▌Trace", "env.step"))
    assert snap_compare(app_of(FakeSession(full_store())), terminal_size=size, run_before=before)


@SIZES
def test_live_when_the_node_is_lost(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after(see=("✗ disconnected", "connection refused", "✗ node lost"))
    assert snap_compare(app_of(error_session()), terminal_size=size, run_before=before)


@SIZES
def test_live_with_hostile_text(snap_compare: Compare, size: tuple[int, int]) -> None:
    session = FakeSession(hostile_store())
    session.title = HOSTILE
    before = after(see=("␛[2J", "unsafe bytes"))
    assert snap_compare(app_of(session), terminal_size=size, run_before=before)


@SIZES
def test_the_form(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = after("R", "space", "tab", "tab", "tab", "0", see=("✗ at least 1", "✗ choose one"))
    assert snap_compare(app_of(empty_session()), terminal_size=size, run_before=before)


@SIZES
@pytest.mark.parametrize(
    ("key", "see"),
    [
        ("b", "everything"),
        ("q", "remaining"),
        ("x", "1 more in this battery"),
        ("question_mark", "This screen"),
        ("colon", "type part"),
    ],
    ids=["battery", "quit", "cancel", "help", "palette"],
)
def test_dialogs(snap_compare: Compare, size: tuple[int, int], key: str, see: str) -> None:
    session = busy_session()
    battery = [batch_state(0, battery_id="battery"), batch_state(1, "queued", battery_id="battery", n_planned=0)]
    session.store.apply_list(node_list(*battery))
    assert snap_compare(app_of(session), terminal_size=size, run_before=after(key, see=(see,)))


@SIZES
def test_bytes(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = app_of(busy_session())

    async def go(pilot: Pilot[None]) -> None:
        await wait_for_text(pilot, "task 3")
        app.push_screen(HexDumpDialog(HOSTILE))
        await wait_for_text(pilot, "0000", "esc closes")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=go)
