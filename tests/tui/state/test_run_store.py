from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from agentgym_tui.sessions.bus_session import ReceivedEpisodes
from agentgym_tui.state.batches import BatchTotals, batch_currency
from agentgym_tui.state.episode_list import EPISODE_FIELDS
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.normalize import MAX_NAME_CHARS, ulid_time
from agentgym_tui.state.query import Query
from agentgym_tui.state.run_store import RunStore
from runner.events.codec import RawRow
from runner.events.durable import BatchCompleted, EpisodeCompleted
from runner.results.summary import summarize_results
from runner.subscribe.messages import BusMessage, Notice
from runner.types import Outcome, Tokens
from runner.util.clock import new_ulid
from tests.support.console.samples import (
    NEXT_BOOT,
    NODE,
    PROFILE,
    START,
    batch_completed,
    batch_id,
    batch_state,
    completed,
    durable,
    ended,
    env_health,
    episode,
    episode_id,
    episode_items,
    heartbeat,
    live,
    node_list,
    progress,
    row,
    span,
    span_closed,
    started,
    step,
    timestep,
    token,
)


def test_an_episode_end_before_its_steps_loses_no_step(run_store: RunStore) -> None:
    first, *between, last = episode_items(0)
    run_store.apply_events([live(first, last)])
    played = run_store.episodes[episode_id(0)]
    assert (played.outcome, played.n_missing, played.steps) == ("success", len(between), [])
    run_store.apply_events([live(*between), live(*between)])
    assert [s.index for s in played.steps] == [0, 1, 2]
    assert (played.n_missing, played.outcome, played.rounds) == (0, "success", 3)


def test_an_episode_is_assembled_from_its_items(run_store: RunStore) -> None:
    run_store.apply_events([live(*episode_items(0)[:-1], token(0, 4, "I thi", 3), token(0, 5, "nk", 3))])
    played = run_store.episodes[episode_id(0)]
    assert (played.env, played.agent, played.node) == ("Wordle", "oracle", NODE)
    assert [s.index for s in played.steps] == [0, 1, 2]
    assert (played.rounds, played.reward, played.tokens.prompt) == (3, 0.75, 360)
    answer = played.streaming
    assert answer is not None and answer.text == "I think"
    assert played.reset_observation == [{"role": "user", "content": "observation 0"}]
    assert run_store.running_episodes() == [played]
    run_store.apply_events([live(ended(0, 6))])
    assert (played.outcome, played.streaming, run_store.running_episodes(), run_store.n_ended) == (
        "success",
        None,
        [],
        1,
    )


def test_repeated_items_are_skipped_and_gaps_are_counted(run_store: RunStore) -> None:
    items = episode_items(0, 5)
    run_store.apply_events([live(*items[:2], *items[:3]), live(*items[4:])])
    played = run_store.episodes[episode_id(0)]
    assert [s.index for s in played.steps] == [0, 1, 3, 4]
    assert played.n_missing == 1
    assert played.outcome == "success"


def test_a_late_subscriber_reads_missing_steps_from_the_file(run_store: RunStore) -> None:
    run_store.apply_events([live(heartbeat(), timestep(0, 2), timestep(0, 3, refused=True))])
    late = run_store.episodes[episode_id(0)]
    assert [each.refused for each in late.steps] == [False, True]
    assert (late.env, late.n_missing, late.running) == ("", 3, True)
    run_store.merge_episode(episode(0, 4, outcome=None))
    assert (late.env, late.n_missing, len(late.steps), late.reward) == ("Wordle", 0, 4, 1.0)
    run_store.apply_events([live(timestep(0, 3), timestep(0, 4))])
    assert late.n_missing == 0
    run_store.apply_events([live(timestep(0, 6))])
    assert ([s.index for s in late.steps], late.n_missing) == ([0, 1, 2, 3, 4, 6], 1)


def test_steps_from_a_file_take_precedence_over_clipped_live_steps(run_store: RunStore) -> None:
    run_store.apply_events([live(started(0), timestep(0, 0, left_out=7))])
    run_store.merge_episode(episode(0, 1, outcome=None))
    assert run_store.episodes[episode_id(0)].steps[0].left_out == 0
    reversed_order = RunStore()
    reversed_order.merge_episode(episode(0, 1, outcome=None))
    reversed_order.apply_events([live(started(0), timestep(0, 0, left_out=7))])
    assert reversed_order.episodes[episode_id(0)].steps[0].left_out == 0
    assert reversed_order.episodes[episode_id(0)].n_missing == 0


