"""Local worker processes of a run, seen from outside: their start, their isolation from the run, and their end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from nats.aio.msg import Msg
from ulid import ULID

from tests.support.command import COMMAND, ENVIRON, limited_command
from tests.support.held_steps import HeldStep, StepGate
from tests.support.node_process import NodeProcess
from tests.support.waiting_batch import wait_until
from tests.support.worker_runs import (
    StartMode,
    WorkerRun,
    all_successful,
    descriptors,
    own_channels,
    wait_until_ended,
    wait_until_reaped,
    worker_environ,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="run on Linux: reads /proc"),
]

BOTH_MODES = pytest.mark.parametrize("mode", ["fork", "spawn"])
MAX_DESCRIPTORS = 15
"""Standard streams, the channel, three files for each of three event loops, the journal, and the gate's connection."""

STALLED_S = 20.0
"""Seconds without a step after which a run stalls; others of its steps take milliseconds."""


@pytest.fixture
def gate() -> Iterator[StepGate]:
    with StepGate() as gate:
        yield gate


@pytest.fixture
def environ(tmp_path: Path, gate: StepGate) -> dict[str, str]:
    """Variables of runs that find the environments of these tests."""
    return worker_environ(tmp_path) | gate.environ


def held_steps(gate: StepGate, n_workers: int) -> list[HeldStep]:
    """Return a step of each worker."""
    steps = [gate.next() for _ in range(n_workers)]
    assert len({step.pid for step in steps}) == n_workers
    return steps


def start_child(run: WorkerRun, count: int = 1) -> list[psutil.Process]:
    """Wait until ``HoldingLock`` has started ``count`` processes; return the latest one and its worker."""
    child = psutil.Process(int(run.wait_for_log(": child ", count)[-1]))
    worker = child.parent()
    assert worker is not None
    run.descendants()
    return [child, worker]


@BOTH_MODES
def test_workers_play_all_episodes_and_end_with_the_run(
    mode: StartMode, tmp_path: Path, gate: StepGate, environ: dict[str, str]
) -> None:
    warning = {"PYTHONWARNINGS": "error::ResourceWarning"}
    with WorkerRun(tmp_path, "HeldSteps", "--repeat", "6", workers=2, environ=environ | warning, mode=mode) as run:
        steps = held_steps(gate, 2)
        processes = run.descendants()
        assert {step.pid for step in steps} < {process.pid for process in processes}
        gate.open()
        for step in steps:
            step.release()
        assert (run.wait(), run.outcomes()) == (0, all_successful(6))
        assert {(episode["worker"]["kind"], episode["worker"]["host"]) for episode in run.episodes()} == {
            ("process", socket.gethostname())
        }
        assert {episode["worker"]["id"] for episode in run.episodes()} == {"worker 0", "worker 1"}
        wait_until_ended(*processes)
        assert "subprocess" not in run.errors  # as a warning of one that still runs


def test_a_worker_uses_the_plugins_that_its_run_has_found(
    tmp_path: Path, gate: StepGate, environ: dict[str, str]
) -> None:
    with WorkerRun(tmp_path, "HeldSteps", "--repeat", "3", environ=environ) as run:
        first = gate.next()
        (points,) = (tmp_path / "installed").glob("*/entry_points.txt")
        points.unlink()
        os.kill(first.pid, signal.SIGKILL)
        second = gate.next()
        assert second.pid != first.pid
        gate.open()
        second.release()
        assert run.wait() == 0
    assert [outcome for outcome in run.outcomes() if outcome[1] == "success"] == all_successful(3)


def test_workers_share_the_memory_of_a_process_without_threads_and_foreign_libraries(
    tmp_path: Path, gate: StepGate, environ: dict[str, str]
) -> None:
    with WorkerRun(tmp_path, "HeldSteps", "--repeat", "2", environ=environ):
        for _ in range(3):
            gate.next().release()
        worker = psutil.Process(gate.next().pid)  # it has played an episode
        memory = worker.memory_full_info()
        assert memory.uss < 0.4 * memory.rss, memory  # 0.2, and 0.6 if it shared only the files of its code
        server = worker.parent()
        assert server is not None
        assert server.num_threads() == 1
        mapped = Path(f"/proc/{server.pid}/maps").read_text()
        assert ".so" in mapped
        assert not [name for name in ("numpy", "_raylet") if name in mapped]


