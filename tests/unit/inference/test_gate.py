"""The gate of a batch: circuit breakers and rate limits of its endpoints."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.profile import EndpointConfig, RateLimit
from runner.errors import InferenceFault
from runner.inference.endpoints import EndpointSpec
from runner.inference.errors import EndpointFailure, Reason
from runner.inference.gate import WINDOW_S, LocalGate
from runner.inference.http import translate_errors
from runner.inference.manager import InferenceManager
from tests.support.inference import VirtualTime, agent_settings, episode_header, infer, inference_manager
from tests.support.manual_clock import ManualClock
from tests.support.rude_model import PendingRequest, RudeModel, completion_response

FAILURE = EndpointFailure("connection", "refused")


class Timers:
    """Timers that ``advance`` runs on the clock of a test."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        self._due.append((self.clock.now + seconds, function))

    def advance(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while due := [each for each in self._due if each[0] <= end]:
            self._due.remove(first := min(due, key=lambda each: each[0]))
            self.clock.now = max(self.clock.now, first[0])
            first[1]()
        self.clock.now = end


class Caller:
    """A worker that requests admission; ``starts`` are the times of its admitted requests."""

    def __init__(self, gate: LocalGate, clock: ManualClock) -> None:
        self.starts: list[float] = []
        self.refused = 0
        self.active: list[int] = []
        self.n_requests = 0
        self._gate = gate
        self._clock = clock

    def request(self) -> int:
        self.n_requests += 1
        number = self.n_requests

        def on_reply(is_admitted: bool) -> None:
            if is_admitted:
                self.starts.append(self._clock())
                self.active.append(number)
            else:
                self.refused += 1

        self._gate.request("worker", number, "a", on_reply)
        return number

    def end_first(self) -> None:
        if self.active:
            self._gate.release("worker", self.active.pop(0))


def limited_gate(timers: Timers, limit: RateLimit) -> LocalGate:
    return LocalGate([EndpointSpec(name="a", url="http://a", limit=limit)], timers.clock, timers.call_later)


EVENTS = st.lists(st.sampled_from(["request"] * 4 + ["end"] * 3) | st.floats(0.001, 50), max_size=80)


@given(per_minute=st.none() | st.integers(1, 5), at_once=st.none() | st.integers(1, 4), events=EVENTS)
def test_the_limits_are_kept_exactly_and_no_request_waits_needlessly(
    per_minute: int | None, at_once: int | None, events: list[str | float]
) -> None:
    timers = Timers()
    caller = Caller(
        limited_gate(timers, RateLimit(requests_per_minute=per_minute, concurrent_requests=at_once)), timers.clock
    )
    for event in events:
        if isinstance(event, float):
            timers.advance(event)
        elif event == "request":
            caller.request()
        else:
            caller.end_first()
        assert at_once is None or len(caller.active) <= at_once
        recent = [start for start in caller.starts if start > timers.clock.now - WINDOW_S]
        assert per_minute is None or len(recent) <= per_minute
        if len(caller.starts) < caller.n_requests:
            assert len(caller.active) == at_once or len(recent) == per_minute
    for first, last in zip(caller.starts, caller.starts[per_minute or len(caller.starts) :], strict=False):
        assert last - first >= WINDOW_S - 1e-9
    assert caller.refused == 0


def test_new_limits_hold_for_the_requests_to_come_and_those_of_the_last_minute_count() -> None:
    timers = Timers()
    gate = limited_gate(timers, RateLimit(requests_per_minute=3))
    caller = Caller(gate, timers.clock)
    for _ in range(2):
        caller.request()
    gate.set_limits({"a": RateLimit(requests_per_minute=2)})
    caller.request()
    assert len(caller.starts) == 2
    timers.advance(WINDOW_S)
    assert len(caller.starts) == 3
    gate.set_limits({})
    for _ in range(3):
        caller.request()
    assert (len(caller.starts), gate.cause("a")) == (6, "")


def test_a_request_that_waits_is_refused_when_the_endpoint_rests() -> None:
    timers = Timers()
    gate = limited_gate(timers, RateLimit(concurrent_requests=1))
    caller = Caller(gate, timers.clock)
    caller.request()
    caller.request()
    gate.report("a", FAILURE, "refused")
    caller.end_first()
    assert (len(caller.starts), caller.refused, gate.wait_s("a"), gate.cause("a")) == (1, 1, 1, "refused")


def test_a_lost_worker_gives_back_what_it_held_and_waited_for() -> None:
    timers = Timers()
    gate = limited_gate(timers, RateLimit(concurrent_requests=2))
    lost, other = Caller(gate, timers.clock), list[bool]()
    for _ in range(4):
        lost.request()
    gate.request("other", 1, "a", other.append)
    assert (len(lost.starts), other) == (2, [])
    gate.release_all("worker")
    assert (len(lost.starts), lost.refused, other) == (2, 2, [True])
    gate.release("worker", 1)  # a late frame
    gate.release("worker", 99)
    gate.request("other", 2, "a", other.append)
    assert other == [True, True]


class Endpoint:
    """An endpoint without limits that ``clock`` lets rest."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.gate = LocalGate([EndpointSpec(name="a", url="http://a")], self.clock)
        self._n = 0

    def admits(self) -> bool:
        self._n += 1
        replies: list[bool] = []
        self.gate.request("worker", self._n, "a", replies.append)
        return replies == [True]

    def leave(self) -> None:
        self.gate.release("worker", self._n)

    def rest_after(self, reason: Reason, retry_after_s: float | None = None) -> float:
        self.gate.report("a", EndpointFailure(reason, "broken", retry_after_s=retry_after_s), "refused")
        return self.gate.wait_s("a")


def test_a_failed_endpoint_waits_longer_each_time_and_then_admits_one_request() -> None:
    endpoint = Endpoint()
    for wait_s in (1, 2, 4):
        assert endpoint.admits()
        assert (endpoint.rest_after("connection"), endpoint.admits()) == (wait_s, False)
        assert endpoint.gate.cause("a") == "refused"
        endpoint.clock.now += wait_s
    assert endpoint.admits()
    assert not endpoint.admits()
    endpoint.gate.report("unknown", FAILURE, "refused")
    endpoint.gate.report("a", None, "")
    assert endpoint.admits()
    assert endpoint.admits()


def test_a_trial_request_that_leaves_or_expires_admits_the_next() -> None:
    endpoint = Endpoint()
    endpoint.rest_after("connection")
    endpoint.clock.now += 1
    assert endpoint.admits()
    endpoint.leave()
    assert endpoint.admits()
    endpoint.clock.now += 5
    assert endpoint.admits()


@pytest.mark.parametrize(
    ("failures", "rests"),
    [
        ([("timeout", None)], [30]),
        ([("server", None)] * 3, [0, 0, 1]),
        ([("connection", None)] * 8, [1] * 8),
        ([("busy", 7), ("busy", 3)], [7, 7]),
    ],
    ids=["timeout", "server errors from the third", "at once", "the longest requested"],
)
def test_the_rest_depends_on_the_failure(failures: list[tuple[Reason, float | None]], rests: list[float]) -> None:
    endpoint = Endpoint()
    assert [endpoint.rest_after(*failure) for failure in failures] == rests


def test_a_connect_timeout_rests_as_long_as_a_timeout() -> None:
    with pytest.raises(EndpointFailure, match="no connection within 5 s") as raised, translate_errors(str):
        raise httpx.ConnectTimeout("no connection within 5 s")
    assert Endpoint().rest_after(raised.value.reason) == 30


class CountingModel:
    """A behavior that answers after ``parties`` requests are in flight; ``most`` is the largest number in flight."""

    def __init__(self, parties: int) -> None:
        self.most = 0
        self._n = 0
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(parties)

    def __call__(self, pending: PendingRequest) -> None:
        with self._lock:
            self._n += 1
            self.most = max(self.most, self._n)
        self._barrier.wait(60)
        with self._lock:
            self._n -= 1
        pending.send(completion_response("up"))


def limited_manager(url: str, limit: RateLimit) -> InferenceManager:
    settings = agent_settings(EndpointConfig(url=url, name="a", kind="openai"), rate_limits={"a": limit})
    return InferenceManager(settings, {})


async def test_no_more_requests_are_in_flight_than_the_limit_over_several_loops() -> None:
    model = CountingModel(4)
    with RudeModel(model) as server:
        manager = limited_manager(server.url, RateLimit(concurrent_requests=4))

        async def play() -> None:
            await asyncio.gather(*(infer(manager.session(episode_header(str(number)))) for number in range(4)))

        threads = [threading.Thread(target=lambda: asyncio.run(play())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join, 100)
    assert (len(server.chat_requests), model.most) == (16, 4)


async def test_a_cancelled_inference_frees_its_place_and_a_cancelled_wait_takes_none() -> None:
    arrived = threading.Event()

    def hang(pending: PendingRequest) -> None:
        arrived.set()
        pending.stopping.wait(100)

    with RudeModel(hang, completion_response("up")) as server:
        manager = limited_manager(server.url, RateLimit(concurrent_requests=1))
        hanging = asyncio.create_task(infer(manager))
        assert await asyncio.to_thread(arrived.wait, 60)
        waiting = [asyncio.create_task(infer(manager)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        hanging.cancel()
        await asyncio.wait([hanging, waiting[0]], timeout=60)
        assert (await asyncio.wait_for(waiting[1], 60)).message["content"] == "up"
        assert len(server.chat_requests) == 2


async def test_the_wait_for_a_rate_limit_ends_with_the_episodes_time() -> None:
    with RudeModel(completion_response("up")) as server:
        virtual_time = VirtualTime()
        manager = inference_manager(
            server.url, virtual_time=virtual_time, rate_limits={"a": RateLimit(requests_per_minute=1)}
        )
        await infer(manager)
        with pytest.raises(InferenceFault, match=r"no time left: its limit in agent\.rate_limits is 1 per minute"):
            await infer(manager, time_left_s=0.05)
        assert len(server.chat_requests) == 1
        virtual_time.elapsed_s += WINDOW_S
        assert (await infer(manager)).usage.warnings == ()
