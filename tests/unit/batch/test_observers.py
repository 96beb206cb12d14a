import queue
import threading
from datetime import UTC, datetime

import pytest

from runner.batch.observers import ObserverHub
from runner.types import BatchProgress, Chat, Item, Message, TimestepPlayed
from tests.support.episodes import step


def item(number: int) -> BatchProgress:
    return BatchProgress(
        at=datetime.now(UTC),
        batch_id="b",
        seq=number,
        n_done=0,
        n_planned=0,
        n_success=0,
        mean_reward=None,
        eta_s=None,
    )


def test_every_observer_gets_every_item_in_order() -> None:
    first: list[Item] = []
    second: list[Item] = []
    hub = ObserverHub([first.append, second.append])
    sent = [item(number) for number in range(500)]
    for each in sent:
        hub.emit(each)
    hub.close(timeout_s=10)
    assert first == sent
    assert second == sent
    assert hub.dropped == 0


def test_what_comes_after_a_lull_is_handed_on_too() -> None:
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    hub = ObserverHub([lambda each: seen.put(each.seq)])
    for number in range(3):
        hub.emit(item(number))
        assert seen.get(timeout=10) == number
    hub.close(timeout_s=10)


def test_observers_see_messages_as_they_were() -> None:
    seen: list[Item] = []
    hub = ObserverHub([seen.append])
    message: Message = {"role": "user", "content": "as it was"}
    chat: Chat = [message]
    played = step(0)
    played.observation, played.chats = chat, [chat]
    hub.emit(TimestepPlayed(at=datetime.now(UTC), episode_id="e", seq=1, step=played, reset_observation=chat))
    message["content"] = "changed"
    chat.clear()
    hub.close(timeout_s=10)
    (told,) = seen
    assert isinstance(told, TimestepPlayed)
    as_it_was = [{"role": "user", "content": "as it was"}]
    assert (told.step.observation, told.step.chats, told.reset_observation) == (as_it_was, [as_it_was], as_it_was)


def test_a_raising_observer_is_logged_and_goes_on_receiving(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def observe(each: Item) -> None:
        seen.append(each.seq)
        raise RuntimeError("bad observer")

    hub = ObserverHub([observe])
    for number in range(3):
        hub.emit(item(number))
    hub.close(timeout_s=10)
    assert seen == [0, 1, 2]
    assert "bad observer" in caplog.text


def test_a_stuck_observer_blocks_nobody_and_loses_the_oldest_counted() -> None:
    gate, entered = threading.Event(), threading.Event()
    seen: list[int] = []

    def stuck(each: Item) -> None:
        entered.set()
        gate.wait(30)
        seen.append(each.seq)

    hub = ObserverHub([stuck], capacity=10)
    hub.emit(item(0))
    assert entered.wait(10)
    for number in range(1, 101):
        hub.emit(item(number))
    assert hub.dropped == 90
    gate.set()
    hub.close(timeout_s=10)
    assert seen == [0, *range(91, 101)]