def test_an_episode_and_a_batch_have_the_models_of_their_events_or_of_the_steps(run_store: RunStore) -> None:
    fallback = timestep(1, 0, endpoint="spare", model="b")
    run_store.apply_events([live(started(1, agent="react", model="a"), fallback)])
    assert run_store.episodes[episode_id(1)].models == "b"
    events = [completed(0, model="a", models=["a", "b"]), completed(1, model="a"), completed(2, model="a")]
    batches = [batch_completed(0, model="a", models=["a", "b"]), batch_completed(1, model="a")]
    run_store.apply_events([*map(durable, events), *map(durable, batches)])
    assert [run_store.episodes[episode_id(n)].models for n in range(3)] == ["a + b", "b", "a"]
    assert [run_store.batches[batch_id(n)].models for n in range(2)] == ["a + b", "a"]


def test_durable_and_live_events_arrive_in_any_order(run_store: RunStore) -> None:
    run_store.apply_events([durable(completed(0))])
    assert run_store.episodes[episode_id(0)].outcome == "success"
    run_store.apply_events([live(*episode_items(0))])
    assert len(run_store.episodes) == 1
    assert len(run_store.episodes[episode_id(0)].steps) == 3
    assert run_store.running_episodes() == []
    assert len(run_store.rewards["Wordle"]) == 1


def test_what_another_field_runner_leaves_out_is_unknown_and_in_no_rate(run_store: RunStore) -> None:
    fields: dict[str, Any] = {"env": "Maze", "rounds": 4, "duration_s": 2.5}
    unknown = EpisodeCompleted(episode_id=episode_id(0), reward=0.5, **fields)
    solved = EpisodeCompleted(episode_id=episode_id(1), reward=1.0, success=True, node="theirs", **fields)
    run_store.apply_events([durable(unknown), durable(solved), durable(unknown)])
    first, second = run_store.episodes.values()
    assert (first.outcome, first.success, first.task_index, first.reward) == ("unknown", None, None, 0.5)
    assert (second.outcome, second.success, second.node) == ("success", True, "theirs")
    maze = run_store.envs["Maze"]
    assert (maze.n_rated, maze.n_success, maze.last_reward, len(run_store.rewards["Maze"])) == (1, 1, 1.0, 2)
    run_store.apply_events([durable(BatchCompleted(batch_id="b", env="Maze", n_episodes=4, mean_reward=0.5))])
    batch = run_store.batches["b"]
    assert (batch.status, batch.n_done, batch.n_rated, batch.mean_reward) == ("completed", 4, 0, 0.5)


def test_a_minimal_event_keeps_what_live_items_have_reported(run_store: RunStore) -> None:
    run_store.apply_events([live(started(0, model="m", task_index=7), timestep(0, 0))])
    run_store.apply_events(
        [durable(EpisodeCompleted(episode_id=episode_id(0), env="Wordle", reward=1.0, rounds=1, duration_s=1.0))]
    )
    ended_episode = run_store.episodes[episode_id(0)]
    assert (ended_episode.agent, ended_episode.model, ended_episode.task_index) == ("oracle", "m", 7)
    assert (ended_episode.batch_id, ended_episode.node) == (batch_id(0), NODE) and ended_episode.tokens.total


@pytest.mark.parametrize("status", ["completed", "cancelled", "interrupted"])
def test_nothing_that_arrives_late_changes_a_batch_after_its_end(run_store: RunStore, status: str) -> None:
    event = batch_completed(0, n_episodes=10, success_rate=0.7, n_rated=10, status=status)
    run_store.apply_events([live(started(0), progress(n_done=2, seq=2)), durable(event)])
    (batch,) = run_store.batches.values()
    before = msgspec.structs.asdict(batch)
    for late in (live(progress(seq=3)), live(started(1)), live(progress(), boot=NEXT_BOOT)):
        run_store.apply_events([late])
        assert msgspec.structs.asdict(batch) == before
    run_store.apply_list(node_list(batch_state(0, "running", n_done=3)))
    assert msgspec.structs.asdict(run_store.batches[batch_id(0)]) == before
    assert (batch.status, batch.n_done, batch.n_success, batch.n_rated) == (status, 10, 7, 10)


