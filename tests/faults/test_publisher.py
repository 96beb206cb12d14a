from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, StreamConfig

from runner.errors import ConfigError
from runner.events import subjects
from runner.events.subjects import DurableNames
from runner.publish import delivery
from runner.publish import outbox_drain as drain
from runner.publish import stream_routes as routes
from runner.publish.event_factory import enqueue_missing
from runner.publish.outbox import Outbox, SinkCounts
from runner.publish.publisher import Sink
from runner.store import EpisodeStore, open_index
from tests.support.nats_server import NatsServer
from tests.support.publishing import (
    egress_key,
    event_ids,
    nats_client,
    open_outbox,
    outbox_event,
    run_publisher,
    sink_to,
    stored_messages,
)

ROOT = Path(__file__).parents[2]
N_EVENTS, N_KILLS = (2000, 10) if os.environ.get("AGENTGYM_FAULTS") == "full" else (600, 3)
PAUSES_S = (2, 12, 60) if os.environ.get("AGENTGYM_FAULTS") == "full" else (2,)
PASSWORD = "canary-of-the-publisher"


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with open_outbox(tmp_path) as outbox:
        yield outbox


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits less for answers that will not come."""
    monkeypatch.setattr(delivery, "ACK_TIMEOUT_S", 1)
    monkeypatch.setattr(delivery, "UNKNOWN_ROUTE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(routes, "LOOKUP_TIMEOUT_S", 0.5)


def _plain(tmp_path: Path, **config: object) -> NatsServer:
    return NatsServer(tmp_path / "plain", jetstream=False, config=config)


def _all_kinds() -> list[str]:
    return [f"event:{number}" for number in range(3)]


async def test_events_arrive_in_order_with_their_headers(server: NatsServer, outbox: Outbox) -> None:
    outbox.add(*(outbox_event(number, kind) for number, kind in enumerate(subjects.DURABLE)))
    async with run_publisher(outbox, sink_to(server, "local")) as running:
        await running.wait_until_drained()
        outbox.add(*map(outbox_event, range(3, 1000)))
        await running.wait_until_drained()
    messages = await stored_messages(server)
    assert event_ids(messages) == [f"event:{number}" for number in range(1000)]
    assert [message.subject for message in messages[:3]] == list(subjects.DURABLE)
    assert messages[1].data == b'{"number": 1}'
    assert messages[1].headers == {
        "ce-specversion": "1.0",
        "ce-type": subjects.BATCH_COMPLETED,
        "ce-id": "event:1",
        "ce-source": "node1",
        "ce-time": "2026-03-04T05:06:07+00:00",
        "content-type": "application/json",
        "Nats-Msg-Id": "event:1",
    }
    assert outbox.counts() == {"local": SinkCounts(acked=1000)}


async def test_no_event_waits_for_the_next_poll(
    server: NatsServer, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "POLL_S", 600)
    monkeypatch.setattr(drain, "BATCH_SIZE", 10)
    monkeypatch.setattr(drain, "MAX_IN_FLIGHT", 10)
    async with run_publisher(outbox, sink_to(server, "local")) as running:
        await running.wait_for_state("up")
        for first in range(0, 100, 20):
            outbox.add(*map(outbox_event, range(first, first + 19)))
            outbox.add(outbox_event(first + 19))
            await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(server))) == sorted(f"event:{number}" for number in range(100))


async def test_it_ends_when_told_to_even_if_the_client_swallows_that(
    server: NatsServer, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def swallow(*args: object) -> None:
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(routes.StreamRoutes, "learn", swallow)
    async with run_publisher(outbox, sink_to(server, "local")), asyncio.timeout(20):
        await asked.wait()


async def test_killed_servers_lose_and_double_nothing(server: NatsServer, outbox: Outbox) -> None:
    async with run_publisher(outbox, sink_to(server, "local")) as running:
        adding = asyncio.create_task(asyncio.to_thread(_add_slowly, outbox, N_EVENTS))
        for number in range(1, N_KILLS + 1):
            await _until_acked(outbox, N_EVENTS * number // (N_KILLS + 1))
            await asyncio.to_thread(server.restart)
        await adding
        await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(server))) == sorted(f"event:{number}" for number in range(N_EVENTS))


def _add_slowly(outbox: Outbox, n: int) -> None:
    for number in range(n):
        outbox.add(outbox_event(number))
        time.sleep(0.001)


async def _until_acked(outbox: Outbox, n: int) -> None:
    async with asyncio.timeout(30):
        while outbox.counts()["local"].acked < n:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


PUBLISHER = """
import asyncio, sys
from pathlib import Path
from runner.bus.connection import BusAddress
from runner.publish.outbox import Outbox
from runner.publish.publisher import Publisher, Sink

