from __future__ import annotations

import math

import pytest

from agentgym_tui.state.models import BusLink, BusLinkStatus
from agentgym_tui.state.run_store import RunStore
from runner.events.live import EpisodePaused, EpisodeResumed
from runner.subscribe.messages import Notice
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
    episode,
    episode_id,
    episode_items,
    field_status,
    heartbeat,
    live,
    node_health,
    node_list,
    progress,
    started,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> RunStore:
    return RunStore(now=clock)


def test_a_silent_node_is_lost_with_what_it_plays_until_it_is_heard_of(store: RunStore, clock: FakeClock) -> None:
    store.apply_events([live(heartbeat(), started(0))])
    clock.at += 5
    store.tick()
    assert lost(store) == [False]
    version = store.version
    clock.at += 0.1
    store.tick()
    assert lost(store) == [True]
    assert [each.node_lost for each in store.running_episodes()] == [True]
    assert store.version == version + 1
    store.tick()
    assert store.version == version + 1
    store.apply_events([live(heartbeat())])
    assert lost(store) == [False]
    assert [each.node_lost for each in store.running_episodes()] == [False]


@pytest.mark.parametrize("status", ["stalled", "disconnected"])
def test_no_node_is_lost_for_its_silence_while_nobody_can_be_heard(
    store: RunStore, clock: FakeClock, status: BusLinkStatus
) -> None:
    store.set_link(BusLink("connected"))
    store.apply_events([live(heartbeat(), started(0))])
    clock.at += 5.1
    store.tick()  # before the bus is known to be silent
    store.set_link(BusLink(status))
    assert lost(store) == [False]
    clock.at += 60
    store.tick()
    assert (lost(store), store.next_loss_s) == ([False], math.inf)
    store.set_link(BusLink("connected"))
    store.tick()
    assert (lost(store), store.next_loss_s) == ([False], 5.0)
    clock.at += 5.1
    store.tick()
    assert lost(store) == [True]


def test_a_node_that_was_lost_before_or_is_known_to_be_gone_stays_lost(store: RunStore, clock: FakeClock) -> None:
    store.set_link(BusLink("connected"))
    store.apply_events([live(heartbeat())])
    store.mark_node_lost(NODE)
    store.set_link(BusLink("stalled"))
    assert lost(store) == [True]
    store.apply_events([live(heartbeat())])
    store.set_link(BusLink("connected"))
    clock.at += 11
    store.tick()
    store.set_link(BusLink("stalled"))
    assert lost(store) == [True]


def test_news_of_the_following_is_told_for_a_while(store: RunStore, clock: FakeClock) -> None:
    store.apply_events([Notice(kind="reconnected", text="connected again")])
    assert (store.newest_notice is not None, store.needs_tick) == (True, True)
    clock.at += 59
    version = store.version
    store.tick()
    assert (store.newest_notice is not None, store.version) == (True, version)
    clock.at += 2
    store.tick()
    assert (store.newest_notice, store.version, store.needs_tick) == (None, version + 1, False)


def test_when_the_next_node_may_be_lost_is_known(store: RunStore, clock: FakeClock) -> None:
    store.apply_events([live(heartbeat())])
    clock.at += 3.5
    assert store.next_loss_s == pytest.approx(1.5)


def test_a_node_that_is_known_to_be_gone_is_lost_at_once(store: RunStore) -> None:
    store.apply_events([live(heartbeat(), started(0))])
    store.mark_node_lost("another one")
    assert lost(store) == [False]
    store.mark_node_lost(NODE)
    assert lost(store) == [True]
    assert [each.node_lost for each in store.running_episodes()] == [True]
    store.apply_events([live(heartbeat())])
    assert lost(store) == [False]


