"""A console that is stopped in its tracks while a node plays: the node goes on, and the console says what it lacks."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from runner.events.codec import encode
from runner.events.live import LiveBatch, LiveItem
from runner.events.subjects import LIVE_STREAM, LIVE_SUBJECTS, channel_of, live_subject
from tests.support.console.launch import CONSOLE
from tests.support.console.live_items import BOOT, NODE, started, timestep, token
from tests.support.nats_server import NatsServer
from tests.support.publishing import nats_client
from tests.support.terminal import Terminal

pytestmark = pytest.mark.long

KEPT = StreamConfig(
    name=LIVE_STREAM,
    subjects=[LIVE_SUBJECTS],
    storage=StorageType.MEMORY,
    discard=DiscardPolicy.OLD,
    max_bytes=256 * 1024,
)
MORE_THAN_PIPES_AND_STREAM_HOLD = 3_000
TEXT = "thinking " * 300


async def test_it_says_what_it_lacks_and_goes_on(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        async with nats_client(server) as node:
            await node.jetstream().add_stream(KEPT)
            command = (CONSOLE, "watch", "--nats", server.url)
            with Terminal(*command, columns=200, rows=50, cwd=tmp_path) as terminal:
                await asyncio.to_thread(terminal.wait_for, "connected")
                await _say(node, started())
                await asyncio.to_thread(terminal.wait_for, "Wordle task 0")
                terminal.process.send_signal(signal.SIGSTOP)
                for seq in range(1, MORE_THAN_PIPES_AND_STREAM_HOLD):
                    await _say(node, token(seq=seq, text=TEXT))
                await _say(node, timestep(seq=MORE_THAN_PIPES_AND_STREAM_HOLD))
                assert node.stats["reconnects"] == 0
                terminal.process.send_signal(signal.SIGCONT)
                await asyncio.to_thread(terminal.wait_for, "left stream AGENTGYM_LIVE before they were read")
                await asyncio.to_thread(terminal.wait_for, "items missing")
                await asyncio.to_thread(terminal.wait_for, "round 1")
                terminal.send("q")
                assert await asyncio.to_thread(terminal.wait_exit) == 0
                assert terminal.attributes_after == terminal.attributes_before


def test_its_screen_is_whole_again(tmp_path: Path) -> None:
    with Terminal(CONSOLE, "open", str(tmp_path), cwd=tmp_path) as terminal:
        terminal.wait_for("Quit")
        terminal.wait_until_quiet(0.5)
        before, n_raw = terminal.text, terminal.n_raw
        terminal.process.send_signal(signal.SIGSTOP)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for(lambda: b"\x1b[?1049h" in terminal.raw_from(n_raw))
        terminal.wait_for(lambda: terminal.text == before)
        terminal.send("q")
        assert terminal.wait_exit() == 0


async def _say(node: Client, *items: LiveItem) -> None:
    """In order: each is kept before the next one goes."""
    subject = live_subject(channel_of(str(type(items[0]).__struct_config__.tag)), NODE)
    await node.jetstream().publish(subject, encode(LiveBatch(node=NODE, boot=BOOT, dropped=0, items=[*items])))


@pytest.mark.skipif(shutil.which("setsid") is None, reason="a shell with jobs of its own takes setsid")
def test_it_comes_back_to_the_front_after_it_went_on_behind(tmp_path: Path) -> None:
    shell = ("setsid", "--ctty", "--wait", "bash", "--norc", "--noprofile", "-i")
    with Terminal(*shell, cwd=tmp_path) as terminal:
        terminal.send(f"{CONSOLE} open {tmp_path}\n")
        terminal.wait_for("Quit")
        terminal.wait_until_quiet(0.5)
        started_by = psutil.Process(terminal.process.pid).children(recursive=True)
        console = next(child for child in started_by if "open" in child.cmdline())
        console.send_signal(signal.SIGSTOP)
        terminal.wait_for("Stopped")  # the shell has the terminal
        n_switches = console.num_ctx_switches()
        console.send_signal(signal.SIGCONT)  # it looks where it is, and stops by itself
        terminal.wait_for(
            lambda: console.num_ctx_switches() != n_switches and console.status() == psutil.STATUS_STOPPED
        )
        terminal.wait_for(lambda: _known_as_stopped(terminal))
        n_raw = terminal.n_raw
        terminal.send("fg\n")
        terminal.wait_for(lambda: b"\x1b[?1049h" in terminal.raw_from(n_raw) and "Quit" in terminal.text)
        terminal.send("q")
        terminal.wait_for(lambda: not console.is_running())
        terminal.send("exit\n")
        terminal.wait_exit()


def _known_as_stopped(terminal: Terminal) -> bool:
    """Whether the shell has noticed: what it takes for a running job it would only wait for, not have go on."""
    n_raw = terminal.n_raw
    terminal.send("jobs\n")
    terminal.wait_for(lambda: b"[1]" in terminal.raw_from(n_raw))
    return b"Stopped" in terminal.raw_from(n_raw)
