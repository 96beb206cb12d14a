"""nats-py is imported without aiohttp, and nothing else notices."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.long

DURING_AN_IMPORT = """
import sys, threading

thread = threading.Thread(target=__import__, args=("aiohttp",))

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "nats.aio.transport":
            thread.start()

sys.meta_path.insert(0, Finder())
import runner.bus
thread.join()
assert isinstance(sys.modules["aiohttp"].ClientSession, type)
"""
ROUND_TRIP = """
import asyncio, sys
from runner.bus.address import BusAddress
from runner.bus.connection import NatsConnection

async def round_trip():
    async with await NatsConnection.open(BusAddress(sys.argv[1]), name="n") as connection:
        subscription = await connection.client.subscribe("a")
        await connection.client.publish("a", b"x" * 100_000)
        assert (await subscription.next_msg(timeout=10)).data == b"x" * 100_000

asyncio.run(round_trip())
print("aiohttp" in sys.modules)
"""


def run_python(program: str, *args: str) -> str:
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_an_import_of_aiohttp_in_another_thread_at_the_same_time_succeeds() -> None:
    run_python(DURING_AN_IMPORT)


@pytest.mark.parametrize("program", ["import runner.bus, aiohttp", "import aiohttp, runner.bus"])
def test_aiohttp_can_be_imported_before_and_after(program: str) -> None:
    assert run_python(f"{program}; print(aiohttp.ClientSession.__name__)") == "ClientSession"


def test_a_connection_never_imports_aiohttp(nats_server: NatsServer) -> None:
    assert run_python(ROUND_TRIP, nats_server.url) == "False"