def test_stored_totals_of_an_ended_batch_are_final(run_store: RunStore) -> None:
    run_store.apply_list(node_list(batch_state(0, "completed", n_done=10, n_planned=10)))
    assert run_store.batch_registry.without_totals() == [batch_id(0)]
    totals = BatchTotals(batch_id(0), 10, 7, 0, 0.8, Tokens(9), None, [], START, START + timedelta(seconds=9))
    run_store.apply_totals([batch_id(0)], [totals])
    run_store.apply_events([live(progress(seq=3))])
    batch = run_store.batches[batch_id(0)]
    assert (batch.status, batch.n_done, batch.n_success, batch.n_rated) == ("completed", 10, 7, 10)
    assert (batch.mean_reward, batch.duration_s, run_store.batch_registry.without_totals()) == (0.8, 9.0, [])


def test_a_restored_queue_is_a_notice_once_per_loss(run_store: RunStore) -> None:
    restored = "batches.jsonl is missing"
    for queue in (None, restored, restored, None, restored):
        run_store.apply_list(msgspec.structs.replace(node_list(), queue=queue))
        run_store.add_notice("another")
    assert [notice.text for notice in run_store.notices] == ["another", restored, "another", restored, "another"]


def test_environments_keep_the_order_of_the_profile(run_store: RunStore) -> None:
    run_store.apply_events([live(env_health("Other"), env_health("Wordle"))])
    run_store.apply_profile(PROFILE)
    run_store.apply_list(node_list())
    assert list(run_store.envs) == [*(name for _, name, _ in PROFILE), "Other"]
    assert (run_store.envs["Wordle"].status, run_store.envs["Wordle"].tier) == ("embedded", "lightweight")
    assert run_store.envs["Maze"].status is None
    assert run_store.agents == ["oracle", "random", "scripted"]


def test_the_environments_of_running_episodes_are_listed_before_their_health_is_known(run_store: RunStore) -> None:
    run_store.apply_events([live(started(0), started(1), started(2, env="Maze"), started(3, env=""))])
    assert {env.name: (env.n_running, env.status) for env in run_store.envs.values()} == {
        "Wordle": (2, None),
        "Maze": (1, None),
    }


def test_the_health_of_an_environment_that_left_the_profile_is_unknown(run_store: RunStore) -> None:
    run_store.apply_profile(PROFILE)
    run_store.apply_events([live(env_health("Wordle", "down", cause="refused"), env_health("Other"))])
    run_store.apply_profile([each for each in PROFILE if each[1] != "Wordle"])
    wordle = run_store.envs["Wordle"]
    assert (wordle.tier, wordle.status, wordle.cause) == ("", None, None)
    assert run_store.envs["Other"].status == "embedded", "another node reports it"


def test_stored_rows_are_counted_once_and_end_running_episodes(run_store: RunStore) -> None:
    run_store.apply_events([live(*episode_items(0)), live(started(1))])
    rows = [row(n, success=n % 2 == 0, outcome=Outcome.SUCCESS) for n in range(5, -1, -1)]
    run_store.apply_stored([row(6, outcome=Outcome.CANCELLED, success=False), *rows])
    n_ended = run_store.n_ended
    run_store.apply_stored(rows)
    run_store.apply_stored([])
    assert run_store.n_ended == n_ended + 2, "lists read the rows again, as unreadable files may have been found"
    wordle = run_store.envs["Wordle"]
    assert (wordle.n_rated, wordle.n_success, wordle.baseline) == (6, 3, "oracle")
    assert [point.episode_id for point in run_store.rewards["Wordle"]] == [episode_id(n) for n in range(7)]
    assert run_store.running_episodes() == []


def test_models_are_not_mixed_with_baselines_nor_baselines_with_each_other(run_store: RunStore) -> None:
    run_store.apply_stored([row(3, agent="random", success=False), row(2, agent="random"), row(1), row(0)])
    wordle = run_store.envs["Wordle"]
    assert (wordle.n_rated, wordle.n_success, wordle.baseline, wordle.n_players) == (2, 1, "random", 1)
    run_store.apply_stored([row(4, model="m", success=False)])
    assert (wordle.n_rated, wordle.n_success, wordle.baseline, wordle.n_players) == (1, 0, None, 1)
    run_store.apply_stored([row(5, model="other")])
    assert (wordle.n_rated, wordle.n_success, wordle.n_players) == (2, 1, 2)


