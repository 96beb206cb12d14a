"""The Runs screen: the tree of batteries, batches and episodes, and what its keys send to the node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.presenters.run_rows import RunRows, episodes_per_minute, run_detail, runs_summary, state_cell
from agentgym_tui.presenters.status_line import progress_line, time_left
from agentgym_tui.state.batches import MAX_BATCHES, BatchRun
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.run_tree import RunRow, RunTree, waiting_runs
from runner.events.live import QueueChanged, WaitingBatch
from runner.types import WorkerCounts
from tests.support.console.fake_session import FakeSession, empty_session, mixed_session
from tests.support.console.line_views import line_text
from tests.support.console.live_items import START, FakeClock
from tests.support.console.pilot import (
    by_name,
    console_app,
    row_keys,
    screen_text,
    wait_for_no_text,
    wait_for_text,
    wait_until,
)
from tests.support.console.samples import (
    batch_completed,
    batch_id,
    batch_state,
    busy_store,
    durable,
    hostile_store,
    live,
    node_list,
    progress,
    started,
)

SIZE = (120, 40)


def queue_item(*numbers: int, held: tuple[int, ...] = (), n_waiting: int | None = None) -> QueueChanged:
    waiting = [
        WaitingBatch(
            batch_id=batch_id(n),
            battery_id=None,
            env=f"Env{n}",
            agent="oracle",
            model=None,
            n_done=0,
            n_planned=4,
            paused=n in held,
        )
        for n in numbers
    ]
    return QueueChanged(at=START, batches=waiting, n_waiting=len(waiting) if n_waiting is None else n_waiting)


async def test_the_tree_shows_what_runs_first_and_opens_down_to_the_episode() -> None:
    session = mixed_session()
    app = console_app(session)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "3 waiting")  # on Live
        await pilot.press("6")
        await wait_for_text(pilot, "battery of 2", "3 waiting", "1 interrupted", "▸ battery")
        await pilot.click("#runs", offset=(5, 1), times=2)
        await wait_for_text(pilot, "▾ battery")
        await pilot.press("enter")
        await wait_for_text(pilot, "▸ battery")
        keys = ["battery battery", f"batch {batch_id(2)}", f"batch {batch_id(3)}", f"batch {batch_id(4)}"]
        assert row_keys(app, "#runs") == keys
        await pilot.press("enter", "j", "enter")
        await wait_for_text(pilot, "· task 3", "▾ Wordle", "▸ Maze")
        await pilot.press("j", "enter")
        await wait_until(pilot, lambda: type(app.screen).__name__ == "EpisodeScreen", "the episode")
        await pilot.press("escape", "k", "k", "enter")
        await wait_for_text(pilot, "▸ battery")
        assert row_keys(app, "#runs") == keys
        session.store.apply_list(node_list(batch_state(6, "completed", n_done=4)))
        await wait_for_text(pilot, "✓ completed")
        await pilot.press("G", "enter")  # an old batch
        await wait_until(pilot, lambda: type(app.screen).__name__ == "EpisodesScreen", "the list of episodes")
        await wait_for_text(pilot, batch_id(6))
        session.store.apply_events([live(queue_item(7, 8))])
        await pilot.press("1")
        await wait_for_text(pilot, "5 waiting")


async def test_the_time_left_passes_on_the_screen_without_a_message() -> None:
    clock = FakeClock()
    session = FakeSession(busy_store(clock))
    async with console_app(session).run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "3:21")
        clock.at += 12
        await wait_for_text(pilot, "3:09")
        await pilot.press("6")
        await wait_for_text(pilot, "Runs", "3:09")
        clock.at += 12
        await wait_for_text(pilot, "2:57")


def test_a_wait_for_a_server_passes_between_two_reports() -> None:
    clock = FakeClock()
    store = busy_store(clock)
    store.apply_events([live(progress(seq=9, waiting_for="http://h", waiting_s=42.0))])
    clock.at += 12
    shown = progress_line(store.batch_registry.active(), 200, now=store.now())
    assert any(cell.text == "waiting for the server, 30 s left" for cell in shown)


async def test_the_lines_of_a_run_that_is_opened_at_the_end_of_the_screen_scroll_into_view() -> None:
    store = RunStore()
    store.apply_events([live(*(started(n, batch_id=batch_id(n)) for n in range(60)))])
    store.apply_events([live(*(started(100 + n, batch_id=batch_id(0)) for n in range(5)))])
    app = console_app(FakeSession(store))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("6")
        await wait_for_text(pilot, "60 batches")
        await pilot.press("G", "enter")
        await wait_for_text(pilot, "▸▾ Wordle", "task 0", "task 104")
        await pilot.press("enter")
        await wait_for_no_text(pilot, "task 104")


def test_a_run_of_one_of_several_nodes_has_its_name_and_is_found_by_it() -> None:
    store, tree = RunStore(), RunTree()
    store.apply_events([live(started(0, batch_id=batch_id(0)), node="alpha")])
    tree.update(store)
    assert RunRows(tree, store).line(0, 300)[0].text == "▸ Wordle", "the only node"
    store.apply_events([live(queue_item(1), node="beta"), live(progress(2), node="ga\x1bmma")])
    store.apply_events([durable(batch_completed(3, env="Maze", node="delta"))])
    tree.update(store)
    names = {RunRows(tree, store).line(index, 300)[0].text for index in range(len(tree.rows))}
    assert names == {"▸ Wordle · alpha", "▸ Env1 · beta", f"⚠ ▸ {UNKNOWN} · ga␛mma", "▸ Maze · delta"}
    assert tree.batches.search("node:beta") is None
    tree.update(store)
    assert [row.batches[0].env for row in tree.rows] == ["Env1"]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("completed", "cancelled"), "○ 1 cancelled"),
        (("cancelled", "completed"), "○ 1 cancelled"),
        (("cancelled", "cancelled"), "○ cancelled"),
        (("completed", "completed"), "✓ completed"),
        (("cancelled", "interrupted"), "! interrupted"),
    ],
)
def test_a_battery_is_completed_only_if_all_its_batches_are(statuses: Sequence[str], expected: str) -> None:
    store, tree = RunStore(), RunTree()
    states = [batch_state(n, status, battery_id="battery") for n, status in enumerate(statuses)]
    store.apply_list(node_list(*states))
    tree.update(store)
    assert state_cell(tree.rows[0]).text == expected
    counted = "".join(cell.text for cell in run_detail(tree.rows[0], store, 300))
    assert all(status in counted for status in statuses)


def test_a_batch_and_what_extends_it_are_one_run() -> None:
    store, tree = RunStore(), RunTree()
    store.apply_list(node_list(batch_state(1, "running", battery_id=batch_id(0)), batch_state(0, "completed")))
    tree.update(store)
    (row,) = tree.rows
    assert (row.run_id, {batch.batch_id for batch in row.batches}) == (batch_id(0), {batch_id(0), batch_id(1)})
    assert RunRows(tree, store).line(0, 300)[0].text.endswith(", 2 parts")


def test_a_run_whose_length_is_not_known_has_no_planned_episodes() -> None:
    store, tree = RunStore(), RunTree()
    store.apply_events([live(started(0))])
    tree.update(store)
    assert RunRows(tree, store).line(0, 300)[2].text == f"0/{UNKNOWN}"


def test_a_battery_has_the_workers_of_all_its_batches() -> None:
    store = busy_store()
    store.apply_list(node_list(*(batch_state(n, "running", battery_id="battery") for n in (1, 0))))
    for n, counts in enumerate((WorkerCounts(n=2, lost=1), WorkerCounts(n=3, starting=1))):
        store.apply_events([live(msgspec.structs.replace(progress(seq=99, workers=counts), batch_id=batch_id(n)))])
    tree = RunTree()
    tree.update(store)
    assert RunRows(tree, store).line(0, 300)[10].text == "5 workers, 1 starting, 1 lost"


async def test_a_waiting_run_moves_past_whole_batteries_and_an_interrupted_one_says_why_and_resumes() -> None:
    session = mixed_session()
    app = console_app(session)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("6")
        await wait_for_text(pilot, "battery of 2")
        for row, key, n, to in ((2, "up", 3, 1), (2, "down", 3, 2), (1, "down", 2, 2), (1, "up", 2, 0)):
            session.fake_control.moves.clear()
            await pilot.press("g", *["j"] * row, f"shift+{key}")
            moved = [(batch_id(n), to)]
            await wait_until(pilot, lambda moved=moved: session.fake_control.moves == moved, "it")  # type: ignore[misc]
        await pilot.press("G")
        await wait_for_text(pilot, "interrupted: the server is gone")
        await pilot.press("space")
        await wait_until(pilot, lambda: session.fake_control.commands == [("resume", batch_id(4), None)], "the request")


def test_the_time_left_passes_between_two_reports_and_stands_still_while_paused() -> None:
    clock = FakeClock()
    store = busy_store(clock)
    store.apply_events([live(progress(seq=9, eta_s=30.0))])
    batch = store.batches[batch_id(0)]
    clock.at += 12
    assert time_left(batch, store.now()) == 18.0
    clock.at += 60
    assert time_left(batch, store.now()) is None  # the estimate is used up, but the batch still runs
    store.apply_events([live(progress(seq=10, eta_s=40.0))])
    assert time_left(batch, store.now()) == 40.0
    batch.status = "paused"
    clock.at += 9
    assert time_left(batch, store.now()) == 40.0
    assert time_left(BatchRun("b"), 0.0) is None


def test_queue_items_set_the_order_and_never_bring_back_what_has_started() -> None:
    store = busy_store()
    store.apply_events([live(queue_item(0, 5, 6))])
    assert [store.batches[batch_id(n)].status for n in (0, 5, 6)] == ["running", "queued", "queued"]
    store.apply_events([live(queue_item(6, 5))])
    tree = RunTree()
    tree.update(store)
    assert [row.run_id for row in tree.rows] == [batch_id(0), batch_id(6), batch_id(5)]
    rows = RunRows(tree, store)
    assert [rows.line(index, 200)[1].text for index in range(3)] == ["▶ running", "… queued #1", "… queued #2"]
    assert [rows.row_of(rows.key(index)) for index in range(3)] == [0, 1, 2]


def test_a_long_queue_keeps_what_runs_and_names_the_number_of_all_that_wait() -> None:
    store = busy_store()
    states = [batch_state(n, "queued", env=f"Env{n}") for n in range(600, 0, -1)]
    store.apply_list(msgspec.structs.replace(node_list(*states[-200:], batch_state(0)), n_waiting=600))
    tree = RunTree()
    tree.update(store)
    assert [row.run_id for row in tree.rows] == [batch_id(n) for n in range(201)]
    assert "600 waiting · the last 400 of them are not listed" in line_text(runs_summary(store, tree, "esc", 200))
    store.set_n_unlisted(1300)
    assert "1,300 older batches not listed; Episodes has theirs" in line_text(runs_summary(store, tree, "esc", 200))
    store.apply_batches([batch_state(n, "queued", env=f"Env{n}") for n in range(1000, 1300)])
    tree.update(store)
    assert len(tree.rows) == MAX_BATCHES
    assert tree.rows[0].run_id == batch_id(0)
    store.apply_events([live(queue_item(*range(1, 201), n_waiting=900))])
    assert store.batch_registry.n_waiting == 900


def test_started_batches_stand_at_the_end_of_the_queue_until_the_node_lists_them() -> None:
    store = busy_store()
    store.apply_list(node_list(batch_state(2, "queued"), batch_state(1, "queued"), batch_state(0)))
    store.apply_batches([batch_state(3, "queued", battery_id="b")])
    assert waiting_runs(store) == [batch_id(1), batch_id(2), "b"]


def test_a_run_that_the_node_may_know_is_offered_to_be_played_again() -> None:
    store = RunStore()
    runs, registry = [BatchRun(batch_id(n)) for n in (100, 150, 301)], store.batch_registry
    assert [*map(registry.is_listed, runs)] == [True] * 3, "no list yet"
    store.apply_list(node_list(*(batch_state(n, "completed") for n in range(300, 100, -1))))
    assert [*map(registry.is_listed, runs)] == [True, True, False], "the node lists no older ones"
    store.apply_list(node_list(batch_state(150)))
    store.apply_batches([batch_state(301)])
    assert [*map(registry.is_listed, runs)] == [False, True, True]


def test_ended_runs_stand_by_their_end_in_whatever_order_a_console_hears_of_them() -> None:
    orders = []
    for heard in ([0, 1, 2], [2, 0, 1]):
        store, tree = RunStore(), RunTree()
        ends = {n: START + timedelta(seconds=[20, 30, 10][n]) for n in heard}
        store.apply_events([msgspec.structs.replace(durable(batch_completed(n)), time=at) for n, at in ends.items()])
        tree.update(store)
        orders.append([row.run_id for row in tree.rows])
    assert orders == [[batch_id(1), batch_id(0), batch_id(2)]] * 2


def test_a_started_batch_keeps_the_position_that_the_queue_reported_before_the_reply() -> None:
    store = busy_store()
    store.apply_list(node_list(batch_state(1, "queued"), batch_state(0)))
    store.apply_events([live(queue_item(1, 2))])
    store.apply_batches([batch_state(2, "queued")])
    assert [store.batches[batch_id(n)].position for n in (0, 1, 2)] == [None, 0, 1]
    waiting, other = store.batches[batch_id(1)], store.batches[batch_id(0)]
    other.status = "paused"
    assert "waits for a paused run" in line_text(run_detail(RunRow("", 0, [waiting]), store, 120))
    other.node = "another node"
    assert "waits for a paused run" not in line_text(run_detail(RunRow("", 0, [waiting]), store, 120))


@pytest.mark.parametrize(("status", "paused", "shown"), [("running", True, "paused"), ("paused", False, "running")])
def test_the_node_reports_that_a_batch_is_paused_before_its_episodes_are(status: str, paused: bool, shown: str) -> None:
    store = busy_store()
    store.apply_list(node_list(batch_state(0, status)))
    store.apply_events([live(progress(seq=50, paused=paused))])
    assert store.batches[batch_id(0)].status == shown
    store.apply_events([live(progress(seq=51, paused=paused))])
    assert store.batches[batch_id(0)].status == shown


def test_the_rate_is_that_of_the_time_left_and_of_the_whole_run_once_it_has_ended() -> None:
    batch = BatchRun("b", n_done=4, n_planned=10, eta_s=90.0)
    assert episodes_per_minute(batch) == 4.0
    batch.status, batch.n_done, batch.eta_s = "completed", 10, None
    assert episodes_per_minute(batch) is None
    batch.started_at, batch.ended_at = START, START + timedelta(minutes=4)
    assert episodes_per_minute(batch) == 2.5


async def test_a_waiting_run_and_all_with_those_that_are_not_listed_are_paused_resumed_and_cancelled() -> None:
    session = mixed_session()
    commands = session.fake_control.commands
    async with console_app(session).run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("6")
        await wait_for_text(pilot, "battery of 2", "Runs · 4 runs of 5 batches")
        await pilot.press(*by_name("runs.pause_all"))
        await wait_for_text(pilot, "all paused after this step; 3 batches waiting")
        await pilot.press(*by_name("runs.cancel_all"), "y")
        await wait_for_text(pilot, "all cancelled")
        assert commands == [("pause", None, None), ("cancel", None, None)]
        commands.clear()
        await pilot.press("j", "space")
        await wait_until(pilot, lambda: commands == [("pause", batch_id(2), None)], "the request")
        session.store.apply_events([live(queue_item(2, 3, held=(2,)))])
        await wait_for_text(pilot, "‖ queued #1", "paused: it does not start before it is resumed")
        await pilot.press("space")
        await wait_until(pilot, lambda: commands[1:] == [("resume", batch_id(2), None)], "resume")
        await pilot.press("enter")
        await wait_for_text(pilot, "this run has no episode yet")


async def test_without_runs_the_screen_is_empty_and_keys_do_nothing() -> None:
    session = empty_session()
    async with console_app(session).run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("6")
        await wait_for_text(pilot, "Nothing has run yet.")
        await pilot.press("enter", "x", "space", "a", "shift+up", *by_name("runs.cancel_all"))
        await wait_for_text(pilot, "nothing runs or waits")
        session.store.apply_list(node_list(batch_state(6, "interrupted", n_done=1)))
        await wait_for_text(pilot, "interrupted")
        pilot.app.clear_notifications()
        await wait_for_no_text(pilot, "nothing runs or waits")
        await pilot.press(*by_name("runs.pause_all"))  # resumes nothing
        await wait_for_text(pilot, "nothing runs or waits")
        assert not session.fake_control.commands


async def test_a_session_that_only_watches_refuses_control_and_hostile_texts_are_made_safe() -> None:
    session = FakeSession(hostile_store(), read_only="this session only watches")
    session.store.apply_events([live(started(0, env="\x1b[2J\u202e", agent="\x1b[31m"), progress())])
    async with console_app(session).run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("6")
        await wait_for_text(pilot, "Runs", "⚠")
        assert "\x1b" not in screen_text(pilot.app)
        await pilot.press("x")
        await wait_for_text(pilot, "this session only watches")
        assert not session.fake_control.commands
