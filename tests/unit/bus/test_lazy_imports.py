"""What this project changes in the import of nats-py; the tests fail if the imports of nats-py change."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.bus import Certificates
from tests.support.nats_server import NatsServer
from tests.support.publishing import nats_client

pytestmark = pytest.mark.long

NEEDED = ("runner.bus.connection", "runner.subscribe.subscription", "runner.publish.publisher")
"""Imported in this order by a console and by a node before they connect."""

DURING_AN_IMPORT = """
import sys, threading
import runner.bus
from runner.util import late_imports

imported = []

def import_in_a_thread():
    import aiohttp
    imported.append(aiohttp)

def import_meanwhile(stand_ins, name, *args, original=late_imports._import, **kwargs):
    if name == "aiohttp":
        thread = threading.Thread(target=import_in_a_thread)
        thread.start()
        thread.join(20)
    return original(stand_ins, name, *args, **kwargs)

late_imports._import = import_meanwhile
import nats.aio.transport
(aiohttp,) = imported
assert aiohttp is sys.modules["aiohttp"] and isinstance(aiohttp.ClientSession, type)
assert nats.aio.transport.aiohttp.ClientSession is aiohttp.ClientSession
"""

ROUND_TRIP = """
import asyncio, ssl, sys
from runner.bus.hardened_client import HardenedNatsClient

async def round_trip():
    url, *ca = sys.argv[1:]
    client = HardenedNatsClient(tls_required=False)
    await client.connect(url, tls=ssl.create_default_context(cafile=ca[0]) if ca else None)
    subscription = await client.subscribe("a")
    await client.publish("a", b"x" * 100_000)
    assert (await subscription.next_msg(timeout=10)).data == b"x" * 100_000
    await client.close()

asyncio.run(round_trip())
print("aiohttp" in sys.modules)
"""


def run_python(program: str, *args: str) -> str:
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def websocket_url(server: NatsServer) -> str:
    (ports,) = (server.folder / "ports").glob("*.ports")
    (url,) = json.loads(ports.read_text())["websocket"]
    return str(url)


def test_nats_is_imported_without_modules_that_it_hardly_uses() -> None:
    late = {"aiohttp", "multidict", "nats.js.kv", "nats.js.object_store"}
    program = f"import sys, {', '.join(NEEDED)}; print(sorted({late | {'nats'}} & sys.modules.keys()))"
    assert run_python(program) == "['nats']"


def test_a_client_sends_the_installed_version() -> None:
    program = "import runner.bus, nats.aio.client; print(nats.aio.client.__version__)"
    assert run_python(program) == version("nats-py")


async def test_key_value_and_object_stores_can_be_used(nats_server: NatsServer) -> None:
    async with nats_client(nats_server) as client:
        js = client.jetstream()
        values = await js.create_key_value(bucket="values")
        await values.put("key", b"value")
        assert (await (await js.key_value("values")).get("key")).value == b"value"
        objects = await js.create_object_store("objects")
        await objects.put("name", b"data")
        assert (await (await js.object_store("objects")).get("name")).data == b"data"


async def test_the_headers_of_a_stored_message_are_read(nats_server: NatsServer) -> None:
    async with nats_client(nats_server) as client:
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        await js.publish("s", b"payload", headers={"Name": "value"})
        stored = await js.get_msg("S", 1)
        assert stored.headers is not None and stored.headers["Name"] == "value"


def test_an_import_in_another_thread_at_the_same_time_is_unaffected() -> None:
    run_python(DURING_AN_IMPORT)


def test_a_connection_over_tcp_never_imports_aiohttp(nats_server: NatsServer) -> None:
    assert run_python(ROUND_TRIP, nats_server.url) == "False"


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_connection_over_a_websocket_is_possible(scheme: str, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    encryption = certificates.server_config() if scheme == "wss" else {"no_tls": True}
    config = {"websocket": {"host": "127.0.0.1", "port": -1, **encryption}}
    with NatsServer(tmp_path / "server", jetstream=False, config=config) as server:
        url = websocket_url(server)
        assert url.startswith(f"{scheme}://")
        assert run_python(ROUND_TRIP, url, *([str(certificates.ca)] if scheme == "wss" else [])) == "True"
