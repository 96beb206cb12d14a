from __future__ import annotations

import math
from datetime import timedelta

import pytest
from msgspec.structs import replace

from agentgym_tui.presenters.status_line import status_line
from agentgym_tui.sessions.run_commands import reachable_batches
from agentgym_tui.state.nodes import MAX_NODES, BusLink, BusLinkStatus
from agentgym_tui.state.run_store import RunStore
from runner.events.durable import FieldStatus
from runner.events.live import LiveItem, QueueChanged
from runner.subscribe.messages import Notice
from runner.types import EpisodePaused, EpisodeResumed
from tests.support.console.line_views import line_text
from tests.support.console.samples import (
    BOOT,
    NEXT_BOOT,
    NODE,
    START,
    FakeClock,
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
    field_status,
    heartbeat,
    live,
    machine,
    model_health,
    node_health,
    node_list,
    progress,
    started,
)


def test_a_silent_node_and_its_episodes_are_lost_until_the_next_heartbeat(
    run_store: RunStore, clock: FakeClock
) -> None:
    run_store.apply_events([live(heartbeat(), started(0))])
    clock.at += 3.5
    assert run_store.next_tick_s == pytest.approx(1.5)
    clock.at += 1.5
    run_store.tick()
    assert lost_flags(run_store) == [False]
    version = run_store.version
    clock.at += 0.1
    run_store.tick()
    assert lost_flags(run_store) == [True]
    assert [each.node_lost for each in run_store.running_episodes()] == [True]
    assert run_store.version == version + 1
    run_store.tick()
    assert run_store.version == version + 1
    run_store.apply_events([live(heartbeat())])
    assert lost_flags(run_store) == [False]
    assert [each.node_lost for each in run_store.running_episodes()] == [False]


@pytest.mark.parametrize("status", ["stalled", "disconnected"])
def test_no_silent_node_is_lost_while_the_bus_is_stalled_or_disconnected(
    run_store: RunStore, clock: FakeClock, status: BusLinkStatus
) -> None:
    run_store.set_link(BusLink("connected"))
    run_store.apply_events([live(heartbeat(), started(0))])
    clock.at += 5.1
    run_store.tick()  # the link has not reported the silence yet
    run_store.set_link(BusLink(status))
    assert lost_flags(run_store) == [False]
    clock.at += 60
    run_store.tick()
    assert (lost_flags(run_store), run_store.next_tick_s) == ([False], math.inf)
    run_store.set_link(BusLink("connected"))
    run_store.tick()
    assert (lost_flags(run_store), run_store.next_tick_s) == ([False], 5.0)
    clock.at += 5.1
    run_store.tick()
    assert lost_flags(run_store) == [True]


def test_a_subscription_notice_disappears_after_a_minute(run_store: RunStore, clock: FakeClock) -> None:
    run_store.apply_events([Notice(kind="reconnected", text="connected again")])
    assert (run_store.notice_list.newest is not None, run_store.next_tick_s) == (True, 60.0)
    clock.at += 59
    version = run_store.version
    run_store.tick()
    assert (run_store.notice_list.newest is not None, run_store.version) == (True, version)
    clock.at += 2
    run_store.tick()
    assert (run_store.notice_list.newest, run_store.version, run_store.next_tick_s) == (None, version + 1, math.inf)


def test_marking_a_node_lost_takes_effect_at_once_and_stays_when_the_bus_stalls(
    run_store: RunStore, clock: FakeClock
) -> None:
    run_store.set_link(BusLink("connected"))
    run_store.apply_events([live(heartbeat(), started(0))])
    run_store.mark_node_lost("another one")
    assert lost_flags(run_store) == [False]
    run_store.mark_node_lost(NODE)
    run_store.set_link(BusLink("stalled"))
    assert lost_flags(run_store) == [True]
    assert [each.node_lost for each in run_store.running_episodes()] == [True]
    run_store.apply_events([live(heartbeat())])
    assert lost_flags(run_store) == [False]
    run_store.set_link(BusLink("connected"))
    clock.at += 11
    run_store.tick()
    run_store.set_link(BusLink("stalled"))
    assert lost_flags(run_store) == [True]


def test_the_last_steps_of_an_interrupted_episode_are_missing_until_its_file_is_read(run_store: RunStore) -> None:
    first = episode_items(0, n_steps=3)[:-1]
    run_store.apply_events([live(*first), durable(completed(0, rounds=7, outcome="interrupted"))])
    interrupted = run_store.episodes[episode_id(0)]
    assert (interrupted.outcome, len(interrupted.steps), interrupted.n_missing) == ("interrupted", 3, 4)


