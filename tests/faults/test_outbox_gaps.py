"""Processes killed in every gap between an episode file, its event, the acknowledgement and the mark of the outbox.

Each test counts what a stream of an independent broker keeps: one event per episode file and per ended batch. The
process is only seen from outside, so that the tests hold whatever stores the outbox: a proxy before the broker stops an
event or an acknowledgement, and the files of a state directory are removed or restored as by a user.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from ulid import ULID

from runner.events.subjects import DURABLE
from tests.support.command import run_agentgym
from tests.support.event_proxy import EventProxy, Fate, Rule, stop
from tests.support.full_disk import FileSizeLimit
from tests.support.nats_server import NatsServer
from tests.support.node_events import episode_event_ids, wait_until
from tests.support.node_process import COMMAND, NodeProcess, clean_environ
from tests.support.publishing import add_external_stream, event_ids, stored_messages
from tests.support.tcp_proxy import run_proxy

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

STREAM = "THEIRS"
N_EPISODES = 3
WAIT_S = 60.0
Process: TypeAlias = subprocess.Popen[str]
Player: TypeAlias = Callable[[Path, EventProxy, str, int], AbstractAsyncContextManager[Process]]


@pytest.fixture
async def egress(nats_server: NatsServer) -> AsyncIterator[EventProxy]:
    """A proxy before a broker whose stream keeps all durable events."""
    await add_external_stream(nats_server, subjects=[*DURABLE])
    async with run_proxy(EventProxy(nats_server.port)) as proxy:
        yield proxy


@asynccontextmanager
async def foreground_run(data_dir: Path, egress: EventProxy, env: str, n_episodes: int) -> AsyncIterator[Process]:
    """Play a batch by a command, which is killed at the end of the block."""
    process = start_command(egress, "--run", env, "--repeat", str(n_episodes), "--data-dir", str(data_dir))
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)


def start_command(egress: EventProxy, *options: str) -> Process:
    environ = clean_environ(NATS_URL=egress.url)
    command = [COMMAND, "--agent", "oracle", *options]
    return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@asynccontextmanager
async def node(data_dir: Path, egress: EventProxy, env: str, n_episodes: int) -> AsyncIterator[Process]:
    """Play a batch on a node, which is killed at the end of the block."""
    with NodeProcess(data_dir, env=clean_environ(NATS_URL=egress.url)) as process:
        async with await process.connect() as connection:
            await process.request(
                connection, "start", batch_id=str(ULID()), envs=[env], agent="oracle", repeat=n_episodes
            )
        assert process.process is not None
        yield process.process


@pytest.fixture(params=[foreground_run, node], ids=["run", "node"])
def play(request: pytest.FixtureRequest) -> Player:
    """What plays, is killed, and is started again on the same state directory."""
    player: Player = request.param
    return player


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def play_to_the_end(play: Player, data_dir: Path, egress: EventProxy) -> None:
    """Start again with a batch of one episode, and wait until the broker has acknowledged all that was ever stored."""
    egress.pass_all()
    before = batch_event_ids(data_dir)

    def is_over() -> bool:
        added = batch_event_ids(data_dir) - before
        return bool(added) and added <= {*egress.acknowledged}

    async with play(data_dir, egress, "Wordle", 1) as process:
        await wait_until(lambda: is_over() or process.poll() is not None, WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while await n_pending(data_dir, egress):
                if process.poll() is not None:  # a run that was slow to connect leaves the rest to the next
                    await play_to_the_end(play, data_dir, egress)


async def wait_for_gap(egress: EventProxy, data_dir: Path, n_files: int = N_EPISODES) -> None:
    """Wait until the proxy has stopped something, and the directory has this number of episodes.

    How many events or acknowledgements are stopped is up to the process: it may wait for the first before the next.
    """
    await egress.wait_until_stopped()
    await wait_until(lambda: len(episode_event_ids(data_dir)) == n_files, WAIT_S)


def batch_event_ids(data_dir: Path) -> set[str]:
    """Return the event ids of all batches of which anything is stored."""
    return {f"batch:{folder.name}" for folder in data_dir.glob("runs/*")}


async def n_pending(data_dir: Path, egress: EventProxy) -> int:
    """Return how many events wait for the broker, as the command tells."""
    environ = {"NATS_URL": egress.url}
    shown = await asyncio.to_thread(run_agentgym, data_dir.parent, "outbox", "--json", environ=environ)
    sinks = json.loads(shown.stdout)["sinks"]
    return int(sinks[f"egress {egress.url}"]["pending"])


async def count_stored(server: NatsServer, kind: str) -> Counter[str]:
    """Return how often the stream has each event of a kind."""
    ids = event_ids(await stored_messages(server, STREAM))
    return Counter(event_id for event_id in ids if event_id.startswith(f"{kind}:"))


def sent_again(egress: EventProxy) -> set[str]:
    """Return the events of episodes and batches that left more than once; a broker may drop what is repeated."""
    counts = Counter(event_id for event_id in egress.sent if event_id.startswith(("episode:", "batch:")))
    return {event_id for event_id, n in counts.items() if n > 1}


async def assert_each_episode_once(server: NatsServer, data_dir: Path) -> None:
    assert await count_stored(server, "episode") == dict.fromkeys(episode_event_ids(data_dir), 1)


async def assert_each_event_once(server: NatsServer, data_dir: Path) -> None:
    """Assert that all batches of the directory have ended, too."""
    await assert_each_episode_once(server, data_dir)
    assert await count_stored(server, "batch") == dict.fromkeys(batch_event_ids(data_dir), 1)


def remove_derived(data_dir: Path) -> None:
    for name in ("index.sqlite", "text.sqlite"):
        for path in data_dir.glob(f"{name}*"):
            path.unlink()


def remove_nothing(data_dir: Path) -> None:
    """Leave a state directory as the killed process left it."""


EVENT_GAPS = {
    "one event has left": ("episode", 1, remove_nothing),
    "one event has left, and derived files are removed": ("episode", 1, remove_derived),
    "the batch's has not": ("batch", 0, remove_nothing),
}


@pytest.mark.parametrize(("kind", "n_before", "remove"), EVENT_GAPS.values(), ids=EVENT_GAPS)
async def test_an_event_that_never_left_is_sent_after_a_kill(
    play: Player,
    kind: str,
    n_before: int,
    remove: Callable[[Path], None],
    data_dir: Path,
    egress: EventProxy,
    nats_server: NatsServer,
) -> None:
    egress.on_event = stop(Fate.HOLD, kind, after=n_before)
    async with play(data_dir, egress, "Maze", N_EPISODES):
        await wait_for_gap(egress, data_dir)
    assert not {*egress.stopped} & (await count_stored(nats_server, kind)).keys()
    remove(data_dir)
    await play_to_the_end(play, data_dir, egress)
    await assert_each_event_once(nats_server, data_dir)


ACK_GAPS = {"of all episodes but one": ("episode", 1), "of the batch": ("batch", 0)}


@pytest.mark.parametrize(("kind", "n_before"), ACK_GAPS.values(), ids=ACK_GAPS)
async def test_an_event_whose_acknowledgement_never_arrived_is_stored_once_after_a_kill(
    play: Player, kind: str, n_before: int, data_dir: Path, egress: EventProxy, nats_server: NatsServer
) -> None:
    egress.on_ack = stop(Fate.HOLD, kind, after=n_before)
    async with play(data_dir, egress, "Maze", N_EPISODES):
        await wait_for_gap(egress, data_dir)
    assert {*egress.stopped} <= (await count_stored(nats_server, kind)).keys()
    await play_to_the_end(play, data_dir, egress)
    await assert_each_event_once(nats_server, data_dir)


async def test_an_event_whose_mark_was_never_written_is_stored_once_after_a_kill(
    play: Player, data_dir: Path, egress: EventProxy, nats_server: NatsServer
) -> None:
    egress.on_ack = stop(Fate.HOLD, "episode")
    async with play(data_dir, egress, "Maze", N_EPISODES) as process:
        await wait_for_gap(egress, data_dir)
        FileSizeLimit(process.pid).fill()  # the acknowledgements arrive, and nothing can be written
        egress.release()
        await asyncio.to_thread(read_until, process, "the external broker is connected, but events wait")
    assert {*egress.stopped} <= {*egress.acknowledged}
    await play_to_the_end(play, data_dir, egress)
    await assert_each_event_once(nats_server, data_dir)


def read_until(process: Process, text: str) -> None:
    """Read what a process writes to standard error until a line has a text."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return
    raise AssertionError("".join(lines))