def test_what_an_environment_prints_is_logged_and_is_no_message_to_the_run(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with WorkerRun(tmp_path, "Printing", "--repeat", "8", workers=2, environ=environ) as run:
        assert (run.wait(), run.outcomes()) == (0, all_successful(8))
    names = {episode["worker"]["id"] for episode in run.episodes()}
    for text in ("printed by an import", "printed by a step", "written by a step", "echoed by a child"):
        assert {name for name in names if f" {name}: {text}\n" in run.log} == names
    assert "printed by a step" not in run.errors + (tmp_path / "output").read_text()


@BOTH_MODES
def test_an_environment_that_exits_ends_its_episode_or_its_worker(
    mode: StartMode, tmp_path: Path, environ: dict[str, str]
) -> None:
    with WorkerRun(tmp_path, "Exiting", "--repeat", "2", environ=environ, mode=mode) as run:
        assert run.wait() == 130
    first, *lost = run.episodes()
    assert (first["task_index"], first["outcome"], first["error"]["type"]) == (0, "error", "SystemExit")
    assert {(episode["task_index"], episode["outcome"], episode["error"]["type"]) for episode in lost} == {
        (1, "interrupted", "worker_lost")
    }
    assert all("exit code 3" in episode["error"]["message"] for episode in lost)


@BOTH_MODES
def test_a_child_of_an_environment_plays_no_episode(mode: StartMode, tmp_path: Path, environ: dict[str, str]) -> None:
    with WorkerRun(tmp_path, "Forking", environ=environ, mode=mode) as run:
        assert run.wait() == 0
    (episode,) = run.episodes()
    assert (episode["outcome"], episode["rounds"]) == ("success", 3)


def test_standard_input_is_empty(tmp_path: Path, environ: dict[str, str]) -> None:
    with WorkerRun(tmp_path, "ReadingInput", environ=environ) as run:
        assert run.wait() == 1
    (episode,) = run.episodes()
    assert (episode["outcome"], episode["error"]["type"]) == ("error", "EOFError")


@BOTH_MODES
def test_a_worker_that_hangs_is_killed_with_its_children(
    mode: StartMode, tmp_path: Path, environ: dict[str, str]
) -> None:
    options = ("--repeat", "2", "--max-duration", "1")
    with WorkerRun(tmp_path, "HoldingLock", *options, environ=environ, mode=mode) as run:
        child, worker = start_child(run)
        assert sorted(descriptors(child.pid)) == [0, 1, 2]
        start_child(run, 2)
        wait_until_ended(child, worker)
        wait_until_reaped(worker)
        assert run.process.is_running()
        assert run.outcomes() == [(0, "timeout")]


@BOTH_MODES
def test_a_worker_has_the_state_of_its_run_but_no_descriptors(
    mode: StartMode, tmp_path: Path, gate: StepGate, environ: dict[str, str]
) -> None:
    variable = {"REPORTED": "set for the run"}
    with WorkerRun(tmp_path, "HeldSteps", "--repeat", "3", workers=3, environ=environ | variable, mode=mode) as run:
        channels = own_channels(run.pid)
        for step in held_steps(gate, 3):
            worker = psutil.Process(step.pid)
            assert (worker.cwd(), worker.environ()["REPORTED"]) == (str(tmp_path), "set for the run")
            assert os.getpgid(step.pid) == step.pid
            assert os.getsid(step.pid) != os.getsid(run.pid)
            opened = descriptors(step.pid)
            assert len(opened) <= MAX_DESCRIPTORS, opened
            own_files = [Path(target).name for target in opened.values() if target.startswith(str(tmp_path))]
            assert [name.partition(".")[2] for name in own_files] == ["journal.jsonl"]
            own = own_channels(step.pid)
            assert channels.isdisjoint(own)
            channels |= own


def test_a_stopped_worker_keeps_no_other_waiting(tmp_path: Path, gate: StepGate, environ: dict[str, str]) -> None:
    with WorkerRun(tmp_path, "HeldSteps", "--repeat", "6", workers=2, environ=environ) as run:
        stopped, other = held_steps(gate, 2)
        os.kill(stopped.pid, signal.SIGSTOP)
        gate.open()
        other.release()
        wait_until(lambda: len(run.episodes()) == 5)
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.release()
        assert (run.wait(), run.outcomes()) == (0, all_successful(6))


def test_a_killed_parent_of_workers_takes_them_along_and_is_replaced(
    tmp_path: Path, gate: StepGate, environ: dict[str, str]
) -> None:
    with WorkerRun(tmp_path, "HeldSteps", "--repeat", "4", workers=2, environ=environ) as run:
        workers = [psutil.Process(step.pid) for step in held_steps(gate, 2)]
        (server,) = {worker.parent() for worker in workers}
        assert server is not None
        assert server.pid != run.pid
        server.kill()
        wait_until_ended(*workers)
        wait_until_reaped(server)
        later = held_steps(gate, 2)
        assert {psutil.Process(step.pid).parent() for step in later}.isdisjoint({server})
        gate.open()
        for step in later:
            step.release()
        assert run.wait() == 0
    assert [outcome for outcome in run.outcomes() if outcome[1] == "success"] == all_successful(4)
    lost = [episode for episode in run.episodes() if episode["outcome"] != "success"]
    assert {(episode["outcome"], episode["error"]["type"]) for episode in lost} == {("interrupted", "worker_lost")}
    assert len(lost) == 2


@BOTH_MODES
def test_what_an_environment_started_does_not_survive_a_killed_parent_of_workers(
    mode: StartMode, tmp_path: Path, environ: dict[str, str]
) -> None:
    options = ("--repeat", "2", "--max-duration", "1")
    with WorkerRun(tmp_path, "HoldingLock", *options, environ=environ, mode=mode) as run:
        child, worker = start_child(run)
        server = worker.parent()
        assert server is not None
        server.kill()
        start_child(run, 2)
        wait_until_ended(worker, child)
        assert run.process.is_running()


def test_a_run_that_is_interrupted_kills_a_worker_that_does_not_end_with_its_children(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with WorkerRun(tmp_path, "HoldingLock", environ=environ) as run:
        child, worker = start_child(run)
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130
        wait_until_ended(child, worker)


def test_workers_that_cannot_start_end_the_run_with_the_reason(tmp_path: Path, environ: dict[str, str]) -> None:
    python = tmp_path / "broken" / "bin" / "python"  # only the run itself is started with another interpreter
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nprintf 'no module \\033[2J named runner\\n' >&2\nexit 1\n")
    python.chmod(0o700)
    for name in ("pyvenv.cfg", "lib"):
        (python.parents[1] / name).symlink_to(Path(sys.prefix) / name)
    command = [str(python), COMMAND]
    with WorkerRun(tmp_path, "HeldSteps", environ=environ, command=command, executable=sys.executable) as run:
        assert run.wait() == 130
    assert re.search(r"interrupted: .* no module ␛\[2J named runner; .* set workers to 0", run.errors)
    assert run.episodes() == []


def test_a_run_needs_few_files_for_eight_workers(tmp_path: Path, gate: StepGate, environ: dict[str, str]) -> None:
    command = limited_command(80, COMMAND)
    with WorkerRun(tmp_path, "HeldSteps", "--repeat", "16", workers=8, environ=environ, command=command) as run:
        steps = held_steps(gate, 8)
        gate.open()
        for step in steps:
            step.release()
        assert (run.wait(), run.outcomes()) == (0, all_successful(16))
    assert "lowered" not in run.errors


async def test_commands_reach_a_worker_that_plays(tmp_path: Path, gate: StepGate, environ: dict[str, str]) -> None:
    batch_id, kinds, n_steps = str(ULID()), list[str](), 1

    async def on_message(message: Msg) -> None:
        kinds.extend(item["kind"] for item in json.loads(message.data)["items"])

    with NodeProcess(tmp_path / "data", env=ENVIRON | environ) as node:
        async with await node.connect() as connection:
            await connection.client.subscribe("agentgym.live.>", cb=on_message)
            await node.request(connection, "start", batch_id=batch_id, envs=["EndlessSteps"], agent="up", workers=1)
            first = await asyncio.to_thread(gate.next)
            worker = psutil.Process(first.pid)
            await node.request(connection, "pause", batch_id=batch_id)
            first.release()
            while "episode.paused" not in kinds:
                if not gate.is_empty:  # the worker went on before it read the command
                    gate.next().release()
                    n_steps += 1
                await asyncio.sleep(0.01)
            assert gate.is_empty
            await node.request(connection, "step", batch_id=batch_id)
            step = await asyncio.to_thread(gate.next)
            await node.request(connection, "cancel", batch_id=batch_id)
            step.release()
            await node.wait_for_batch(connection, batch_id, "cancelled")
        await asyncio.to_thread(wait_until_reaped, worker)
        assert gate.is_empty
    (file,) = (tmp_path / "data" / "runs" / batch_id).glob("*.json")
    episode = json.loads(file.read_bytes())
    assert (episode["outcome"], episode["worker"]["kind"]) == ("cancelled", "process")
    assert (step.index, episode["rounds"]) == (n_steps, n_steps + 1)


def test_no_process_survives_a_killed_run(tmp_path: Path, environ: dict[str, str]) -> None:
    with WorkerRun(tmp_path, "HoldingLock", "--repeat", "2", workers=2, environ=environ) as run:
        start_child(run, 2)
        processes = run.descendants()
        assert len(processes) >= 5  # two workers, what started them, and a child of each
        run.process.kill()
        run.wait()
        wait_until_ended(*processes)


def test_ctrl_c_reaches_only_the_run(tmp_path: Path, gate: StepGate, environ: dict[str, str]) -> None:
    with WorkerRun(tmp_path, "EndlessSteps", "--repeat", "4", workers=2, environ=environ) as run:
        steps = held_steps(gate, 2)
        os.killpg(run.pid, signal.SIGINT)
        wait_until(lambda: "Stopping after the current steps" in run.errors)
        gate.open()
        for step in steps:
            step.release()
        assert run.wait() == 130
    assert run.outcomes() == [(0, "cancelled"), (1, "cancelled")]
    assert all(episode["rounds"] and episode["error"] is None for episode in run.episodes())
    assert "Traceback" not in run.errors + run.log


def test_a_stopped_parent_of_workers_is_replaced_and_costs_no_episode(
    tmp_path: Path, gate: StepGate, environ: dict[str, str]
) -> None:
    with WorkerRun(tmp_path, "HeldSteps", "--repeat", "6", workers=2, environ=environ) as run:
        killed, other = held_steps(gate, 2)
        server = psutil.Process(killed.pid).parent()
        assert server is not None
        server.suspend()
        os.kill(killed.pid, signal.SIGKILL)
        later = gate.next()
        assert psutil.Process(later.pid).parent() != server
        server.resume()  # it starts the worker that was requested of it, whose channel is closed by now
        gate.open()
        for step in (other, later):
            step.release()
        assert run.wait() == 0
        wait_until_ended(server)
    assert [outcome for outcome in run.outcomes() if outcome[1] == "success"] == all_successful(6)
    assert [each["task_index"] for each in run.episodes() if each["outcome"] != "success"] == [killed.task]


def test_a_stopped_parent_of_workers_keeps_no_episode_waiting(
    tmp_path: Path, gate: StepGate, environ: dict[str, str]
) -> None:
    options = ("--repeat", "2000", "--max-duration", "1")
    with WorkerRun(tmp_path, "HeldSteps", *options, workers=2, environ=environ) as run:
        hung, step = held_steps(gate, 2)
        server = psutil.Process(hung.pid).parent()
        assert server is not None
        server.suspend()
        while (hung.task, "timeout") not in run.outcomes():
            step.release()
            step = gate.next(STALLED_S)
        for _ in range(30):
            step.release()
            step = gate.next(STALLED_S)


def test_a_killed_run_loses_no_step_that_a_worker_has_finished(
    tmp_path: Path, gate: StepGate, environ: dict[str, str]
) -> None:
    with WorkerRun(tmp_path, "HeldSteps", environ=environ) as run:
        step = gate.next()
        wait_until(lambda: any(tmp_path.glob("data/runs/*/*")))  # the journal
        run.process.suspend()
        step.release()
        assert gate.next().index == 1  # so step 0 is finished
        run.process.kill()
        run.wait()
    gate.open()
    with WorkerRun(tmp_path, "HeldSteps", environ=environ) as later:  # it stores what the journal has
        later.wait()
    lost, played = later.episodes()
    assert (lost["outcome"], lost["rounds"], played["outcome"]) == ("interrupted", 1, "success")