def test_items_that_change_nothing_change_no_version(run_store: RunStore) -> None:
    items: list[LiveItem] = [heartbeat("the disk is full"), machine(), env_health(), model_health()]
    run_store.apply_events([live(*items)])
    version = run_store.version
    for item in items:
        run_store.apply_events([live(item)])
    assert run_store.version == version
    later = replace(machine(), at=machine().at + timedelta(seconds=2))
    changed: list[LiveItem] = [heartbeat(), later, env_health(open=1), model_health(cause="x")]
    for n_changes, item in enumerate(changed, 1):
        run_store.apply_events([live(item)])
        assert run_store.version == version + n_changes


def test_the_loss_of_one_node_of_several_concerns_its_episodes_and_batches_alone(
    run_store: RunStore, clock: FakeClock
) -> None:
    run_store.apply_events([live(heartbeat(), started(0), progress(0)), live(heartbeat(), node="far")])
    run_store.apply_events([live(started(1, batch_id=batch_id(1)), progress(1), node="far")])
    run_store.apply_events([durable(FieldStatus(node="theirs", config="p", status="started"))])
    clock.at += 4
    run_store.apply_events([live(heartbeat())])
    clock.at += 1.1
    assert run_store.next_tick_s < 0
    run_store.tick()
    assert {node.name: node.lost for node in run_store.nodes.values()} == {NODE: False, "far": True, "theirs": False}
    assert [each.node_lost for each in run_store.running_episodes()] == [False, True]
    assert [run_store.is_lost(batch) for batch in run_store.batches.values()] == [False, True]
    assert [batch.batch_id for batch in reachable_batches(run_store)] == [batch_id(0)]
    assert run_store.envs["Wordle"].n_running == 1 and not run_store.all_nodes_lost
    shown = line_text(status_line(run_store, "", 200))
    assert "3 nodes, 1 lost" in shown


def lost_flags(store: RunStore) -> list[bool]:
    return [node.lost for node in store.nodes.values()]


def test_a_new_boot_of_a_node_interrupts_the_episodes_of_the_old_one(run_store: RunStore) -> None:
    run_store.apply_list(node_list(batch_state()))
    run_store.apply_events([live(started(0)), live(heartbeat(), boot=NEXT_BOOT)])
    interrupted = run_store.episodes[episode_id(0)]
    assert (interrupted.outcome, interrupted.reward) == ("interrupted", None)
    assert run_store.batch_registry.active() is None
    assert not run_store.rewards["Wordle"][0].rated
    run_store.apply_events([live(ended(0, 1)), durable(completed(0))])
    assert run_store.episodes[episode_id(0)].outcome == "success"
    assert run_store.rewards["Wordle"][0].rated


@pytest.mark.parametrize("node", [NODE, "n" * 300])
def test_an_episode_of_an_old_boot_that_is_seen_late_is_interrupted(run_store: RunStore, node: str) -> None:
    current = live(heartbeat(), node=node, boot=NEXT_BOOT)
    run_store.apply_events([live(started(0), node=node), current])
    run_store.apply_events([live(started(1), node=node), current])
    assert [each.outcome for each in run_store.episodes.values()] == ["interrupted", "interrupted"]


def test_late_messages_of_an_old_boot_do_not_end_the_episodes_of_the_new_one(run_store: RunStore) -> None:
    run_store.apply_health(node_health(boot=NEXT_BOOT))
    run_store.apply_events(
        [live(started(1), boot=NEXT_BOOT), live(*episode_items(0), boot=BOOT), durable(field_status("stopped"))]
    )
    assert [each.episode_id for each in run_store.running_episodes()] == [episode_id(1)]
    assert run_store.episodes[episode_id(0)].outcome == "success"
    assert run_store.nodes[NODE].status == "idle"


def test_an_episode_from_a_journal_belongs_to_the_current_boot(run_store: RunStore) -> None:
    run_store.merge_episode(episode(0, 2, outcome=None))
    run_store.apply_health(node_health())
    assert len(run_store.running_episodes()) == 1
    run_store.apply_health(node_health(boot=NEXT_BOOT))
    assert run_store.running_episodes() == []


def test_a_stopped_node_is_not_lost_and_runs_nothing(run_store: RunStore, clock: FakeClock) -> None:
    run_store.apply_events([live(started(0)), durable(field_status("stopped"))])
    clock.at += 60
    run_store.tick()
    assert not run_store.nodes[NODE].lost
    assert run_store.running_episodes() == []
    assert run_store.next_tick_s == math.inf
    run_store.apply_events([live(started(1), boot=NEXT_BOOT)])
    assert [each.episode_id for each in run_store.running_episodes()] == [episode_id(1)]
    assert run_store.next_tick_s == 5.0


def test_a_batch_is_paused_when_all_its_episodes_are_paused(run_store: RunStore) -> None:
    run_store.apply_list(node_list(batch_state()))
    paused = [EpisodePaused(at=START, episode_id=episode_id(n), seq=1) for n in range(2)]
    run_store.apply_events([live(started(0), started(1), paused[0])])
    assert (active := run_store.batch_registry.active()) is not None
    assert active.status == "running"
    run_store.apply_events([live(paused[1])])
    assert active.status == "paused"
    run_store.apply_events([live(EpisodeResumed(at=START, episode_id=episode_id(0), seq=2))])
    assert active.status == "running"


