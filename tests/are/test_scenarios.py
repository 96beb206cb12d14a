"""ARE's offline scenarios through the real package: the oracle solves them, idle and wrong play do not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from runner.config import ARESettings
from runner.envs.are.catalog import OFFLINE_SCENARIOS, read_catalog
from runner.envs.are.client import WarmProcess, close_processes, warm_process
from runner.envs.are.environment import AREEnvironment
from runner.store import EpisodeStore
from runner.types import Action, AREEvaluatedTrajectory, Limits, Outcome, Trajectory
from tests.are.conftest import HERE, PYTHON, Create, create_venv, site_packages
from tests.support.batches import make_setup
from tests.support.command import run_agentgym

SOLVED_BY_EVENTS = OFFLINE_SCENARIOS[:4]
N_TOOLS = dict(zip(OFFLINE_SCENARIOS, (56, 19, 16, 18, 6), strict=True))
_ID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def play_oracle(name: str, settings: ARESettings) -> Trajectory:
    runner = make_setup(f"are:{name}", "oracle", are=settings, limits=Limits(40)).build_factory(None)
    return await runner.play_episode({"task_index": 0})


def evaluation_of(trajectory: Trajectory) -> dict[str, Any]:
    assert isinstance(trajectory, AREEvaluatedTrajectory), trajectory.error_info
    return trajectory.are_evaluation


def call(name: str, **arguments: object) -> Action:
    return Action(text=json.dumps({"name": name, "arguments": arguments}))


async def play_to_end(environment: AREEnvironment, action: Action, limit: int = 40) -> dict[str, Any]:
    done = False
    while not done and limit:
        _, _, done = await environment.step(action)
        limit -= 1
    details = await environment.get_evaluation_details()
    assert details is not None
    return details


@pytest.mark.parametrize("name", OFFLINE_SCENARIOS)
async def test_the_oracle_solves_a_scenario(settings: ARESettings, name: str) -> None:
    trajectory = await play_oracle(name, settings)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.SUCCESS, 1.0), trajectory.error_info
    details = evaluation_of(trajectory)
    assert (details["success"], details["judge"], details["missed"]) == (True, "scenario", [])
    assert details["rated"] is (name in SOLVED_BY_EVENTS)
    assert 0 < details["memory_mib"] < 1024 == details["memory_limit_mib"]
    assert all(str(m["content"]).startswith("[") for step in trajectory.timesteps for m in step.observation)


@pytest.mark.parametrize("name", SOLVED_BY_EVENTS)
async def test_idle_and_wrong_play_fail_with_a_reason(create: Create, name: str) -> None:
    idle = create(name)
    await idle.reset()
    details = await play_to_end(idle, call("wait", seconds=3600))
    assert details["success"] is False and details["rated"]
    assert details["missed"][0]["reason"] == "never called"
    wrong = create(name)
    observation = await wrong.reset()
    assert any(str(message["content"]).startswith("[user] ") for message in observation)
    await wrong.step(call("AgentUserInterface__get_all_messages"))
    details = await play_to_end(wrong, call("AgentUserInterface__send_message_to_user", content="I did nothing."))
    if name != "scenario_events_tutorial":  # any message to the user solves that one
        assert details["success"] is False
    assert details["missed"] or details["exception"] or details["rationale"]
    if name == "scenario_find_image_file":
        assert details["missed"][0]["reason"] == "called with other arguments: content"


async def test_a_message_before_the_emails_does_not_solve_the_events_tutorial(create: Create) -> None:
    environment = create("scenario_events_tutorial")
    await environment.reset()
    for _ in range(40):
        _, _, done = await environment.step(call("EmailClientApp__list_emails"))
        if done:
            break
    details = await environment.get_evaluation_details()
    assert details is not None and details["success"] is False and details["missed"]


async def test_acting_where_nothing_is_to_be_done_fails_and_idling_is_not_rated(create: Create) -> None:
    environment = create("scenario_validation_tutorial")
    await environment.reset()
    details = await play_to_end(environment, call("wait", seconds=3600))
    assert (details["success"], details["rated"], details["n_oracle_events"]) == (True, False, 0)
    await environment.reset()
    details = await play_to_end(environment, call("AgentUserInterface__send_message_to_user", content="I am a cat"))
    assert details["success"] is False


@pytest.mark.parametrize("name", OFFLINE_SCENARIOS)
async def test_the_tools_are_valid_json_schema(create: Create, name: str) -> None:
    environment = create(name)
    await environment.reset()
    schemas = environment.get_tool_schemas()
    assert len(schemas) == N_TOOLS[name]
    for schema in schemas:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", schema["function"]["name"])
        jsonschema.Draft202012Validator.check_schema(schema["function"]["parameters"])
    for text in environment.admissible_actions():
        action = environment.parse(text)
        assert isinstance(action, Action)
        (schema,) = (s["function"] for s in schemas if s["function"]["name"] == action.tool_calls[0].name)
        jsonschema.validate(json.loads(action.tool_calls[0].arguments), schema["parameters"])


@pytest.mark.parametrize("agent", ["random", "scripted"])
async def test_other_agents_play(settings: ARESettings, agent: str) -> None:
    script = ('{"name": "EmailClientApp__list_emails", "arguments": {}}', "nonsense") if agent == "scripted" else None
    setup = make_setup("are:scenario_tutorial", agent, are=settings, limits=Limits(8), script=script)
    trajectory = await setup.build_factory(None).play_episode({"task_index": 0, "seed": 3})
    assert trajectory.timesteps and not trajectory.success
    if agent == "random":
        assert evaluation_of(trajectory)["missed"]


async def transcript(create: Create, name: str, settings: ARESettings) -> list[str]:
    """Play the random agent's actions, drawn anew in the same order, and return everything the agent sees."""
    environment = create(name, settings)
    seen = [json.dumps(await environment.reset())]
    actions = environment.admissible_actions()
    seen.append(json.dumps(environment.get_tool_schemas()))
    for number in range(25):
        observation, _, done = await environment.step(Action(text=actions[number * 7 % len(actions)]))
        seen.append(json.dumps(observation))
        if done:
            break
    return seen