def test_errors_are_counted_apart_for_models_and_baselines(run_store: RunStore) -> None:
    run_store.apply_events([durable(completed(n, outcome=Outcome.ERROR, success=False)) for n in range(6)])
    run_store.apply_events([durable(completed(n)) for n in range(6, 12)])
    wordle = run_store.envs["Wordle"]
    assert (wordle.n_rated, wordle.n_success, wordle.n_errors, wordle.baseline) == (6, 6, 6, "oracle")
    run_store.apply_stored([row(12, model="m", outcome=Outcome.ERROR, success=False, reward=0.0)])
    assert (wordle.n_rated, wordle.n_success, wordle.n_errors, wordle.baseline) == (0, 0, 1, None)
    assert wordle.last_reward == 0.75


def test_the_success_rate_of_a_batch_covers_its_rated_episodes(run_store: RunStore) -> None:
    run_store.apply_events([live(progress(0, n_done=12, n_planned=20, n_success=6, n_rated=6, errors=6))])
    batch = run_store.batches[batch_id(0)]
    assert (batch.n_done, batch.n_rated, batch.n_success, batch.n_errors) == (12, 6, 6, 6)
    event = batch_completed(0, n_episodes=20, success_rate=0.75, n_rated=12, n_errors=8)
    run_store.apply_events([durable(event)])
    assert (batch.n_done, batch.n_rated, batch.n_success, batch.n_errors) == (20, 12, 9, 8)
    run_store.apply_events([durable(batch_completed(1, n_episodes=4, success_rate=None, n_rated=0, n_errors=4))])
    broken = run_store.batches[batch_id(1)]
    assert (broken.n_done, broken.n_rated, broken.n_success, broken.n_errors) == (4, 0, 0, 4)
    stopped = batch_completed(2, n_episodes=4, n_planned=20, status="interrupted")
    run_store.apply_events([durable(stopped), durable(batch_completed(3, n_episodes=4))])
    ends = [run_store.batches[batch_id(n)] for n in (2, 3)]
    assert [(each.n_done, each.n_planned) for each in ends] == [(4, 20), (4, 4)]
    run_store.apply_events([live(progress(4)), durable(batch_completed(5))])  # of an older node, without errors
    old = [run_store.batches[batch_id(n)] for n in (4, 5)]
    assert [(each.n_done, each.n_rated, each.n_success, each.n_errors) for each in old] == [
        (3, 3, 2, 0),
        (10, 10, 7, 0),
    ]
    run_store.apply_events([durable(batch_completed(4))])
    assert (old[0].n_success, old[0].n_rated) == (2, 3)


def test_the_oldest_finished_episodes_are_evicted() -> None:
    store = RunStore(max_episodes=3)
    store.apply_events([live(started(0)), *(live(*episode_items(n)) for n in range(1, 5))])
    assert list(store.episodes) == [episode_id(n) for n in (0, 3, 4)]
    store.apply_events([live(timestep(1, 0)), durable(completed(2))])
    assert list(store.episodes) == [episode_id(n) for n in (0, 3, 4)]
    assert store.n_ended == 4


def test_the_texts_of_a_running_episode_are_bounded() -> None:
    store = RunStore(max_bytes=100_000)
    store.apply_events([live(*episode_items(0)), live(started(1))])
    for index in range(40):
        store.apply_events([live(timestep(1, index, observation=[{"role": "user", "content": "x" * 10_000}]))])
    assert list(store.episodes) == [episode_id(1)]
    played = store.episodes[episode_id(1)]
    assert len(played.steps) == 40
    assert played.size < 100_000
    assert played.steps[-1].observation
    assert played.steps[0].left_out == 3
    assert not played.steps[0].observation


def test_a_new_episode_keeps_its_content_while_a_larger_one_is_trimmed() -> None:
    store = RunStore(max_bytes=100_000)
    store.apply_events([live(started(0)), live(started(1)), live(span_closed(span(1), n=1))])
    for index in range(20):
        store.apply_events([live(timestep(0, index, observation=[{"role": "user", "content": "x" * 10_000}]))])
    assert not store.episodes[episode_id(0)].steps[0].observation
    assert len(store.episodes[episode_id(1)].spans) == 1


