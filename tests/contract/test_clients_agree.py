"""The command, ``runner.client`` and a console's session give orders to one node in turn, and see the same batches."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import pytest

from runner.client.node_client import NodeClient, RunCommand
from runner.client.node_folder import LaunchOptions
from runner.client.target import Target, connected
from runner.events.control import ExtendArgs, ReplayArgs, StartArgs
from runner.util.clock import new_ulid
from tests.support.console.running_session import RunningSession, node_session, running
from tests.support.ctl import HELD_PROFILE, held_environ
from tests.support.held_steps import StepGate
from tests.support.node_process import COMMAND, NodeProcess, clean_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

FIELDS: Final = ("battery_id", "batch_id", "env", "agent", "n_done", "n_planned", "status")
Row: TypeAlias = tuple[Any, ...]
"""The values of ``FIELDS`` of a batch, and whether it waits and is paused."""
RUNS: Final = {"endless": ["EndlessSteps"], "single": ["Maze"], "battery": ["Maze", "Wordle", "BabyAI"]}
"""Environments of the runs; the battery is the tier ``lightweight``."""
Give: TypeAlias = Callable[[str, str, str], Awaitable[object]]
"""Gives an order: the verb, the name of the run or its new id, and its id."""


async def order_by_client(client: NodeClient, verb: str, name: str, run_id: str) -> None:
    match verb:
        case "submit":
            agent = "up" if name == "endless" else "oracle"
            await client.start(StartArgs(batch_id=run_id, envs=RUNS[name], agent=agent, repeat=2))
        case "again":
            await client.replay(ReplayArgs(batch_id=run_id, new_batch_id=name))
        case "move":
            await client.move(run_id, 0)
        case "extend":
            await client.extend(ExtendArgs(batch_id=run_id, repeat=3))
        case _:
            await client.command(cast(RunCommand, verb), batch_id=run_id)


async def order_by_ctl(data_dir: Path, verb: str, name: str, run_id: str) -> None:
    arguments = [run_id]
    if verb == "submit":
        what = ["--battery", "lightweight"] if name == "battery" else ["--run", *RUNS[name]]
        agent = "up" if name == "endless" else "oracle"
        arguments = [*what, "--agent", agent, "--repeat", "2", "--batch-id", run_id]
    elif verb == "again":
        arguments += ["--batch-id", name]
    elif verb == "extend":
        arguments += ["--repeat", "3"]
    assert (await run_ctl(data_dir, verb, *arguments))["changed"]


async def run_ctl(data_dir: Path, *arguments: str) -> Any:  # noqa: ANN401 - any JSON
    command = [COMMAND, "ctl", *arguments, "--json", "--data-dir", str(data_dir)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=clean_environ())
    document = json.loads((await process.communicate())[0])
    assert document["ok"] and process.returncode == 0, document
    return document["result"]


def shown(console: RunningSession) -> list[Row]:
    batches = [*console.store.batches.values()][::-1]
    return [(*(getattr(each, name) for name in FIELDS), each.status == "queued" and each.is_held) for each in batches]


async def agreed(data_dir: Path, client: NodeClient, console: RunningSession) -> list[Row]:
    """Return what all of them show, the newest first, once the console shows what the clients do."""
    columns = (*FIELDS, "paused")
    rows = [tuple(getattr(each, name) for name in columns) for each in (await client.fetch_list()).batches]
    listed = (await run_ctl(data_dir, "list"))["batches"]
    assert [tuple(each[name] for name in columns) for each in listed] == rows
    await console.wait_until(lambda: shown(console) == rows)
    return rows


@pytest.mark.parametrize("first", [0, 1])
async def test_two_clients_and_a_console_agree_after_each_order(tmp_path: Path, first: int) -> None:
    """With another ``first`` one, each order comes from another of the three."""
    profile, data_dir = tmp_path / "profile.yaml", tmp_path / "data"
    profile.write_text(HELD_PROFILE)
    ids = {name: new_ulid() for name in (*RUNS, "replayed")}
    with StepGate() as gate:
        environ = held_environ(tmp_path) | gate.environ
        local = LaunchOptions(config=str(profile), data_dir=str(data_dir))
        with NodeProcess(data_dir, "--config", str(profile), env=environ) as process:
            async with (
                connected(Target(local)) as node,
                running(node_session(data_dir, config=str(profile))) as console,
            ):
                await console.wait_until_connected()
                givers: list[Give] = [
                    partial(order_by_client, node.client),
                    partial(order_by_ctl, data_dir),
                    partial(order_by_client, console.control),
                ]
                turns = itertools.cycle([*givers[first:], *givers[:first]])

                async def order(verb: str, name: str, status: str, *, held: bool = False) -> None:
                    """Give an order; all show its runs with this status then, and the other runs as before."""
                    new = "replayed" if verb == "again" else name
                    await next(turns)(verb, ids[new] if verb == "again" else name, ids[name])
                    rows = await agreed(data_dir, node.client, console)
                    states.update({ids[new]: (status, held)})
                    assert {row[0] or row[1]: row[-2:] for row in rows} == states

                await next(turns)("submit", "endless", ids["endless"])
                step = await asyncio.to_thread(gate.next)
                states = {ids["endless"]: ("running", False)}
                await order("submit", "single", "queued")
                await order("submit", "battery", "queued")
                await order("move", "battery", "queued")
                await order("pause", "endless", "paused")
                await order("pause", "single", "queued", held=True)
                await order("pause", "battery", "queued", held=True)
                await order("extend", "single", "queued", held=True)
                await order("resume", "endless", "running")
                await order("cancel", "battery", "cancelled")
                await order("again", "battery", "queued")
                await order("resume", "single", "queued")
                step.release()
                step = await asyncio.to_thread(gate.next)
                await next(turns)("cancel", "endless", ids["endless"])
                step.release()
                for each in [*console.store.batches]:
                    await process.wait_for_batch(node.connection, each, "completed", "cancelled")
                rows = await agreed(data_dir, node.client, console)
    ended = {row[0] or row[1]: row[-2:] for row in rows}
    assert ended == {ids[name]: ("cancelled", False) for name in ("endless", "battery")} | {
        ids[name]: ("completed", False) for name in ("single", "replayed")
    }
    assert [row[4:6] for row in rows if row[-2] == "completed"] == [(2, 2)] * 3 + [(3, 3)]