sink = Sink("local", lambda: BusAddress(sys.argv[2]), owned=True)
asyncio.run(Publisher(Outbox(Path(sys.argv[1])), [sink]).run())
"""


@pytest.mark.long
async def test_killed_publishers_lose_and_double_nothing(server: NatsServer, outbox: Outbox) -> None:
    outbox.add(*map(outbox_event, range(6000)))
    for number in (1, 2):
        command = [sys.executable, "-c", PUBLISHER, str(outbox.path), server.url]
        publisher = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        await _until_acked(outbox, 1500 * number)
        publisher.kill()
        await publisher.wait()
    assert outbox.has_pending(["local"])
    async with run_publisher(outbox, sink_to(server, "local")) as running:
        await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(server))) == sorted(f"event:{number}" for number in range(6000))


async def test_a_server_that_lost_its_store_gets_everything_again(server: NatsServer, outbox: Outbox) -> None:
    outbox.add(*map(outbox_event, range(5)))
    async with run_publisher(outbox, sink_to(server, "local")) as running:
        await running.wait_until_drained()
        server.kill()
        server.empty_store()
        await running.wait_for_state("down")
        outbox.add(outbox_event(5))
        server.start()
        await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(server))) == [f"event:{number}" for number in range(6)]


async def test_an_absent_server_is_waited_for(server: NatsServer, outbox: Outbox) -> None:
    server.kill()
    outbox.add(outbox_event(0))
    async with run_publisher(outbox, sink_to(server, "local")) as running:
        await running.wait_for_state("down", "cannot be reached")
        started = time.monotonic()
        outbox.add(outbox_event(1))
        assert await running.publisher.wait_until_drained(5)  # there is nothing to wait for
        assert time.monotonic() - started < 1
        server.start()
        await running.wait_for_state("up")
        await running.wait_until_drained()
    assert event_ids(await stored_messages(server)) == ["event:0", "event:1"]


async def test_what_has_no_address_yet_is_absent(server: NatsServer, outbox: Outbox) -> None:
    there: list[Sink] = []
    later = Sink("local", lambda: there[0].read_address() if there else None, owned=True)
    outbox.add(outbox_event(0))
    async with run_publisher(outbox, later) as running:
        assert await running.publisher.wait_until_drained(5)
        assert running.publisher.states[0].status == "absent"
        there.append(sink_to(server))
        await running.wait_for_state("up")
        await running.wait_until_drained()
    assert event_ids(await stored_messages(server)) == ["event:0"]


async def test_an_outage_of_one_sink_does_not_touch_the_other(
    tmp_path: Path, server: NatsServer, outbox: Outbox
) -> None:
    with _plain(tmp_path) as gone:
        pass
    async with run_publisher(outbox, sink_to(server, "local"), sink_to(gone)) as running:
        await running.wait_for_state("down", sink="egress")
        outbox.add(*map(outbox_event, range(20)))
        await running.wait_until_drained()
        assert outbox.counts() == {"local": SinkCounts(acked=20), egress_key(gone): SinkCounts(pending=20)}
    assert len(await stored_messages(server)) == 20


def _unusable() -> None:
    raise ConfigError("the bus URL is not valid")


@pytest.mark.parametrize("read_address", [lambda: None, _unusable])
async def test_nothing_waits_for_an_egress_without_an_address(
    server: NatsServer, outbox: Outbox, read_address: Callable[[], None]
) -> None:
    async with run_publisher(outbox, sink_to(server, "local"), Sink("egress", read_address)) as running:
        outbox.add(*map(outbox_event, range(3)))
        await running.wait_until_drained()
    assert outbox.counts() == {"local": SinkCounts(acked=3)}


async def test_an_egress_that_gets_an_address_gets_all_that_is_kept(
    tmp_path: Path, server: NatsServer, outbox: Outbox
) -> None:
    there: list[Sink] = []
    egress = Sink("egress", lambda: there[0].read_address() if there else None)
    with NatsServer(tmp_path / "other") as other:
        await _stream(other)
        async with run_publisher(outbox, sink_to(server, "local"), egress) as running:
            outbox.add(outbox_event(0))
            await running.wait_for_state("absent", sink="egress")
            await running.wait_until_drained()
            there.append(sink_to(other))
            await running.wait_for_state("up", sink="egress")
            await running.wait_until_drained()
            outbox.add(outbox_event(1))
            await running.wait_until_drained()
        assert event_ids(await stored_messages(other, "THEIRS")) == ["event:0", "event:1"]
        assert outbox.counts() == {"local": SinkCounts(acked=2), egress_key(other): SinkCounts(acked=2)}


async def test_processes_with_different_egresses_serve_each_its_own(
    tmp_path: Path, server: NatsServer, outbox: Outbox
) -> None:
    with NatsServer(tmp_path / "other") as other, open_outbox(outbox.path.parent) as second:
        for each in (server, other):
            await _stream(each)
        async with run_publisher(outbox, sink_to(server)) as here, run_publisher(second, sink_to(other)) as there:
            outbox.add(*map(outbox_event, range(20)))
            await here.wait_until_drained()
            await there.wait_until_drained()
        for each in (server, other):
            assert event_ids(await stored_messages(each, "THEIRS")) == [f"event:{number}" for number in range(20)]
            assert outbox.counts()[egress_key(each)] == SinkCounts(acked=20)


async def test_an_egress_that_moves_gets_there_what_it_got_before(
    tmp_path: Path, server: NatsServer, outbox: Outbox
) -> None:
    addresses = [sink_to(server).read_address()]
    with NatsServer(tmp_path / "other") as other:
        for each in (server, other):
            await _stream(each)
        async with run_publisher(outbox, Sink("egress", lambda: addresses[-1])) as running:
            outbox.add(outbox_event(0))
            await running.wait_until_drained()
            addresses.append(sink_to(other).read_address())
            server.kill()
            await running.wait_for_state("down")
            outbox.add(outbox_event(1))
            await running.wait_until_drained()
        assert sorted(event_ids(await stored_messages(other, "THEIRS"))) == ["event:0", "event:1"]
    assert outbox.counts()[egress_key(server)] == SinkCounts(acked=1, pending=1)


@pytest.mark.long
@pytest.mark.parametrize("paused_s", PAUSES_S)
async def test_a_paused_server_gets_everything_once(server: NatsServer, outbox: Outbox, paused_s: float) -> None:
    async with run_publisher(outbox, sink_to(server, "local")) as running:
        outbox.add(outbox_event(0))
        await running.wait_until_drained()
        server.pause()
        started = time.monotonic()
        outbox.add(*map(outbox_event, range(1, 400)))
        assert time.monotonic() - started < 1
        await running.wait_for_state("stalled", "does not answer")
        assert time.monotonic() - started < 6
        await asyncio.sleep(max(0.0, started + paused_s - time.monotonic()))
        server.resume()
        await running.wait_until_drained()
    assert sorted(event_ids(await stored_messages(server))) == sorted(f"event:{number}" for number in range(400))


async def _stream(server: NatsServer, **config: Any) -> None:  # noqa: ANN401
    async with nats_client(server) as client:
        config = {"name": "THEIRS", "subjects": ["agentgym.>"], **config}
        await client.jetstream().add_stream(StreamConfig(**config))


async def test_somebody_elses_stream_is_used_and_nothing_made(server: NatsServer, outbox: Outbox) -> None:
    await _stream(server)
    outbox.add(*map(outbox_event, range(5)))
    async with run_publisher(outbox, sink_to(server)) as running:
        await running.wait_until_drained()
    assert event_ids(await stored_messages(server, "THEIRS")) == [f"event:{number}" for number in range(5)]
    async with nats_client(server) as client:
        assert [info.config.name for info in await client.jetstream().streams_info()] == ["THEIRS"]


async def test_a_full_stream_is_waited_out(server: NatsServer, outbox: Outbox) -> None:
    await _stream(server, max_msgs=5, discard=DiscardPolicy.NEW)
    outbox.add(*map(outbox_event, range(20)))
    async with run_publisher(outbox, sink_to(server)) as running:
        await running.wait_for_state("stalled", "full")
        assert outbox.counts()[egress_key(server)] == SinkCounts(pending=15, acked=5)
        async with nats_client(server) as client:
            await client.jetstream().update_stream(StreamConfig(name="THEIRS", subjects=["agentgym.>"], max_msgs=100))
        await running.wait_until_drained()
        assert running.publisher.states[0].status == "up"
    assert sorted(event_ids(await stored_messages(server, "THEIRS"))) == sorted(f"event:{number}" for number in range(20))


async def test_what_is_too_large_becomes_a_dead_letter_and_the_rest_goes_on(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server", config={"max_payload": 4096}) as server:
        await _stream(server, max_msg_size=2048)
        too_large = outbox_event(1, payload=b"x" * 5000)
        by_headers = outbox_event(2, payload=b"x" * 4000)
        for_the_stream = outbox_event(3, payload=b"x" * 2500)
        outbox.add(outbox_event(0), too_large, by_headers, for_the_stream, outbox_event(4))
        async with run_publisher(outbox, sink_to(server)) as running:
            await running.wait_until_drained()
            outbox.add(outbox_event(5))
            await running.wait_until_drained()
            assert [state.status for state in running.states if state.status != "connecting"] == ["up"]
        assert event_ids(await stored_messages(server, "THEIRS")) == ["event:0", "event:4", "event:5"]
    letters = [letter for letter in outbox.dead_letters() if letter.sink == egress_key(server)]
    assert [letter.id for letter in letters] == ["event:1", "event:2", "event:3"]
    assert "the broker's limit is 4096" in letters[0].reason
    assert "the broker's limit is 4096" in letters[1].reason
    assert "size exceeds maximum" in letters[2].reason


def _users(publish: object, password: str = PASSWORD) -> dict[str, object]:
    user = {"user": "runner", "password": password, "permissions": {"publish": publish, "subscribe": ">"}}
    return {"authorization": {"users": [user, {"user": "admin", "password": "admin"}]}}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("jetstream", [True, False])
async def test_a_denied_subject_becomes_a_dead_letter(jetstream: bool, tmp_path: Path, outbox: Outbox) -> None:
    denied, allowed = subjects.EPISODE_COMPLETED, subjects.BATCH_COMPLETED
    config = _users({"allow": [">"], "deny": [denied]})
    with NatsServer(tmp_path / "server", jetstream=jetstream, config=config) as server:
        if jetstream:
            async with nats_client(server, user="admin", password="admin") as client:
                await client.jetstream().add_stream(StreamConfig(name="THEIRS", subjects=["agentgym.>"]))
        outbox.add(outbox_event(0, denied), outbox_event(1, allowed), outbox_event(2, denied))
        async with run_publisher(outbox, sink_to(server, user="runner", password=PASSWORD)) as running:
            await running.wait_until_drained()
            letters = [letter for letter in outbox.dead_letters() if letter.sink == egress_key(server)]
            assert [letter.id for letter in letters] == ["event:0", "event:2"]
            assert all(f"not allowed to publish to {denied}" in letter.reason for letter in letters)
            assert outbox.counts()[egress_key(server)] == SinkCounts(acked=1, dead=2)
            server.config = _users({"allow": [">"]})
            await asyncio.to_thread(server.restart)
            await running.wait_for_state("down")
            outbox.retry_dead()
            await running.wait_until_drained()
            assert outbox.counts()[egress_key(server)] == SinkCounts(acked=3)
    assert PASSWORD not in repr(running.states)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("jetstream", [True, False])
async def test_without_the_right_to_ask_for_streams_events_still_arrive(
    jetstream: bool, tmp_path: Path, outbox: Outbox
) -> None:
    config = _users({"allow": ["agentgym.>"]})
    heard: list[Msg] = []
    with NatsServer(tmp_path / "server", jetstream=jetstream, config=config) as server:
        async with nats_client(server, user="admin", password="admin") as client:
            if jetstream:
                await client.jetstream().add_stream(StreamConfig(name="THEIRS", subjects=["agentgym.>"]))
            await client.subscribe("agentgym.>", cb=_into(heard))
            await client.flush()
            outbox.add(*(outbox_event(number, kind) for number, kind in enumerate(subjects.DURABLE)))
            async with run_publisher(outbox, sink_to(server, user="runner", password=PASSWORD)) as running:
                await running.wait_until_drained()
            await client.flush()
            assert event_ids(heard) == _all_kinds()
            assert outbox.counts()[egress_key(server)] == SinkCounts(acked=3)
        if jetstream:
            assert event_ids(await stored_messages(server, "THEIRS", user="admin", password="admin")) == _all_kinds()


def _into(heard: list[Msg]) -> Callable[[Msg], Awaitable[None]]:
    async def hear(message: Msg) -> None:
        heard.append(message)

    return hear


async def test_a_plain_subscriber_of_a_plain_server_gets_all_three_subjects(tmp_path: Path, outbox: Outbox) -> None:
    heard: list[Msg] = []
    with _plain(tmp_path) as server:
        async with nats_client(server) as client:
            await client.subscribe("agentgym.>", cb=_into(heard))
            await client.flush()
            outbox.add(*(outbox_event(number, kind) for number, kind in enumerate(subjects.DURABLE)))
            async with run_publisher(outbox, sink_to(server)) as running:
                await running.wait_until_drained()
            await client.flush()
    assert event_ids(heard) == _all_kinds()
    assert [message.subject for message in heard] == list(subjects.DURABLE)


async def test_one_who_listens_to_everything_is_not_taken_for_jetstream(tmp_path: Path, outbox: Outbox) -> None:
    heard: list[Msg] = []
    with _plain(tmp_path) as server:
        async with nats_client(server) as client:
            await client.subscribe(">", cb=_into(heard))
            await client.flush()
            outbox.add(*(outbox_event(number, kind) for number, kind in enumerate(subjects.DURABLE)))
            async with run_publisher(outbox, sink_to(server)) as running:
                await running.wait_until_drained()
                assert "stalled" not in [state.status for state in running.states]
            await client.flush()
    assert event_ids([message for message in heard if message.subject in subjects.DURABLE]) == _all_kinds()


async def test_a_wrong_password_is_named_and_events_wait_for_the_right_one(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server", config=_users(">", "another")) as server:
        outbox.add(outbox_event(0))
        started = time.monotonic()
        async with run_publisher(outbox, sink_to(server, user="runner", password=PASSWORD)) as running:
            state = await running.wait_for_state("down", "credentials")
            assert time.monotonic() - started < 4
            assert PASSWORD not in str(state)
            server.config = _users(">")
            await asyncio.to_thread(server.restart)
            await running.wait_for_state("up")
            await running.wait_until_drained()
            server.reload(_users(">", "rotated"))
            await running.wait_for_state("down")
            outbox.add(outbox_event(1))
            server.reload(_users(">"))
            async with asyncio.timeout(15):
                while outbox.counts()[egress_key(server)].pending:
                    await running.publisher.wait_until_drained(1)
        assert outbox.counts()[egress_key(server)] == SinkCounts(acked=2)


@pytest.mark.long
async def test_an_event_sent_again_is_stored_once_inside_the_window_and_known_by_its_id_outside(
    server: NatsServer, outbox: Outbox
) -> None:
    await _stream(server, duplicate_window=2)
    for again in range(3):
        if again == 2:
            await asyncio.sleep(2.5)  # the server's own window, which nothing announces
        (folder := outbox.path.parent / f"copy-{again}").mkdir()
        with open_outbox(folder) as copy:
            copy.add(outbox_event(0))
            async with run_publisher(copy, sink_to(server)) as running:
                await running.wait_until_drained()
        assert event_ids(await stored_messages(server, "THEIRS")) == ["event:0"] * (1 if again < 2 else 2)


async def test_one_process_at_a_time_serves_a_sink_and_the_next_takes_over(server: NatsServer, outbox: Outbox) -> None:
    with open_outbox(outbox.path.parent) as other:
        async with run_publisher(other, sink_to(server, "local")) as second:
            async with run_publisher(outbox, sink_to(server, "local")) as first:
                other.add(*map(outbox_event, range(50)))
                await first.wait_until_drained()
                await second.wait_until_drained()
            other.add(outbox_event(50))
            await second.wait_until_drained()
    assert event_ids(await stored_messages(server)) == [f"event:{number}" for number in range(51)]


KILLED = """
import os, sys
from pathlib import Path
from typing import Any
from runner.store import EpisodeStore, open_index
from tests.support.episodes import Recording

