from __future__ import annotations

from pathlib import Path

import pytest

from runner.bus.address import BusAddress
from runner.errors import ConfigError
from runner.publish.publisher import Sink
from runner.publish.sink import sink_key, sink_lock_path


def place(url: str, name: str = "egress", token: str | None = None) -> str | None:
    return sink_key(Sink(name, lambda: BusAddress(url, token=token)))


def test_the_own_broker_is_one_sink_at_any_port() -> None:
    assert place("nats://127.0.0.1:4001", "local") == place("nats://127.0.0.1:4002", "local") == "local"
    assert sink_key(Sink("local", lambda: None)) == "local"


def test_an_external_broker_is_identified_by_its_servers() -> None:
    assert place("nats://somewhere:4222") == "egress nats://somewhere:4222"
    assert place("nats://user:canary@somewhere") == place("nats://somewhere", token="canary") == place("somewhere")
    assert place("nats://a,nats://b") == place("nats://b:4222,nats://a:4222") != place("nats://a")


@pytest.mark.parametrize("url", [None, "ftp://somewhere"])
def test_without_a_usable_address_there_is_none(url: str | None) -> None:
    assert sink_key(Sink("egress", lambda: BusAddress(url) if url else None)) is None


def test_an_address_that_cannot_be_read_is_none() -> None:
    def damaged() -> BusAddress:
        raise ConfigError("damaged")

    assert sink_key(Sink("egress", damaged)) is None


def test_each_sink_has_its_own_lock() -> None:
    outbox = Path("/data/outbox.sqlite")
    assert sink_lock_path(outbox, "local") == Path("/data/outbox.local.lock")
    first, second = (sink_lock_path(outbox, f"egress nats://{host}/../:4222") for host in "ab")
    assert first != second
    assert first.parent == second.parent == outbox.parent