def test_bounds_do_not_change_the_episode_that_was_merged() -> None:
    merged = episode(0, 3, steps=[step(n, observation=[{"content": "x" * 60_000}]) for n in range(3)], outcome=None)
    store = RunStore(max_bytes=100_000)
    store.merge_episode(merged)
    assert all(each.observation for each in merged.steps)
    assert not store.episodes[episode_id(0)].steps[0].observation


def test_only_the_versions_of_changed_parts_rise(run_store: RunStore) -> None:
    run_store.apply_events([live(started(0), started(1)), live(timestep(0, 0))])

    def changed(change: Callable[[], None]) -> list[str]:
        before, envs = (
            {each.episode_id: each.version for each in run_store.episodes.values()},
            run_store.env_registry.version,
        )
        change()
        names = [str(n) for n in range(2) if run_store.episodes[episode_id(n)].version != before[episode_id(n)]]
        return [*names, *["envs"] * (run_store.env_registry.version != envs)]

    stored = msgspec.structs.replace(run_store.episodes[episode_id(0)], steps=[])
    assert changed(lambda: run_store.apply_events([live(heartbeat())])) == []
    assert changed(lambda: run_store.apply_events([live(timestep(0, 1))])) == ["0"]
    assert changed(lambda: run_store.apply_events([live(token(1, 2))])) == ["1"]
    assert changed(lambda: run_store.apply_events([live(span_closed(span(1), n=1, seq=3))])) == ["1"]
    assert changed(lambda: run_store.merge_episode(stored)) == ["0"]
    assert changed(lambda: run_store.apply_events([live(ended(1, seq=4))])) == ["1", "envs"]
    assert changed(lambda: run_store.apply_events([live(env_health())])) == ["envs"]
    assert changed(lambda: run_store.apply_events([live(env_health())])) == []
    assert changed(lambda: run_store.mark_node_lost(NODE)) == ["0", "envs"]


def test_on_change_is_called_once_per_change_and_not_for_heartbeats(run_store: RunStore) -> None:
    calls: list[int] = []
    run_store.on_change = lambda: calls.append(run_store.version)
    run_store.apply_events([live(heartbeat()), live(*episode_items(0))])
    run_store.apply_events([live(heartbeat())])
    run_store.apply_events([])
    run_store.set_link(BusLink(status="connected"))
    run_store.set_link(BusLink(status="connected"))
    assert calls == [1, 2]


def test_equal_notices_and_malformed_messages_are_counted(run_store: RunStore) -> None:
    gap = Notice(kind="gap", text="messages are gone", count=3)
    raw = RawRow(reason="not JSON", payload=b"", size=0)
    run_store.apply_events(
        [gap, gap, BusMessage(subject="s", headers={}, decoded=raw), live(started(0, episode_id="x" * 999))]
    )
    assert [(note.text, note.n) for note in run_store.notices] == [("messages are gone", 6)]
    assert run_store.n_malformed == 2
    assert run_store.episodes == {}


def test_a_ulid_contains_its_creation_time() -> None:
    ulid = new_ulid(round(1000 * START.timestamp()))
    assert ulid_time(ulid) == ulid_time(ulid.lower()) == START
    times = map(ulid_time, ("ZZZZZZZZZZ", "u", "\x1b" * 26, uuid4().hex, "1" * 26, "0" * 26, ulid[:10]))
    assert not any(times)


@pytest.mark.parametrize("name", ["ep-1", "018f4e9ac2d17b3e9f5a6c7d8e9f0a1b", "12345678901234567890", "0" * 26])
def test_an_episode_with_an_id_of_another_runner_starts_when_its_event_was_stored_or_received(name: str) -> None:
    store, before = RunStore(), datetime.now(UTC)
    event = EpisodeCompleted(episode_id=name, env="Maze", reward=0.5, rounds=4, duration_s=2.5)
    message = durable(event)
    store.apply_events([message])
    assert store.episodes[name].started_at == message.time
    store = RunStore()
    store.apply_events([msgspec.structs.replace(message, stream=None, sequence=None, time=None)])
    assert before <= store.episodes[name].started_at <= datetime.now(UTC)


