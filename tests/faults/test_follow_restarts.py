"""``ctl follow`` over restarts of an external broker and of the node, in any order, until the batch has ended."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.types import Outcome
from tests.support.ctl import HELD_PROFILE, held_environ
from tests.support.held_steps import StepGate
from tests.support.nats_server import NatsServer
from tests.support.node_process import COMMAND, NodeProcess, clean_environ
from tests.support.publishing import add_external_stream

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

N_STEPS = 3
"""Steps of an episode of ``HeldSteps``."""


class Following:
    """A running ``ctl follow --json``, and the items that it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.items: list[dict[str, Any]] = []

    async def read_until(self, kind: str) -> dict[str, Any]:
        """Return the next item of a kind."""
        async with asyncio.timeout(60):
            while line := await self._output.readline():
                self.items.append(json.loads(line)["result"])
                if self.items[-1]["kind"] == kind:
                    return self.items[-1]
        raise AssertionError(f"the follower ended without an item of the kind {kind}: {self.items}")

    async def read_to_end(self) -> int:
        """Read the other items; return the exit code."""
        async with asyncio.timeout(90):
            self.items += [json.loads(line)["result"] async for line in self._output]
            return await self.process.wait()

    @property
    def _output(self) -> asyncio.StreamReader:
        assert self.process.stdout is not None
        return self.process.stdout

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.items if item["kind"] == kind]


@asynccontextmanager
async def follow(server: NatsServer, node: NodeProcess, batch_id: str) -> AsyncIterator[Following]:
    command = [COMMAND, "ctl", "follow", batch_id, "--json", "--nats", server.url, "--node", node.name]
    process = await asyncio.create_subprocess_exec(*command, env=clean_environ(), stdout=asyncio.subprocess.PIPE)
    try:
        yield Following(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def play(gate: StepGate, n_steps: int) -> None:
    """Let the node play some steps; it waits at the next one then."""
    for _ in range(n_steps):
        (await asyncio.to_thread(gate.next)).release()


def check_items(following: Following, data_dir: Path, batch_id: str) -> None:
    """Check that each stored episode is an item once, and that each of its steps is one, or missing in a gap."""
    stored = [json.loads(path.read_bytes()) for path in data_dir.glob(f"runs/{batch_id}/*.json")]
    rounds = {episode["episode_id"]: episode["rounds"] for episode in stored}
    assert sorted(each["episode_id"] for each in following.of_kind("episode")) == sorted(rounds)
    steps = Counter((each["episode_id"], each["index"]) for each in following.of_kind("step"))
    assert set(steps.values()) == {1}
    gaps = " ".join(each["text"] for each in following.of_kind("gap"))
    for episode_id, n_rounds in rounds.items():
        indices = sorted(index for each, index in steps if each == episode_id)
        is_complete = indices == list(range(n_rounds))
        assert is_complete or f"{n_rounds - len(indices)} steps of episode {episode_id} are missing" in gaps


@pytest.mark.parametrize("broker_dies", ["before the node", "with the node", "before the resumed episode ends"])
async def test_every_episode_of_a_resumed_batch_is_followed_once(tmp_path: Path, broker_dies: str) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(HELD_PROFILE)
    with NatsServer(tmp_path / "nats") as server, StepGate() as gate:
        await add_external_stream(server)
        environ = held_environ(tmp_path, NATS_URL=server.url) | gate.environ
        with NodeProcess(tmp_path / "data", "--config", str(profile), env=environ) as node:
            async with await node.connect() as connection:
                batch_id = await node.start_batch(connection, "HeldSteps", agent="up", repeat=4)
            async with follow(server, node, batch_id) as following:
                await play(gate, N_STEPS)
                first = await following.read_until("episode")
                if broker_dies == "before the node":
                    server.kill()
                    await play(gate, N_STEPS)
                    held = await asyncio.to_thread(gate.next)  # so the second episode has ended
                    server.start()
                    second = await following.read_until("episode")
                    assert (first["task_index"], second["task_index"]) == (0, 1)
                    held.release()
                await play(gate, 1)
                if broker_dies == "with the node":
                    server.kill()
                node.kill()
                if broker_dies == "with the node":
                    server.start()
                node.start()
                async with await node.connect() as connection:
                    await node.request(connection, "resume", batch_id=batch_id)
                    await play(gate, 1)
                    if broker_dies == "before the resumed episode ends":
                        server.kill()
                        await play(gate, N_STEPS)
                        server.start()
                    gate.open()
                    ended = await node.wait_for_batch(connection, batch_id, "completed")
                assert await following.read_to_end() == 0
    outcomes = Counter(each["outcome"] for each in following.of_kind("episode"))
    assert outcomes == {Outcome.SUCCESS: 4, Outcome.INTERRUPTED: 1}
    (end,) = following.of_kind("batch")
    assert end == following.items[-1]
    assert (end["status"], end["n_episodes"], end["n_planned"]) == ("completed", 4, ended["n_planned"])
    check_items(following, tmp_path / "data", batch_id)
