"""A console stopped by a signal: the node continues, and the console reports missing items when it resumes."""

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
from tests.support.nats_server import NatsAccount
from tests.support.publishing import nats_client
from tests.support.terminal import Terminal

pytestmark = pytest.mark.long

SMALL_STREAM = StreamConfig(
    name=LIVE_STREAM,
    subjects=[LIVE_SUBJECTS],
    storage=StorageType.MEMORY,
    discard=DiscardPolicy.OLD,
    max_bytes=256 * 1024,
)
N_ITEMS = 3_000
"""More than the pipes and the stream hold."""

TEXT = "thinking " * 300


async def test_a_resumed_console_reports_missing_items_and_continues(bus: NatsAccount, tmp_path: Path) -> None:
    async with nats_client(bus) as node:
        await node.jetstream().add_stream(SMALL_STREAM)
        command = (CONSOLE, "watch", "--nats", bus.url)
        with Terminal(*command, columns=200, rows=50, cwd=tmp_path) as terminal:
            await asyncio.to_thread(terminal.wait_for, "connected")
            await _publish(node, started())
            await asyncio.to_thread(terminal.wait_for, "Wordle task 0")
            terminal.process.send_signal(signal.SIGSTOP)
            for seq in range(1, N_ITEMS):
                await _publish(node, token(seq=seq, text=TEXT))
            await _publish(node, timestep(seq=N_ITEMS))
            assert node.stats["reconnects"] == 0
            terminal.process.send_signal(signal.SIGCONT)
            await asyncio.to_thread(terminal.wait_for, "missed: the stream AGENTGYM_LIVE had dropped them")
            await asyncio.to_thread(terminal.wait_for, "items missing")
            await asyncio.to_thread(terminal.wait_for, "round 1")
            terminal.send("q")
            assert await asyncio.to_thread(terminal.wait_exit) == 0
            assert terminal.attributes_after == terminal.attributes_before


def test_a_resumed_console_repaints_its_screen(tmp_path: Path) -> None:
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


async def _publish(node: Client, *items: LiveItem) -> None:
    """Publish items and wait until the stream has stored them."""
    subject = live_subject(channel_of(str(type(items[0]).__struct_config__.tag)), NODE)
    await node.jetstream().publish(subject, encode(LiveBatch(node=NODE, boot=BOOT, dropped=0, items=[*items])))


@pytest.mark.skipif(shutil.which("setsid") is None, reason="install setsid (util-linux): job control needs it")
def test_a_console_continued_in_the_background_stops_until_it_is_in_the_foreground(tmp_path: Path) -> None:
    with Terminal("bash", "--norc", "--noprofile", "-i", cwd=tmp_path) as terminal:
        terminal.send(f"{CONSOLE} open {tmp_path}\n")
        terminal.wait_for("Quit")
        terminal.wait_until_quiet(0.5)
        children = psutil.Process(terminal.process.pid).children(recursive=True)
        console = next(child for child in children if "open" in child.cmdline())
        console.send_signal(signal.SIGSTOP)
        terminal.wait_for("Stopped")  # the shell is in the foreground
        n_switches = console.num_ctx_switches()
        console.send_signal(signal.SIGCONT)  # it finds itself in the background and stops
        terminal.wait_for(
            lambda: console.num_ctx_switches() != n_switches and console.status() == psutil.STATUS_STOPPED
        )
        terminal.wait_for(lambda: _is_stopped_job(terminal))
        n_raw = terminal.n_raw
        terminal.send("fg\n")
        terminal.wait_for(lambda: b"\x1b[?1049h" in terminal.raw_from(n_raw) and "Quit" in terminal.text)
        terminal.send("q")
        terminal.wait_for(lambda: not console.is_running())
        terminal.send("exit\n")
        terminal.wait_exit()


def _is_stopped_job(terminal: Terminal) -> bool:
    """Return whether the shell lists the job as stopped; ``fg`` does not continue a job it believes to be running."""
    n_raw = terminal.n_raw
    terminal.send("jobs\n")
    terminal.wait_for(lambda: b"[1]" in terminal.raw_from(n_raw))
    return b"Stopped" in terminal.raw_from(n_raw)
