"""The summary of a run that has ended: the toast, the line on Live, the table, and the way to its episodes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentgym_tui.presenters.number_format import format_interval
from agentgym_tui.presenters.run_rows import success_interval
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.screens.episode_lists import EpisodesScreen
from agentgym_tui.state.batches import BatchTotals
from runner.types import Tokens
from tests.support.console.fake_session import FakeSession, empty_session, mixed_session
from tests.support.console.pilot import (
    SIZE,
    by_name,
    console_app,
    row_keys,
    screen_text,
    toast_text,
    wait_for_text,
    wait_until,
)
from tests.support.console.result_sessions import results_session
from tests.support.console.samples import (
    HOSTILE,
    batch_completed,
    batch_id,
    batch_state,
    busy_store,
    durable,
    live,
    node_list,
    progress,
)


async def test_the_end_of_a_battery_leads_to_its_summary_and_from_there_to_its_episodes() -> None:
    session = FakeSession(busy_store())
    states = [batch_state(n, "running" if n == 0 else "queued", battery_id="battery", env=f"Env{n}") for n in range(2)]
    session.store.apply_list(node_list(*reversed(states)))
    app = console_app(session)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        now = datetime.now(UTC)
        for n in range(2):
            event = batch_completed(n, battery_id="battery", env=f"Env{n}", n_errors=n, n_rated=10)
            session.store.apply_events([live(replace(progress(seq=90), batch_id=batch_id(n)))])
            await wait_until(pilot, lambda: app._draw_timer is None, "a redraw")
            session.store.apply_events([replace(durable(event), time=now + timedelta(seconds=n))])
            await wait_until(pilot, lambda n=n: f"Env{n} completed" in toast_text(pilot))  # type: ignore[misc]
        await wait_until(pilot, lambda: "battery of 2 ended: 20 episodes, 1 error, M shows" in toast_text(pilot))
        await wait_for_text(pilot, "battery of 2: completed", "M shows the summary")
        await pilot.press("M")
        await wait_for_text(pilot, "Summary · battery of 2: completed · 20 episodes · 1 error", "Env0", "70%", "40-89%")
        assert row_keys(app, "#batches") == [batch_id(0), batch_id(1)]
        await pilot.press("j", "enter")
        await wait_until(pilot, lambda: isinstance(app.screen, EpisodesScreen), "the episodes")
        await wait_for_text(pilot, f"match {batch_id(1)} (esc goes back)")
        await pilot.press("escape")
        await wait_for_text(pilot, "Summary · battery of 2: completed")
        await pilot.click("#batches", offset=(5, 1), times=2)
        await wait_until(pilot, lambda: isinstance(app.screen, EpisodesScreen), "the episodes")
        await wait_for_text(pilot, f"match {batch_id(0)} (esc goes back)")


async def test_the_summary_of_the_selected_run_opens_on_runs_and_only_once() -> None:
    app = console_app(mixed_session())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("6")
        await wait_for_text(pilot, "battery of 2")
        await pilot.press("M", "M")
        await wait_for_text(pilot, "Summary · battery of 2: 1 running, 1 queued", "Wordle", "Maze")
        assert len(app.screen_stack) == 2
        await pilot.press("escape")
        await wait_for_text(pilot, "▸ battery of 2")


async def test_a_summary_needs_an_ended_run_and_makes_hostile_names_safe() -> None:
    session = empty_session()
    async with console_app(session).run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "Welcome")
        await pilot.press("M")
        await wait_for_text(pilot, "no run has ended yet")
        assert "shows the summary" not in screen_text(pilot.app)
        session.store.apply_list(node_list(batch_state(0, "completed", env=HOSTILE, agent=HOSTILE, model=HOSTILE)))
        await pilot.press("6")
        await wait_for_text(pilot, "Runs")
        await pilot.press("M")
        await wait_for_text(pilot, "Summary", "⚠")
        assert not has_unsafe_chars(screen_text(pilot.app))


def test_a_run_that_ended_before_the_console_started_is_completed_from_its_episodes() -> None:
    store = empty_session().store
    store.apply_list(node_list(batch_state(1, "completed", n_done=4), batch_state(0, "running", n_done=4)))
    assert store.batch_registry.without_totals() == [batch_id(1)]
    start = datetime(2026, 5, 1, tzinfo=UTC)
    times = (start, start + timedelta(minutes=2))
    totals = [BatchTotals(batch_id(n), 3, 1, 1, 0.5, Tokens(100, 20), 0.5, ["b", "a"], *times) for n in range(2)]
    store.apply_totals([batch_id(1)], totals)
    ended, running = store.batches[batch_id(1)], store.batches[batch_id(0)]
    assert (ended.n_rated, ended.n_success, ended.n_errors, ended.mean_reward, ended.cost) == (3, 1, 1, 0.5, 0.5)
    assert (ended.duration_s, ended.models) == (120, "a + b")
    assert running.n_rated == 0 and running.duration_s is None
    assert store.batch_registry.without_totals() == []
    assert store.newest_ended_run() == batch_id(1)


def test_events_that_a_new_broker_gets_together_keep_the_order_in_which_the_batches_ended() -> None:
    store, start = empty_session().store, datetime(2026, 5, 1, tzinfo=UTC)
    published_at = start + timedelta(hours=1)
    for n in (1, 2, 0):
        sent = {"ce-time": (start + timedelta(seconds=n)).isoformat()}
        store.apply_events([replace(durable(batch_completed(n)), headers=sent, time=published_at)])
        published_at += timedelta(milliseconds=1)
    assert store.newest_ended_run() == batch_id(2)
    assert store.batches[batch_id(2)].ended_at == start + timedelta(seconds=2)


def test_an_event_counts_more_than_the_stored_episodes() -> None:
    store = empty_session().store
    store.apply_events([durable(batch_completed(0, success_rate=0.5, n_rated=10))])
    store.apply_totals([batch_id(0)], [BatchTotals(batch_id(0), 3, 1, 1, 0.5, Tokens(), None, [], None, None)])
    assert (store.batches[batch_id(0)].n_rated, store.batches[batch_id(0)].n_success) == (10, 5)


def test_intervals_are_shown_in_percent() -> None:
    for n_success, n_rated, shown in ((7, 10, "40-89%"), (0, 0, "\N{EN DASH}"), (3, 3, "44-100%")):
        assert format_interval(success_interval(n_success, n_rated)) == shown


@given(st.integers(-(2**70), 2**70), st.integers(-(2**70), 2**70))
def test_any_counts_from_the_bus_have_an_interval(n_success: int, n_rated: int) -> None:
    assert len(format_interval(success_interval(max(n_success, 0), n_rated))) <= 9


async def test_the_summary_leads_to_the_results_of_the_run_only() -> None:
    session = results_session()
    run_id = session.fake_library.stored[0].batch_id
    row = session.fake_library.stored[0]
    session.store.apply_list(node_list(batch_state(0, "completed", env=row.env, n_done=1)))
    session.store.batches[run_id] = session.store.batches.pop(batch_id(0))
    session.store.batches[run_id].batch_id = run_id
    app = console_app(session)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("6")
        await wait_for_text(pilot, "Runs")
        await pilot.press("M", *by_name("summary.results"))
        await wait_for_text(pilot, "Results by batch", f"run {run_id} (esc clears)")
        await wait_until(pilot, lambda: len(row_keys(app, "#results")) >= 1, "the rows")
        assert all(run_id in key for key in row_keys(app, "#results"))
        await pilot.press("escape")
        await wait_until(pilot, lambda: f"run {run_id}" not in screen_text(app), "all results")