async def test_a_marked_event_is_not_sent_again_after_a_kill_and_without_derived_files(
    play: Player, data_dir: Path, egress: EventProxy, nats_server: NatsServer
) -> None:
    for _ in range(2):
        await play_to_the_end(play, data_dir, egress)
    remove_derived(data_dir)
    await play_to_the_end(play, data_dir, egress)
    assert sent_again(egress) == set()
    await assert_each_event_once(nats_server, data_dir)


@pytest.mark.parametrize("lost", ["event", "acknowledgement"])
async def test_a_connection_that_is_cut_around_an_event_neither_loses_nor_repeats_it(
    play: Player, lost: str, data_dir: Path, egress: EventProxy, nats_server: NatsServer
) -> None:
    rule: Rule = stop(Fate.CUT, "episode", after=1, times=2)
    if lost == "event":
        egress.on_event = rule
    else:
        egress.on_ack = rule

    def is_over() -> bool:
        return len({*egress.acknowledged} & episode_event_ids(data_dir)) == N_EPISODES

    async with play(data_dir, egress, "Maze", N_EPISODES) as process:
        await egress.wait_until_stopped()
        await wait_until(lambda: is_over() or process.poll() is not None, WAIT_S)
    await play_to_the_end(play, data_dir, egress)
    await assert_each_event_once(nats_server, data_dir)


