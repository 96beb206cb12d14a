"""Reply subjects, and the limits of a service's requests."""

from __future__ import annotations

import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.nuid import NUID

from runner.bus.request_server import MAX_REPLY_CHARS, FairQueue, RefusalBudget, is_inbox, sender_of
from runner.events.subjects import DURABLE, LIVE_CHANNELS, control_subject, live_subject

_TOKENS = st.text(alphabet=string.ascii_letters + string.digits + "_-$=/", min_size=1, max_size=30)


@pytest.mark.parametrize(
    "subject",
    [
        *DURABLE,
        *(live_subject(channel, "n1") for channel in LIVE_CHANNELS),
        control_subject("n1"),
        "$JS.API.STREAM.DELETE.AGENTGYM_EVENTS",
        "$JS.ACK.AGENTGYM_EVENTS.c.1.1.1.1.0",
        "$SYS.REQ.SERVER.PING",
        "_INBOX",
        "_INBOX.",
        "_INBOX..a",
        "_INBOX.a.",
        "_INBOX.>",
        "_INBOX.*.a",
        "_INBOX.a b",
        "_INBOX.a\r\nPUB x 0",
        "_INBOX.a\n",
        "_INBOX.\x1b[2J",
        "_INBOX.é",
        "_INBOX._INBOX." + "a" * MAX_REPLY_CHARS,
        "_INBOXES.a",
        "x._INBOX.a",
        "",
    ],
)
def test_other_subjects_are_no_inboxes(subject: str) -> None:
    assert not is_inbox(subject)


@given(
    prefix=st.sampled_from(["_INBOX", "_INBOX_alice", "_INBOX.sipd", "_R_"]),
    tokens=st.lists(_TOKENS, min_size=1, max_size=3),
)
def test_inboxes_of_clients_are_inboxes(prefix: str, tokens: list[str]) -> None:
    assert is_inbox(".".join([prefix, *tokens]))


@given(st.text(max_size=60))
def test_an_inbox_is_a_literal_subject_under_an_inbox_prefix(text: str) -> None:
    for subject in (text, f"_INBOX.{text}", f"_INBOX_{text}", f"_R_.{text}"):
        if is_inbox(subject):
            assert subject.startswith(("_INBOX.", "_INBOX_", "_R_."))
            assert subject.isascii()
            assert subject.isprintable()
            assert not set(subject) & set(" *>")
            assert all(subject.split("."))


def test_all_inboxes_of_a_connection_have_one_sender() -> None:
    mine, other = NUID(), NUID()
    inboxes = {f"_INBOX.{mine.next().decode()}" for _ in range(1000)}
    assert len({sender_of(inbox) for inbox in inboxes} | {sender_of(f"{min(inboxes)}.7")}) == 1
    assert sender_of(f"_INBOX.{other.next().decode()}") != sender_of(min(inboxes))
    assert sender_of("") == ""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that shows its last element."""
    times = [0.0]
    monkeypatch.setattr("runner.bus.request_server.time.monotonic", lambda: times[-1])
    return times


def test_a_sender_beyond_its_budget_gets_replies_again_in_the_next_second(clock: list[float]) -> None:
    budget = RefusalBudget()
    assert [budget.allows("a") for _ in range(60)] == [True] * 50 + [False] * 10
    assert budget.allows("b")
    clock.append(1.0)
    assert sum(budget.allows("a") for _ in range(60)) == 50


def test_many_senders_share_a_budget(clock: list[float]) -> None:
    budget = RefusalBudget()
    assert sum(budget.allows(str(number)) for number in range(20_000)) == RefusalBudget.TOTAL
    clock.append(1.0)
    assert budget.allows("new")


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_a_queue_is_bounded_and_keeps_the_order_of_each_sender(steps: list[tuple[str, bool]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(max_per_sender=3, max_total=6)
    added: list[tuple[str, int]] = []
    left: list[tuple[str, int]] = []
    for number, (sender, pops) in enumerate(steps):
        request = (sender, number)
        without_room = queue.add(sender, request)
        if without_room != request:
            added.append(request)
            left += [without_room] if without_room is not None else []
        left += [queue.pop()] if pops and queue else []
        waiting = Counter(sender for sender, _ in set(added) - set(left))
        assert sum(waiting.values()) == len(queue) <= 6
        assert max(waiting.values(), default=0) <= 3
    left += [queue.pop() for _ in range(len(queue))]
    assert sorted(left) == sorted(added)
    for name in "abcd":
        assert [request for request in left if request[0] == name] == [r for r in added if r[0] == name]


def test_a_sender_with_many_requests_delays_another_by_one() -> None:
    queue: FairQueue[str] = FairQueue(max_per_sender=100, max_total=300)
    for _ in range(100):
        assert queue.add("many", "m") is None
    assert queue.add("many", "one more") == "one more"
    assert queue.add("few", "f") is None
    assert [queue.pop(), queue.pop()] == ["m", "f"]


def test_the_newest_request_has_room_among_requests_of_many_senders() -> None:
    queue: FairQueue[int] = FairQueue(max_per_sender=100, max_total=300)
    discarded = [queue.add(str(number), number) for number in range(1000)]
    assert discarded[300:] == [*range(700)]
    assert [queue.pop() for _ in range(300)] == [*range(700, 1000)]
