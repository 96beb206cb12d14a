"""Delivery of items to observers."""

import queue
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.batch.observers import LazyItem, ObserverHub, SelectiveObserver, wants_all
from runner.batch.workspace import Workspace
from runner.store import EpisodeRecorder
from runner.tracing import SpanList, Tracer
from runner.types import BatchProgress, Chat, Item, Message, TimestepPlayed
from runner.worker.episode_reporter import EpisodeReporter
from tests.support.episodes import episode_header, make_step
from tests.support.running_episodes import running_episode


def make_item(number: int) -> BatchProgress:
    return BatchProgress(
        at=datetime.now(UTC),
        batch_id="b",
        seq=number,
        n_done=0,
        n_planned=0,
        n_success=0,
        n_rated=0,
        mean_reward=None,
        eta_s=None,
    )


def test_every_observer_receives_every_item_in_order() -> None:
    first: list[Item] = []
    second: list[Item] = []
    hub = ObserverHub([first.append, second.append])
    sent = [make_item(number) for number in range(500)]
    for item in sent:
        hub.emit(item)
    hub.close(timeout_s=10)
    assert first == sent
    assert second == sent
    assert hub.dropped == 0


def test_items_after_an_idle_period_are_delivered() -> None:
    received: queue.SimpleQueue[int] = queue.SimpleQueue()
    hub = ObserverHub([lambda item: received.put(item.seq)])
    for number in range(3):
        hub.emit(make_item(number))
        assert received.get(timeout=10) == number
    hub.close(timeout_s=10)


def test_observers_receive_copies_of_messages(tmp_path: Path) -> None:
    received: list[Item] = []
    hub, workspace = ObserverHub([received.append]), Workspace(tmp_path, node="n", profile="p")
    header = episode_header()
    feed = running_episode(header, EpisodeRecorder(workspace.store, workspace.index), hub.emit).feed
    reporter = EpisodeReporter(Tracer(), SpanList(), feed)
    message: Message = {"role": "user", "content": "original"}
    chat: Chat = [message]
    step = make_step(0)
    step.observation, step.chats = chat, [chat]
    reporter.on_reset(chat, "env episode 7")
    reporter.emit(TimestepPlayed(at=datetime.now(UTC), episode_id=header.episode_id, seq=0, step=step))
    message["content"] = "changed"
    chat.clear()
    hub.close(timeout_s=10)
    workspace.close()
    (copy,) = received
    assert isinstance(copy, TimestepPlayed)
    original = [{"role": "user", "content": "original"}]
    assert (copy.step.observation, copy.step.chats, copy.reset_observation) == (original, [original], original)


def test_a_failing_observer_is_logged_and_still_receives_items(caplog: pytest.LogCaptureFixture) -> None:
    received: list[int] = []

    def observe(item: Item) -> None:
        received.append(item.seq)
        raise RuntimeError("bad observer")

    hub = ObserverHub([observe])
    for number in range(3):
        hub.emit(make_item(number))
    hub.close(timeout_s=10)
    assert received == [0, 1, 2]
    assert "bad observer" in caplog.text


def test_a_blocked_observer_delays_nothing_and_its_oldest_items_are_dropped_and_counted() -> None:
    gate, entered = threading.Event(), threading.Event()
    received: list[int] = []

    def block(item: Item) -> None:
        entered.set()
        gate.wait(30)
        received.append(item.seq)

    hub = ObserverHub([block], capacity=10)
    hub.emit(make_item(0))
    assert entered.wait(10)
    for number in range(1, 101):
        hub.emit(make_item(number))
    assert hub.dropped == 90
    gate.set()
    hub.close(timeout_s=10)
    assert received == [0, *range(91, 101)]


def test_a_lazy_item_is_decoded_once_and_only_for_observers_of_its_kind() -> None:
    decoded: list[str] = []
    first: list[Item] = []
    second: list[Item] = []
    progress: list[Item] = []

    def decode() -> Item:
        decoded.append(threading.current_thread().name)
        return TimestepPlayed(at=datetime.now(UTC), episode_id="e", seq=1, step=make_step(0))

    hub = ObserverHub([SelectiveObserver(progress.append, lambda kind: kind is BatchProgress)])
    hub.emit(LazyItem(TimestepPlayed, decode))
    hub.emit(make_item(1))
    assert (hub.watches(BatchProgress), hub.watches(TimestepPlayed)) == (True, False)
    hub.close(timeout_s=10)
    assert (decoded, len(progress)) == ([], 1)
    hub = ObserverHub([first.append, second.append])
    hub.emit(LazyItem(TimestepPlayed, decode))
    hub.close(timeout_s=10)
    assert decoded == ["observer"]
    assert first == second
    assert isinstance(first[0], TimestepPlayed)


def test_an_item_that_cannot_be_decoded_does_not_stop_an_observer(caplog: pytest.LogCaptureFixture) -> None:
    received: list[Item] = []

    def fail() -> Item:
        raise ValueError("damaged")

    hub = ObserverHub([received.append])
    hub.emit(LazyItem(TimestepPlayed, fail))
    hub.emit(make_item(1))
    hub.close(timeout_s=10)
    assert len(received) == 1
    assert "an observer failed: ValueError: damaged" in caplog.text


def test_an_inline_observer_receives_the_item_itself_where_it_is_emitted(caplog: pytest.LogCaptureFixture) -> None:
    received: list[tuple[Item, threading.Thread]] = []

    def observe(item: Item) -> None:
        received.append((item, threading.current_thread()))
        if item.seq == 1:
            raise RuntimeError("bad observer")

    hub = ObserverHub([SelectiveObserver(observe, wants_all, is_inline=True)])
    items = [make_item(number) for number in range(3)]
    for item in items:
        hub.emit(item)
    assert all(got is sent for (got, _), sent in zip(received, items, strict=True))
    assert {thread for _, thread in received} == {threading.current_thread()}
    assert "bad observer" in caplog.text
    hub.close()


@pytest.mark.parametrize("is_inline", [True, False])
def test_an_observer_changes_what_it_wants_at_any_time(is_inline: bool) -> None:
    received: list[int] = []
    wanted: set[type[Item]] = set()
    observer = SelectiveObserver(
        lambda item: received.append(item.seq), lambda kind: kind in wanted, is_inline=is_inline
    )
    hub = ObserverHub([observer])
    for number in range(6):
        (wanted.add if number % 2 else wanted.discard)(BatchProgress)
        assert hub.watches(BatchProgress) is bool(number % 2)
        hub.emit(make_item(number))
    hub.close(timeout_s=10)
    assert received == [1, 3, 5]


def test_brief_observers_receive_the_brief_form_until_another_has_decoded_the_item() -> None:
    def decode(number: int) -> Item:
        return make_item(number)

    item = LazyItem(BatchProgress, lambda: decode(1), lambda: decode(2))
    assert item.get_brief().seq == 2
    full = item.get()
    assert full.seq == 1
    assert item.get_brief() is full is item.get()
