from __future__ import annotations

import pytest
from textual.pilot import Pilot

from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.screens.dialogs.texts import HexDumpDialog
from agentgym_tui.services import Message
from agentgym_tui.state.nodes import ProfileDifference
from agentgym_tui.state.run_store import RunStore
from runner.types import Outcome
from tests.support.console.fake_session import FakeSession, busy_session, empty_session, error_session
from tests.support.console.pilot import SIZE, by_name, console_app, wait_for_text, wait_until
from tests.support.console.samples import (
    HOSTILE,
    START,
    batch_state,
    busy_store,
    completed,
    durable,
    episode_id,
    hostile_store,
    live,
    node_list,
    row,
    span,
    span_closed,
    streaming_store,
    timestep,
)
from tests.support.console.snapshots import ALL_SIZES, SIZES, RunBefore, SnapCompare, stop_cursor_blink

REPLY = "The letters c and e are in the word, but not where you put them. That leaves fewer guesses. " * 2


def full_store() -> RunStore:
    """Return a store with a running episode of seven steps, its trace, and sixty finished episodes."""
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


def after_keys(*keys: str, texts: tuple[str, ...]) -> RunBefore:
    """Wait for the panes, press keys and wait for texts."""

    async def run_before(pilot: Pilot[None]) -> None:
        await wait_until(
            pilot,
            lambda: bool(pilot.app.screen_stack[0].query("#environments")) and pilot.app.focused is not None,
            "the panes",
        )
        await pilot.pause()
        await pilot.press(*keys)
        stop_cursor_blink(pilot)
        await wait_for_text(pilot, *texts)
        await pilot.pause()

    return run_before


def test_live_with_the_last_episode(snap_compare: SnapCompare) -> None:
    session = empty_session()
    session.store.apply_stored([row(2), row(1, success=False, outcome=Outcome.FAILURE, reward=0.25), row(0)])
    before = after_keys(texts=("last episode", "guess 2"))
    assert snap_compare(console_app(session), run_before=before)


def test_live_empty(snap_compare: SnapCompare) -> None:
    before = after_keys(texts=("Nothing is running yet", "not installed"))
    assert snap_compare(console_app(empty_session()), run_before=before)


def test_live_without_a_node(snap_compare: SnapCompare) -> None:
    before = after_keys(texts=("Nothing is running yet", "opened files"))
    assert snap_compare(console_app(FakeSession(RunStore())), run_before=before)