async def test_an_episode_stored_right_before_a_kill_gets_its_event(
    play: Player, data_dir: Path, egress: EventProxy, nats_server: NatsServer
) -> None:
    for number in (2, 3):
        n_before = len(episode_event_ids(data_dir))
        async with play(data_dir, egress, "BabyAI", 5000):
            await wait_until(lambda n=n_before + number: len(episode_event_ids(data_dir)) >= n)  # type: ignore[misc]
    await play_to_the_end(play, data_dir, egress)
    await assert_each_episode_once(nats_server, data_dir)


def remove_all_but_episodes(data_dir: Path) -> None:
    for path in data_dir.iterdir():
        if path.name != "runs":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


async def test_a_new_address_gets_what_ends_from_then_on_and_all_that_is_stored_on_request(
    play: Player, data_dir: Path, egress: EventProxy, nats_server: NatsServer
) -> None:
    run = ["--run", "Maze", "--agent", "oracle", "--repeat", str(N_EPISODES)]
    assert (await asyncio.to_thread(run_agentgym, data_dir.parent, *run)).returncode == 0
    remove_all_but_episodes(data_dir)
    earlier = episode_event_ids(data_dir)
    await play_to_the_end(play, data_dir, egress)
    assert (await count_stored(nats_server, "episode")).keys() == episode_event_ids(data_dir) - earlier
    environ = {"NATS_URL": egress.url}
    sent = await asyncio.to_thread(run_agentgym, data_dir.parent, "outbox", "--send-history", environ=environ)
    queued = f"{N_EPISODES + 1} earlier events queued for the external broker {egress.url}\n"
    assert (sent.returncode, sent.stderr) == (0, queued)
    await play_to_the_end(play, data_dir, egress)
    await assert_each_event_once(nats_server, data_dir)


def copy_files(source: Path, target: Path) -> None:
    """Copy the files of a state directory without its folders, over those that are there."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.is_file():
            shutil.copy2(path, target)


def remove_files(data_dir: Path) -> None:
    for path in data_dir.iterdir():
        if path.is_file():
            path.unlink()


async def test_an_outbox_restored_from_an_older_copy_neither_loses_nor_repeats_an_event(
    play: Player, tmp_path: Path, data_dir: Path, egress: EventProxy, nats_server: NatsServer
) -> None:
    await play_to_the_end(foreground_run, data_dir, egress)
    marked, n_before = {*egress.sent}, len(episode_event_ids(data_dir))
    egress.on_event = stop(Fate.HOLD, "episode")
    async with foreground_run(data_dir, egress, "Maze", N_EPISODES):
        await wait_for_gap(egress, data_dir, n_before + N_EPISODES)
    copy_files(data_dir, older := tmp_path / "older")
    await play_to_the_end(foreground_run, data_dir, egress)  # what waited then, and one more
    remove_files(data_dir)
    copy_files(older, data_dir)
    await play_to_the_end(play, data_dir, egress)
    await assert_each_event_once(nats_server, data_dir)
    assert sent_again(egress) & marked == set()
