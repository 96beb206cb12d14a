from __future__ import annotations

from pathlib import Path

import pytest

from runner.bus.address import BusAddress
from runner.errors import ConfigError
from runner.publish.publisher import Sink
from runner.publish.sink import sink_key, sink_lock_path


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