async def test_the_same_actions_give_the_same_bytes_in_two_processes_and_two_orders(
    create: Create, settings: ARESettings
) -> None:
    forward = {name: await transcript(create, name, settings) for name in OFFLINE_SCENARIOS}
    close_processes()
    backward = {name: await transcript(create, name, settings) for name in reversed(OFFLINE_SCENARIOS)}
    again = {name: await transcript(create, name, settings) for name in OFFLINE_SCENARIOS}
    for name in OFFLINE_SCENARIOS:
        assert forward[name] == backward[name] == again[name]


def normalized(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number the drawn ids in their order, and leave out what ``ScenarioRunner`` does not log."""
    kept = [
        {key: event[key] for key in ("app", "function", "args", "type", "time")}
        for event in events
        if not event.get("nested")
    ]
    for event in kept:
        event["time"] = round(event["time"])
        event["args"].get("email", {}).pop("timestamp", None)  # ScenarioRunner's is of the real clock
    numbers: dict[str, str] = {}
    text = _ID.sub(lambda match: numbers.setdefault(match[0], f"id {len(numbers)}"), json.dumps(kept))
    ordered: list[dict[str, Any]] = json.loads(text)
    return ordered


async def test_an_oracle_run_equals_that_of_the_packages_own_runner(settings: ARESettings, tmp_path: Path) -> None:
    reference = await asyncio.to_thread(run_reference, tmp_path)
    for name in SOLVED_BY_EVENTS:
        details = evaluation_of(await play_oracle(name, settings))
        expected, actual = normalized(reference[name]["events"]), normalized(details["events"])
        assert (details["success"], [brief(event) for event in actual]) == (
            reference[name]["success"],
            [brief(event) for event in expected],
        )
        for ours, theirs in zip(actual, expected, strict=True):
            assert {key: ours["args"][key] for key in theirs["args"]} == theirs["args"]


def run_reference(temporary: Path) -> dict[str, dict[str, Any]]:
    command = [str(PYTHON), str(HERE / "reference_runner.py"), *SOLVED_BY_EVENTS]
    environ = {**os.environ, "TMPDIR": str(temporary)}
    completed = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=150, check=True)
    reference: dict[str, dict[str, Any]] = json.loads(completed.stdout.splitlines()[-1])
    return reference


def brief(event: dict[str, Any]) -> tuple[object, ...]:
    return event["app"], event["function"], event["type"], event["time"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_command_plays_all_scenarios_through_local_workers(
    settings: ARESettings, tmp_path: Path, workers: str
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(f"id: are\nare: {{python: {settings.python}}}\ndata_dir: {tmp_path / 'data'}\n")
    options = ("--agent", "oracle", "--repeat", "5", "--concurrency", "2", "--workers", workers)
    completed = run_agentgym(tmp_path, "--config", str(profile), "--run", "are:offline", *options)
    assert completed.returncode == 0, completed.stderr
    records = [EpisodeStore(tmp_path / "data").load(file) for file in (tmp_path / "data").rglob("runs/*/*.json")]
    assert sorted(record.evaluation["scenario"] for record in records if record.evaluation) == sorted(OFFLINE_SCENARIOS)
    assert {(record.outcome, record.success, record.data_label) for record in records} == {("success", True, "ARE")}
    kind = "process" if workers == "2" else "local"
    assert {record.worker.kind for record in records if record.worker} == {kind}
    assert "\x1b" not in completed.stdout


def test_are_may_be_installed_beside_the_runner(tmp_path: Path) -> None:
    packages = (site_packages(PYTHON), site_packages(Path(sys.executable)), HERE.parents[1])
    python = create_venv(tmp_path / "venv", *packages)
    command = [str(python), "-c", "from runner.cli import main; main()", "--run", "are:offline", "--agent", "oracle"]
    options = ["--repeat", "5", "--data-dir", str(tmp_path / "data")]
    completed = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert completed.returncode == 0, completed.stderr
    assert "5/5 episodes, success 100% of 4" in completed.stderr + completed.stdout


PROGRAM = """
import asyncio, sys
from runner.config import ARESettings
from runner.envs.are.client import warm_process
from runner.envs.are.environment import AREEnvironment

async def main():
    settings = ARESettings(python=sys.argv[1])
    environment = AREEnvironment(id="scenario_tutorial", settings=settings)
    await environment.reset()
    process = warm_process(settings)
    print(process.ready.pid, process._scratch, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_killed_process_leaves_neither_processes_nor_files() -> None:
    command = [sys.executable, "-c", PROGRAM, str(PYTHON)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1]) as process:
        assert process.stdout is not None
        pid, scratch = process.stdout.readline().split()
        engine = psutil.Process(int(pid))
        family = [engine, *engine.children()]
        process.kill()
    assert len(family) == 2 and Path(scratch).name.startswith("agentgym-are-")
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert not Path(scratch).exists()


def test_the_process_lists_its_scenarios_and_prints_nothing(
    settings: ARESettings, capfd: pytest.CaptureFixture[str]
) -> None:
    assert read_catalog(settings).problem is None
    process: WarmProcess = warm_process(settings)
    assert set(OFFLINE_SCENARIOS) < set(process.ready.scenarios)
    assert process.ready.version == "1.2.0"
    assert capfd.readouterr() == ("", "")


def test_an_interpreter_without_the_package_is_recognized() -> None:
    problem = read_catalog(ARESettings(python=sys.executable)).problem
    assert problem is not None and "has no package meta-agents-research-environments" in problem
    assert "pip install" in problem and Path(PYTHON).exists()