store = EpisodeStore(Path(sys.argv[1]))
index = open_index(store)
for _ in range(3):
    print(Recording(store, index).record_episode().episode_id, flush=True)
os.kill(os.getpid(), 9)
"""


async def test_a_process_killed_before_publishing_loses_no_episode(server: NatsServer, outbox: Outbox) -> None:
    data_dir = outbox.path.parent
    player = [sys.executable, "-c", KILLED, str(data_dir)]
    killed = await asyncio.to_thread(subprocess.run, player, cwd=ROOT, capture_output=True, text=True, timeout=60)
    played = killed.stdout.split()
    assert len(played) == 3
    for _ in range(2):
        index = open_index(EpisodeStore(data_dir))
        enqueue_missing(index, outbox, DurableNames())
        index.close()
        async with run_publisher(outbox, sink_to(server, "local")) as running:
            await running.wait_until_drained()
        assert sorted(event_ids(await stored_messages(server))) == sorted(f"episode:{episode_id}" for episode_id in played)


async def test_a_canary_stays_out_of_the_outbox(tmp_path: Path, outbox: Outbox) -> None:
    with NatsServer(tmp_path / "server", config=_users({"allow": ["agentgym.eval.>", "$JS.API.>"]})) as server:
        outbox.add(outbox_event(0))
        async with run_publisher(outbox, sink_to(server, user="runner", password=PASSWORD)) as running:
            await running.wait_until_drained()
    assert outbox.counts()[egress_key(server)].dead == 1
    assert all(PASSWORD not in sink for sink in outbox.counts())
    files = await asyncio.to_thread(lambda: [path.read_bytes() for path in tmp_path.glob("outbox*")])
    assert len(files) >= 3
    assert not any(PASSWORD.encode() in content for content in files)
