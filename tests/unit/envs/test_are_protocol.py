"""The protocol between ARE's environment and its process, with a scripted process that misbehaves."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, EpisodeStored
from runner.batch.workspace import Workspace
from runner.config import ARESettings
from runner.envs.are import client
from runner.envs.are.client import (
    Evaluated,
    Ready,
    Reset,
    Stepped,
    check_reply,
    close_processes,
    decode_frame,
    encode_request,
    warm_process,
)
from runner.envs.are.environment import AREEnvironment
from runner.envs.are.tools import MAX_FRAME_BYTES
from runner.errors import EnvironmentFault
from runner.types import Action, AREEvaluatedTrajectory, Limits, Outcome, ToolCall, Trajectory
from tests.support.batches import make_setup, resolved_batch
from tests.support.command import run_agentgym
from tests.support.episodes import decoded
from tests.support.scripted_are_process import write_program

LIMIT_S = 60.0
ADD = Action(text='{"name": "Notes__add", "arguments": {"text": "milk"}}')


def settings_for(
    folder: Path, start: str = "normal", *, step_s: float = LIMIT_S, start_s: float = LIMIT_S
) -> ARESettings:
    return ARESettings(python=str(write_program(folder, start)), step_timeout_sec=step_s, start_timeout_sec=start_s)


_created: list[AREEnvironment] = []


def create(scenario: str, settings: ARESettings) -> AREEnvironment:
    environment = AREEnvironment(id=scenario, settings=settings)
    _created.append(environment)
    return environment


async def started(scenario: str, settings: ARESettings) -> AREEnvironment:
    environment = create(scenario, settings)
    await environment.reset()
    return environment


@pytest.fixture(autouse=True)
def cleanup() -> Iterator[None]:
    yield
    while _created:
        _created.pop().cleanup()
    close_processes()


@pytest.fixture
def settings(tmp_path: Path) -> ARESettings:
    return settings_for(tmp_path)


@pytest.mark.long
async def test_an_episode_over_the_pipes(settings: ARESettings) -> None:
    environment = create("fine", settings)
    assert [message["content"] for message in await environment.reset()] == [
        "[environment] Scenario fine",
        "[user] Add milk.",
    ]
    assert environment.get_episode_id() == "are:fine"
    call = ToolCall(id="c1", name="Notes__add", arguments='{"text": "milk"}')
    observation, reward, done = await environment.step(Action(tool_calls=[call]))
    assert (reward, done) == (1.0, True)
    assert [(message["role"], message.get("tool_call_id")) for message in observation] == [
        ("tool", "c1"),
        ("user", None),
        ("user", None),
    ]
    tags = [str(message["content"]).partition("] ")[0] for message in observation]
    assert tags == ["[result", "[notification", "[environment"]
    assert await environment.success(Trajectory(episode_id="e")) is True
    details = await environment.get_evaluation_details()
    assert details is not None and details["judge"] == "scenario"
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await environment.step(ADD)
    environment.cleanup()
    environment.cleanup()


@pytest.mark.long
async def test_a_task_names_the_scenario(settings: ARESettings) -> None:
    class Task:
        task_id = "are:second"

    environment = create("fine", settings)
    assert environment.n_tasks == 1
    for task, name in (({"task_id": "first"}, "first"), (Task(), "second"), (None, "fine")):
        observation = await environment.reset(task=task)
        assert observation[0]["content"] == f"[environment] Scenario {name}"
    offline = create("offline", settings)
    assert offline.n_tasks == 5
    observation = await offline.reset(task_index=7)
    assert observation[0]["content"] == "[environment] Scenario scenario_events_tutorial"


INVALID = {
    "call Notes": "a JSON object",
    '{"name": "Notes__drop", "arguments": {}}': "one of the tools Notes__add",
    '{"name": "Notes__add", "arguments": {}}': "required: text",
    '{"name": "Notes__add", "arguments": {"text": "a", "extra": 1}}': "arguments text, pinned",
    '{"name": "Notes__add", "arguments": [1]}': "a JSON object",
    "\ud800": "a JSON object",
    "[" * 100_000: "a JSON object",
}


@pytest.mark.long
async def test_an_invalid_action_reaches_no_process(settings: ARESettings) -> None:
    environment = await started("late-dies", settings)
    for text, expected in INVALID.items():
        observation, reward, done = await environment.step(Action(text=text))
        assert (reward, done) == (0.0, False)
        assert str(observation[0]["content"]).startswith("[error] Invalid action. Expected ")
        assert expected in str(observation[0]["content"])
        assert not isinstance(environment.parse(text), Action)


@pytest.mark.long
async def test_each_episode_has_a_process_of_its_own_and_the_warm_one_stays(settings: ARESettings) -> None:
    environments = [await started("fine", settings) for _ in range(3)]
    pids = {(await environment.step(ADD))[0][0]["content"] for environment in environments}
    process = warm_process(settings)
    assert len(pids) == 3 and process is warm_process(settings)
    children = psutil.Process(process.ready.pid).children()
    for environment in environments:
        environment.cleanup()
    psutil.wait_procs(children, timeout=LIMIT_S)
    assert not any(child.is_running() for child in children)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("dies", "ended during {request}"),
        ("half", "ended during {request}"),
        ("garbage", "cannot be read"),
        ("huge", "a frame of 2,147,483,648 bytes"),
        ("wrong", "sent Evaluated instead of Stepped"),
        ("memory", r"failed \(memory\): more than 64 MiB"),
    ],
)
async def test_a_fault_of_the_process_is_an_error_and_the_next_episode_is_played(
    settings: ARESettings, fault: str, message: str
) -> None:
    with pytest.raises(EnvironmentFault, match=message.format(request="reset")):
        await started(fault, settings)
    environment = await started(f"late-{fault}", settings)
    with pytest.raises(EnvironmentFault, match=message.format(request="call")):
        await environment.step(ADD)
    assert (await (await started("fine", settings)).step(ADD))[2]


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["hang", "late-hang"])
async def test_an_episode_that_hangs_is_ended(tmp_path: Path, scenario: str) -> None:
    impatient = settings_for(tmp_path, step_s=0.5)
    environment = create(scenario, impatient)
    with pytest.raises(EnvironmentFault, match=r"did not answer (reset|call) within 0\.5 s.*are\.step_timeout_sec"):
        await environment.reset()
        await environment.step(ADD)
    children = psutil.Process(warm_process(impatient).ready.pid).children()
    psutil.wait_procs(children, timeout=LIMIT_S)
    assert not any(child.is_running() for child in children)


@pytest.mark.long
async def test_a_cancelled_step_is_finished_before_the_evaluation(settings: ARESettings) -> None:
    environment = await started("late-slow", settings)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await environment.step(ADD)
    assert await environment.success(Trajectory(episode_id="e")) is True


@pytest.mark.long
async def test_a_cancelled_step_that_hangs_leaves_nothing(settings: ARESettings) -> None:
    environment = await started("late-hang", settings)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await environment.step(ADD)
    children = psutil.Process(warm_process(settings).ready.pid).children()
    environment.cleanup()
    await asyncio.sleep(0)
    assert len(children) == 1 and asyncio.all_tasks() == {asyncio.current_task()}
    assert psutil.wait_procs(children, timeout=LIMIT_S / 2)[1] == []


@pytest.mark.long
async def test_a_step_that_hangs_at_the_time_limit_ends_the_episode_with_its_cause(
    settings: ARESettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "LATE_REPLY_S", 0.1)
    script = ('{"name": "Notes__add", "arguments": {"text": "milk"}}',)
    setup = make_setup("are:late-hang", "scripted", script=script, are=settings, limits=Limits(5, 2.0))
    await started("fine", settings)
    trajectory = await setup.build_factory(None).play_episode({"task_index": 0})
    assert trajectory.outcome == Outcome.ERROR
    assert trajectory.error_info is not None and trajectory.error_info.type == "environment_fault"
    assert "had not answered 0.1 s after" in trajectory.error_info.message
    assert (
        "get_evaluation_details failed: EnvironmentFault: ARE's process of this episode has been ended" in caplog.text
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("silent", "did not answer in time"),
        ("dead", "ended unexpectedly"),
        ("garbage", "a frame of"),
        ("failed", r"failed \(import\): ModuleNotFoundError"),
    ],
)
async def test_a_process_that_does_not_start_is_an_error(tmp_path: Path, start: str, message: str) -> None:
    limit_s = 0.5 if start == "silent" else LIMIT_S
    environment = create("fine", settings_for(tmp_path, start, start_s=limit_s))
    with pytest.raises(EnvironmentFault, match=message):
        await environment.reset()
    assert client._processes == {}


@pytest.mark.long
async def test_a_process_that_hangs_or_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FORK_TIMEOUT_S", 0.5)
    environment = create("fine", settings_for(tmp_path, "never-forks"))
    with pytest.raises(EnvironmentFault, match="did not answer in time"):
        await environment.reset()
    monkeypatch.undo()
    settings = settings_for(tmp_path)
    environment = await started("fine", settings)
    first = warm_process(settings)
    os.kill(first.ready.pid, 9)
    psutil.wait_procs([psutil.Process(first.ready.pid)], timeout=LIMIT_S)
    await environment.reset()
    assert warm_process(settings).ready.pid != first.ready.pid
    assert (await environment.step(ADD))[2]


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_writes_the_output_to_its_log_file(tmp_path: Path, workers: str) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(f"id: are\nare: {{python: {write_program(tmp_path)}}}\ndata_dir: {tmp_path}\n")
    options = ("--config", str(profile), "--run", "are:prints", "--agent", "oracle", "--workers", workers)
    completed = run_agentgym(tmp_path, *options, environ={"TMPDIR": str(tmp_path)})
    assert completed.returncode == 0, completed.stderr
    log = (tmp_path / "data" / "logs" / "runner.log").read_text()
    assert "from the process" in log and "to standard error" in log and "ARE 0 is loaded" in log
    assert "\x1b" not in log and "from the process" not in completed.stdout + completed.stderr


@pytest.mark.long
async def test_the_process_gets_no_variable_of_this_process_and_removes_its_files(
    tmp_path: Path, settings: ARESettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2-hunter2")
    await started("fine", settings)
    process = warm_process(settings)
    assert "OPENAI_API_KEY" not in psutil.Process(process.ready.pid).environ()
    assert process._scratch.is_dir()
    close_processes()
    assert not process._scratch.exists() and not process.is_alive


@pytest.mark.long
def test_a_process_whose_parent_ends_during_the_start_removes_its_files(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        command = [sys.executable, "-s", str(client.PROGRAM), str(theirs.fileno()), str(scratch), "64", "1"]
        done = subprocess.run(command, pass_fds=[theirs.fileno()], timeout=LIMIT_S, capture_output=True, check=False)
    assert (done.returncode, done.stderr, scratch.exists()) == (0, b"", False)


@pytest.mark.long
async def test_a_cancelled_start_leaves_no_process(settings: ARESettings) -> None:
    await started("fine", settings)
    reset = asyncio.create_task(create("fine", settings).reset())
    await asyncio.sleep(0)
    reset.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reset
    await asyncio.get_running_loop().shutdown_default_executor()
    children = psutil.Process(warm_process(settings).ready.pid).children()
    psutil.wait_procs(children[1:], timeout=LIMIT_S)
    assert not any(child.is_running() for child in children[1:])


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "outcome"), [("fine", "success"), ("unsolved", "failure"), ("no-verdict", "error")]
)
async def test_the_oracle_plays_and_the_validation_decides(settings: ARESettings, scenario: str, outcome: str) -> None:
    setup = make_setup(f"are:{scenario}", "oracle", are=settings, limits=Limits(5))
    runner = setup.build_factory(None)
    assert runner.env_cfg["settings"]["python"] == settings.python
    trajectory = await runner.play_episode({"task_index": 0})
    # the process id in the observation differs between the environment and the oracle's twin, after the last action
    assert isinstance(trajectory, AREEvaluatedTrajectory)
    assert trajectory.outcome == outcome and trajectory.are_evaluation is trajectory.evaluation
    if outcome == "error":
        assert trajectory.error_info is not None and trajectory.error_info.type == "evaluation"
        assert "the judge has no model" in trajectory.error_info.message


def test_observers_of_an_episode_in_a_worker_process_get_its_are_evaluation(
    settings: ARESettings, tmp_path: Path
) -> None:
    planned = resolved_batch(are=settings, env="are:fine", agent="oracle", workers=1)
    items: list[BatchItem] = []
    with closing(Workspace(tmp_path / "data", node="n", profile="p")) as workspace:
        Batch(planned, workspace, observers=[items.append]).run()
    (stored,) = [item for item in items if isinstance(item, EpisodeStored)]
    evaluation = decoded(stored.record).evaluation
    assert evaluation is not None and evaluation["judge"] == "scenario"


async def test_without_the_package_the_error_has_the_command_that_installs_it(tmp_path: Path) -> None:
    for python in (None, str(tmp_path / "missing")):
        with pytest.raises(EnvironmentFault, match=r"pip install meta-agents-research-environments==1\.2\.0"):
            await create("fine", ARESettings(python=python)).reset()


@hypothesis_settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from([Ready, Stepped, Evaluated]))
def test_no_bytes_raise_anything_but_a_fault_of_the_environment(data: bytes, kind: type[Ready]) -> None:
    try:
        reply: object = check_reply(decode_frame(data), kind)
    except EnvironmentFault:
        return
    assert isinstance(reply, kind)


def test_a_request_that_is_too_large_is_named() -> None:
    with pytest.raises(EnvironmentFault, match=r"the request reset .* is a frame of .* bytes; at most 16 MiB"):
        encode_request(Reset("s" * MAX_FRAME_BYTES))
