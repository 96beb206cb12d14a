"""What counts as an acknowledgement of an event, on a scripted broker, and how a sink is identified."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from runner.bus.address import BusAddress
from runner.errors import ConfigError
from runner.publish.delivery import DeliveryResult, PermanentFailure, TransientFailure, deliver
from runner.publish.outbox import Ack
from runner.publish.publisher import Sink
from runner.publish.sink import sink_key, sink_lock_path
from tests.support.publishing import outbox_event


class ScriptedBroker:
    """A client whose requests get one answer, and whose flush may fail."""

    max_payload = 1 << 20

    def __init__(self, answer: bytes = b"", flush_fails: bool = False) -> None:
        self.published: list[str] = []
        self._answer, self._flush_fails = answer, flush_fails

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self.published.append(subject)

    async def request(self, subject: str, payload: bytes, **options: Any) -> Msg:  # noqa: ANN401
        self.published.append(subject)
        return Msg(_client=cast("Client", self), data=self._answer)

    async def flush(self, timeout: float) -> None:  # noqa: ASYNC109 - the name in nats-py
        if self._flush_fails:
            raise TimeoutError


async def delivered(broker: ScriptedBroker, route: Any = "stream") -> DeliveryResult:  # noqa: ANN401
    return await deliver(cast("Client", broker), outbox_event(1), route)


async def test_an_event_is_acknowledged_by_stream_and_sequence() -> None:
    result = await delivered(ScriptedBroker(b'{"stream": "S", "seq": 7}'))
    assert result == Ack(outbox_event(1).id, "S", 7)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"{}", b"null", b"[]", b'{"stream": "S"}', b'{"seq": 7}', b"+OK", b"\xff", b"7"),
        *(b'{"stream": "", "seq": 7}', b'{"stream": "S", "seq": 0}', b'{"stream": "S", "seq": 9223372036854775808}'),
    ],
)
async def test_another_answer_is_no_acknowledgement(answer: bytes) -> None:
    assert await delivered(ScriptedBroker(answer)) == TransientFailure("the answer is not an acknowledgement")


@pytest.mark.parametrize(
    ("code", "kind"), [(10054, PermanentFailure), (10077, TransientFailure), (10047, TransientFailure)]
)
async def test_only_an_event_that_is_too_large_fails_for_good(code: int, kind: type[DeliveryResult]) -> None:
    answer = b'{"error": {"code": 400, "err_code": %d, "description": "no"}}' % code
    assert isinstance(await delivered(ScriptedBroker(answer)), kind)


async def test_without_a_stream_an_event_counts_once_the_server_has_it() -> None:
    assert await delivered(ScriptedBroker(), "core") == Ack(outbox_event(1).id)
    assert isinstance(await delivered(ScriptedBroker(flush_fails=True), "core"), TransientFailure)


def key_of(url: str, name: str = "egress", token: str | None = None) -> str | None:
    return sink_key(Sink(name, lambda: BusAddress(url, token=token)))


def test_the_local_broker_is_one_sink_at_any_port() -> None:
    assert key_of("nats://127.0.0.1:4001", "local") == key_of("nats://127.0.0.1:4002", "local") == "local"
    assert sink_key(Sink("local", lambda: None)) == "local"


def test_an_external_broker_is_identified_by_its_servers() -> None:
    assert key_of("nats://somewhere:4222") == "egress nats://somewhere:4222"
    assert key_of("nats://user:canary@somewhere") == key_of("nats://somewhere", token="canary") == key_of("somewhere")
    assert key_of("nats://a,nats://b") == key_of("nats://b:4222,nats://a:4222") != key_of("nats://a")


@pytest.mark.parametrize("url", [None, "ftp://somewhere"])
def test_a_sink_without_a_usable_address_has_no_key(url: str | None) -> None:
    assert sink_key(Sink("egress", lambda: BusAddress(url) if url else None)) is None


def test_an_unreadable_address_has_no_key() -> None:
    def damaged() -> BusAddress:
        raise ConfigError("damaged")

    assert sink_key(Sink("egress", damaged)) is None


def test_each_sink_has_its_own_lock_file() -> None:
    data_dir = Path("/data")
    assert sink_lock_path(data_dir, "local") == Path("/data/outbox.local.lock")
    first, second = (sink_lock_path(data_dir, f"egress nats://{host}/../:4222") for host in "ab")
    assert first != second
    assert first.parent == second.parent == data_dir