def test_the_last_rounds_of_an_interrupted_episode_are_missing_until_its_file_is_read(store: RunStore) -> None:
    first = episode_items(0, n_steps=3)[:-1]
    store.apply_events([live(*first), durable(completed(0, rounds=7, outcome="interrupted"))])
    interrupted = store.episodes[episode_id(0)]
    assert (interrupted.outcome, len(interrupted.steps), interrupted.n_missing) == ("interrupted", 3, 4)


def lost(store: RunStore) -> list[bool]:
    return [node.lost for node in store.nodes.values()]


def test_a_new_process_of_a_node_means_that_the_old_one_was_interrupted(store: RunStore) -> None:
    store.apply_list(node_list(batch_state()))
    store.apply_events([live(started(0)), live(heartbeat(), boot=NEXT_BOOT)])
    assert store.episodes[episode_id(0)].outcome == "interrupted"
    assert store.active_batch() is None
    assert not store.rewards["Wordle"][0].rated
    store.apply_events([live(ended(0, 1)), durable(completed(0))])
    assert store.episodes[episode_id(0)].outcome == "success"
    assert store.rewards["Wordle"][0].rated


def test_what_an_old_process_said_does_not_end_what_the_new_one_plays(store: RunStore) -> None:
    store.apply_health(node_health(boot=NEXT_BOOT))
    store.apply_events([live(started(1), boot=NEXT_BOOT), live(*episode_items(0), boot=BOOT), durable(field_status("stopped"))])
    assert [each.episode_id for each in store.running_episodes()] == [episode_id(1)]
    assert store.episodes[episode_id(0)].outcome == "success"
    assert store.nodes[NODE].status == "idle"


def test_an_episode_read_from_a_journal_belongs_to_the_process_that_lives(store: RunStore) -> None:
    store.merge_episode(episode(0, 2, outcome=None))
    store.apply_health(node_health())
    assert len(store.running_episodes()) == 1
    store.apply_health(node_health(boot=NEXT_BOOT))
    assert store.running_episodes() == []


def test_a_stopped_node_is_not_lost_and_plays_nothing(store: RunStore, clock: FakeClock) -> None:
    store.apply_events([live(started(0)), durable(field_status("stopped"))])
    clock.at += 60
    store.tick()
    assert not store.nodes[NODE].lost
    assert store.running_episodes() == []
    assert not store.needs_tick
    store.apply_events([live(started(1), boot=NEXT_BOOT)])
    assert [each.episode_id for each in store.running_episodes()] == [episode_id(1)]
    assert store.needs_tick


def test_a_run_in_the_foreground_is_no_node(store: RunStore) -> None:
    store.apply_events([durable(field_status("running", NEXT_BOOT, role="run"))])
    assert store.nodes == {}


def test_a_batch_is_paused_when_all_its_episodes_are(store: RunStore) -> None:
    store.apply_list(node_list(batch_state()))
    paused = [EpisodePaused(at=START, episode_id=episode_id(n), seq=1) for n in range(2)]
    store.apply_events([live(started(0), started(1), paused[0])])
    assert (active := store.active_batch()) is not None
    assert active.status == "running"
    store.apply_events([live(paused[1])])
    assert active.status == "paused"
    store.apply_events([live(EpisodeResumed(at=START, episode_id=episode_id(0), seq=2))])
    assert active.status == "running"


def test_progress_of_a_batch_only_goes_on(store: RunStore) -> None:
    store.apply_list(node_list(batch_state(1, "queued"), batch_state(0)))
    store.apply_events([live(progress(0, seq=2, n_done=4), progress(0, seq=1, n_done=3))])
    assert (active := store.active_batch()) is not None
    assert (active.batch_id, active.n_done) == (batch_id(0), 4)
    store.apply_events([live(progress(0, seq=0, n_done=5), boot=NEXT_BOOT)])
    assert active.n_done == 5
    store.apply_events([durable(batch_completed(0)), live(progress(0, seq=1, n_done=5), boot=NEXT_BOOT)])
    assert active.status == "completed"
    assert store.active_batch() is None