def test_received_episodes_of_unknown_outcome_are_named_so_with_their_means(run_store: RunStore) -> None:
    for n, reward in enumerate((0.5, 1.0)):
        event = EpisodeCompleted(episode_id=f"ep-{n}", env="Maze", reward=reward, rounds=4, duration_s=2.5)
        run_store.apply_events([durable(event)])
    library = ReceivedEpisodes(run_store)
    (row,) = summarize_results(library.result_source())
    assert (row.outcomes, row.n_rated, row.n_unscored, row.success_rate) == ({"unknown": 2}, 0, 0, None)
    assert (row.score, row.avg_rounds, row.completion_time_sec) == (0.75, 4.0, 2.5)
    query = Query(EPISODE_FIELDS, "outcome:unknown")
    assert query.error is None
    assert all(map(query.matches, run_store.episodes.values())) and all(map(query.matches, library.rows()))


def test_a_queued_batch_runs_from_its_first_episode_on(run_store: RunStore) -> None:
    run_store.apply_list(node_list(batch_state(0, "queued")))
    assert run_store.batch_registry.active() is None
    run_store.apply_events([live(started(0))])
    played = run_store.batch_registry.active()
    assert played is not None
    assert (played.batch_id, played.status) == (batch_id(0), "running")


def test_a_batch_that_waits_for_its_server_may_end_as_interrupted(run_store: RunStore) -> None:
    run_store.apply_events([live(started(0), progress(seq=1, waiting_for="http://h:1: refused", waiting_s=9.0))])
    batch = run_store.batches[batch_id(0)]
    assert (batch.status, batch.waiting_for, batch.waiting_s) == ("running", "http://h:1: refused", 9.0)
    run_store.apply_events([live(progress(seq=2, interrupted=True))])
    assert (batch.status, batch.waiting_for, batch.waiting_s, batch.eta_s) == ("interrupted", None, None, None)
    waiting = batch_state(0, "running", waiting_for="http://h:1: refused", waiting_s=8.0)
    run_store.apply_list(node_list(waiting))
    assert (batch.status, batch.waiting_s) == ("running", 8.0)
    run_store.apply_list(node_list(batch_state(0, "running")))
    assert (batch.waiting_for, batch.waiting_s) == (None, None)


def test_costs_have_the_currency_that_their_episodes_name_and_else_that_of_the_profile() -> None:
    store = RunStore()
    store.apply_events([live(started(0)), live(started(1, currency=None))])
    assert store.currency == ""
    store.apply_events([live(started(2, currency="EUR")), live(started(3, currency="$" * 500))])
    assert store.currency == "EUR"
    assert [len(each.currency) for each in store.episodes.values()] == [0, 0, 3, MAX_NAME_CHARS]
    store.merge_episode(msgspec.structs.replace(episode(0), currency="CHF"))
    assert store.episodes[episode_id(0)].currency == "CHF"
    store.currency = "USD"  # of the profile
    store.apply_events([live(started(4))])
    assert store.episodes[episode_id(4)].currency == "USD"


def test_durable_events_name_the_currency_of_an_episode_and_of_a_batch() -> None:
    store = RunStore()
    store.apply_events([durable(completed(0, cost=1.0, currency="EUR")), durable(completed(1, cost=1.0))])
    assert [each.currency for each in store.episodes.values()] == ["EUR", ""]
    assert store.currency == "EUR"
    store.apply_events([durable(batch_completed(0, cost=1.0, currency="CHF")), durable(batch_completed(1, cost=1.0))])
    first, second = store.batches.values()
    runs = ([first], [second], [second, first])
    assert [batch_currency(each, store.currency) for each in runs] == ["CHF", "EUR", "CHF"]


def test_a_running_episode_has_the_sums_of_its_steps_and_an_ended_one_those_of_its_end() -> None:
    store = RunStore()
    steps = [timestep(0, n, reward=0.5, cost=0.25) for n in range(3)]
    store.apply_events([live(started(0), *steps[:2])])
    (played,) = store.episodes.values()
    assert (played.reward, played.rounds, played.cost) == (1.0, 2, 0.5)
    store.apply_events([live(ended(0, 4, reward=7.0, rounds=3))])
    store.apply_events([live(steps[2], token(0, 9, "late", step=3))])
    assert (played.reward, played.rounds, len(played.steps), played.streaming) == (7.0, 3, 3, None)
