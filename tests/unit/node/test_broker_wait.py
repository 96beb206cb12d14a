from __future__ import annotations

import asyncio
import time

import pytest

from runner.bus.errors import BusError
from runner.node import node


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "BROKER_START_TIMEOUT_S", 4)
    monkeypatch.setattr(node, "_WAIT_PERIOD_S", 0.05)


async def test_a_node_that_was_stopped_for_longer_than_the_limit_still_waits_for_its_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    waiting = asyncio.create_task(node._wait_for_broker(ready))
    await asyncio.sleep(0)
    # As if the whole process were stopped: its loop sees no event, but its clock goes on.
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + 60)
    await asyncio.sleep(0)
    ready.set()
    await asyncio.wait_for(waiting, 5)
    assert waiting.exception() is None


async def test_a_silent_broker_is_an_error_that_names_its_log() -> None:
    with pytest.raises(BusError, match=r"own broker did not answer within 4 s; see logs/nats-server.log"):
        await asyncio.wait_for(node._wait_for_broker(asyncio.Event()), 5)
