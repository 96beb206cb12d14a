"""The console without a terminal: textual-serve runs the same command and shows it in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pyte
import pytest

from agentgym_tui.terminal import unsupported_reason
from tests.support.console.launch import CONSOLE
from tests.support.console.log_consoles import log_lines
from tests.support.env_server_process import free_port

COLUMNS, ROWS = 100, 30
TIMEOUT_S = 60.0
SERVE = "import sys; from textual_serve.server import Server; Server(sys.argv[1], port=int(sys.argv[2])).serve()"


class Browser:
    """The page of textual-serve: the screen that the console draws, and the keys that the user types."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)

    async def wait_for(self, *texts: str) -> None:
        """Draw what the console sends until all texts are on the screen."""
        async with asyncio.timeout(TIMEOUT_S):
            while not all(any(text in row for row in self._screen.display) for text in texts):
                message = await self._socket.receive()
                assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), self._screen.display
                if message.type is aiohttp.WSMsgType.BINARY:
                    self._stream.feed(message.data)

    async def send(self, keys: str) -> None:
        await self._socket.send_json(["stdin", keys])

    async def wait_for_end(self) -> None:
        """Wait until the console has ended, which closes the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self._socket.closed:
                await self._socket.receive()


@asynccontextmanager
async def browser(*arguments: str) -> AsyncIterator[Browser]:
    """Serve the console with these arguments and open its page."""
    port = free_port()
    command = shlex.join([CONSOLE, *arguments])
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, command, str(port), stdout=asyncio.subprocess.DEVNULL
    )
    try:
        url = f"http://localhost:{port}/ws?width={COLUMNS}&height={ROWS}"
        async with aiohttp.ClientSession() as client, await connect(client, url) as socket:
            yield Browser(socket)
    finally:
        server.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait(), 10)
        if server.returncode is None:
            server.kill()
            await server.wait()


async def connect(client: aiohttp.ClientSession, url: str) -> aiohttp.ClientWebSocketResponse:
    """Connect as soon as the server listens, which it does not announce."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await client.ws_connect(url)
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)


@pytest.mark.long
async def test_a_browser_shows_the_first_screen_and_sends_keys(tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    log.write_bytes(log_lines(20))
    (library := tmp_path / "library").mkdir()
    async with browser("open", str(log), str(library)) as page:
        await page.wait_for("events.log", "Jump", "Quit")
        await page.send("2")
        await page.wait_for("No episodes yet", "Filter")
        await page.send("q")
        await page.wait_for_end()


def test_a_served_console_needs_no_terminal() -> None:
    assert unsupported_reason({"TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver"}) is None
    assert "needs a terminal" in (unsupported_reason({}) or "")