@ALL_SIZES
def test_live_busy(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    before = after_keys("tab", texts=("task 3", "guess 6", "following", "3/10"))
    assert snap_compare(console_app(FakeSession(full_store())), terminal_size=size, run_before=before)


def test_live_while_a_model_streams(snap_compare: SnapCompare) -> None:
    before = after_keys("tab", texts=("gateway · ≈ 18 tokens/s", "guess"))
    assert snap_compare(console_app(FakeSession(streaming_store())), run_before=before)


def test_live_with_a_step_from_the_fallback_endpoint(snap_compare: SnapCompare) -> None:
    before = after_keys("tab", "k", texts=("not following (G)", "step 1"))
    assert snap_compare(console_app(FakeSession(streaming_store(fallback=True))), terminal_size=SIZE, run_before=before)


def test_live_with_resized_panes(snap_compare: SnapCompare) -> None:
    before = after_keys("tab", "plus", "plus", "plus", texts=("task 3", "▌"))
    assert snap_compare(console_app(FakeSession(full_store())), terminal_size=SIZE, run_before=before)


@pytest.mark.parametrize("n_views", [1, 2], ids=["trace", "rewards"])
def test_live_trace_and_rewards(snap_compare: SnapCompare, n_views: int) -> None:
    before = after_keys(*["v"] * n_views, texts=(("", "▌Trace", "▌Rewards")[n_views],))
    assert snap_compare(console_app(FakeSession(full_store())), run_before=before)


def test_live_with_a_zoomed_pane(snap_compare: SnapCompare) -> None:
    before = after_keys("v", "z", texts=("▌Trace", "env.step"))
    assert snap_compare(console_app(FakeSession(full_store())), terminal_size=SIZE, run_before=before)


def test_live_with_a_lost_node(snap_compare: SnapCompare) -> None:
    before = after_keys(texts=("✗ disconnected", "connection refused", "✗ node lost"))
    assert snap_compare(console_app(error_session()), run_before=before)


@SIZES
def test_live_with_hostile_text(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    session = FakeSession(hostile_store())
    session.title = HOSTILE
    before = after_keys(texts=("␛[2J", "⚠"))
    assert snap_compare(console_app(session), terminal_size=size, run_before=before)


def test_run_form(snap_compare: SnapCompare) -> None:
    session = empty_session()
    defaults = {"concurrency": 4, "workers": None, "max_rounds": 15, "max_duration_sec": 300.0}
    session.store.set_profile_defaults("field-runner-4090", defaults)
    before = after_keys("R", "space", "tab", "tab", "tab", "0", texts=("✗ at least 1", "✗ choose one"))
    assert snap_compare(console_app(session), run_before=before)


def test_model_form(snap_compare: SnapCompare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_KEY", raising=False)
    texts = ("http://127.0.0.1:8000/v1", "qwen3-8b", "LAB_KEY")
    keys = [key for text in texts for key in (*text, "down")]
    before = after_keys("ctrl+o", *keys, "enter", "enter", texts=("✗ The variable LAB_KEY", "→ set it"))
    assert snap_compare(console_app(empty_session()), run_before=before)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("b", "everything"),
        ("q", "remaining"),
        ("x", "1 more in this battery"),
        ("question_mark", "This screen"),
        ("colon", "type part"),
    ],
    ids=["battery", "quit", "cancel", "help", "palette"],
)
def test_dialogs(snap_compare: SnapCompare, key: str, text: str) -> None:
    session = busy_session()
    battery = [batch_state(0, battery_id="battery"), batch_state(1, "queued", battery_id="battery", n_planned=0)]
    session.store.apply_list(node_list(*battery))
    assert snap_compare(console_app(session), run_before=after_keys(key, texts=(text,)))


def test_messages_in_full(snap_compare: SnapCompare, monkeypatch: pytest.MonkeyPatch) -> None:
    cause = f"start: no model answers: gateway: no connection: {REPLY}\ngateway: start TensorZero's gateway"
    shown = [
        Message(START, "Maze completed, success 1 of 1\nM shows the summary", failed=False),
        Message(START, sanitize_message(cause), failed=True),
        Message(START, sanitize_message(HOSTILE), failed=False),
    ]
    monkeypatch.setattr("agentgym_tui.app.messages", lambda _app: shown)
    app = console_app(busy_session())
    assert snap_compare(app, run_before=after_keys("exclamation_mark", texts=("Messages",)))


def test_restart_offer(snap_compare: SnapCompare) -> None:
    session = busy_session()
    battery = [batch_state(0, battery_id="battery"), batch_state(1, "queued", battery_id="battery", n_planned=0)]
    session.store.apply_list(node_list(*battery))
    paths = ("/home/you/.config/agentgym-console/configs/mine.yaml", "/srv/agentgym/configs/field-runner-4090.yaml")
    session.store.set_profile_difference(
        ProfileDifference("boot", "digest", False, ("field-runner-4090", paths[1]), ("mine", paths[0]))
    )
    app = console_app(session)
    assert snap_compare(app, run_before=after_keys(texts=("Restart the node?",)))


@pytest.mark.parametrize(
    ("keys", "text"),
    [(by_name("node.stop"), "Stop the node?"), (["j", "j", "j", *by_name("env.stop")], "Stop the server?")],
    ids=["node", "server"],
)
def test_stop_dialogs(snap_compare: SnapCompare, keys: list[str], text: str) -> None:
    assert snap_compare(console_app(busy_session()), run_before=after_keys(*keys, texts=(text,)))


def test_hex_dump(snap_compare: SnapCompare) -> None:
    app = console_app(busy_session())

    async def run_before(pilot: Pilot[None]) -> None:
        await wait_for_text(pilot, "task 3")
        app.push_screen(HexDumpDialog(HOSTILE))
        await wait_for_text(pilot, "0000", "esc closes")
        await pilot.pause()

    assert snap_compare(app, run_before=run_before)


def test_tags_of_an_episode(snap_compare: SnapCompare) -> None:
    session = busy_session()
    session.fake_library.stored = [row(number) for number in range(1, 4)]
    session.store.apply_tags({episode_id(3): ("good", "loop"), episode_id(2): (HOSTILE,)})
    before = after_keys("2", "j", "T", texts=("#good #loop", "Tags and notes of"))
    assert snap_compare(console_app(session), run_before=before)