def test_the_progress_of_a_batch_never_goes_back(run_store: RunStore) -> None:
    run_store.apply_list(node_list(batch_state(1, "queued"), batch_state(0)))
    run_store.apply_events([live(progress(0, seq=2, n_done=4), progress(0, seq=1, n_done=3))])
    assert (active := run_store.batch_registry.active()) is not None
    assert (active.batch_id, active.n_done) == (batch_id(0), 4)
    run_store.apply_events([live(progress(0, seq=0, n_done=5), boot=NEXT_BOOT)])
    assert active.n_done == 5
    run_store.apply_events([durable(batch_completed(0)), live(progress(0, seq=1, n_done=5), boot=NEXT_BOOT)])
    assert active.status == "completed"
    assert run_store.batch_registry.active() is None


@pytest.mark.parametrize("late", ["starting", "idle"])
def test_a_node_runs_while_its_episodes_run_whatever_a_late_status_event_says(run_store: RunStore, late: str) -> None:
    run_store.apply_health(node_health(status="running"))
    run_store.apply_events([live(started(0)), durable(field_status(status=late))])
    node = run_store.nodes[NODE]
    assert (node.status, run_store.node_status(node)) == (late, "running")
    run_store.apply_events([live(ended(0, 1))])
    assert run_store.node_status(node) == late


def test_a_process_that_has_stopped_stays_stopped_whatever_a_late_status_event_says(run_store: RunStore) -> None:
    run_store.apply_events([durable(field_status("running", NEXT_BOOT, role="run"))])
    assert run_store.nodes == {}, "a run in the foreground is no node"
    run_store.apply_events([durable(field_status("stopped")), durable(field_status("running"))])
    assert run_store.nodes[NODE].status == "stopped"
    run_store.apply_events([durable(field_status("running", NEXT_BOOT))])
    assert run_store.nodes[NODE].status == "running"


def test_a_starting_node_shows_how_many_of_its_episodes_it_has_read(run_store: RunStore) -> None:
    run_store.apply_health(node_health(status="starting", indexing="indexing 200 of 100,000"))
    node = run_store.nodes[NODE]
    assert run_store.node_status(node) == "indexing 200 of 100,000"
    run_store.apply_events([live(heartbeat(indexing="indexing 400 of 100,000"))])
    assert run_store.node_status(node) == "indexing 400 of 100,000"
    run_store.apply_events([durable(field_status(status="idle"))])
    assert run_store.node_status(node) == "idle"  # before the next heartbeat
    run_store.apply_events([durable(field_status(status="starting")), live(heartbeat())])
    assert run_store.node_status(node) == "starting"


def test_a_restarted_node_has_only_the_endpoints_of_its_new_profile(run_store: RunStore) -> None:
    run_store.apply_events(
        [live(model_health("gateway"), model_health("ollama")), live(model_health("gateway"), node="b")]
    )
    run_store.apply_events([live(heartbeat(), boot=NEXT_BOOT)])
    assert [*run_store.endpoints] == ["gateway"], "node b still reports it"
    run_store.apply_events([live(model_health("spare"), boot=NEXT_BOOT), live(heartbeat(), node="b", boot=NEXT_BOOT)])
    assert [*run_store.endpoints] == ["spare"]


def queued(n_waiting: int) -> QueueChanged:
    return QueueChanged(at=START, batches=[], n_waiting=n_waiting)


def test_the_queue_of_a_node_that_is_gone_is_not_counted(run_store: RunStore, clock: FakeClock) -> None:
    run_store.set_link(BusLink("connected"))
    run_store.apply_events([live(queued(3), node="gone"), live(queued(4), node="lost"), live(queued(2))])
    assert run_store.batch_registry.n_waiting == 9
    clock.at += 1
    run_store.mark_node_lost("lost")
    assert run_store.batch_registry.n_waiting == 5
    for n in range(MAX_NODES - 2):
        run_store.apply_events([live(heartbeat(), node=f"n{n}"), live(heartbeat())])
    run_store.apply_events([live(heartbeat(), node="one more")])
    assert not {"gone", "lost"} & run_store.nodes.keys()
    assert run_store.batch_registry.n_waiting == 2


def test_an_endpoint_is_not_kept_for_a_node_that_is_gone(run_store: RunStore, clock: FakeClock) -> None:
    health = replace(model_health(), endpoint="old")
    run_store.apply_events([live(health, node="gone")])
    clock.at += 1
    run_store.apply_events([live(health)])
    for n in range(MAX_NODES - 1):
        run_store.apply_events([live(heartbeat(), node=f"n{n}")])
    assert "gone" not in run_store.nodes and NODE in run_store.nodes
    run_store.apply_events([live(heartbeat(), boot=NEXT_BOOT)])
    assert run_store.endpoints == {}
