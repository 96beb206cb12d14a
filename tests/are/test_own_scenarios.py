"""Scenarios registered by ARE's entry point: what goes wrong in them ends as an error of their episode alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import psutil
import pytest

from runner.config import ARESettings
from runner.envs.are.client import warm_process
from runner.errors import EnvironmentFault
from runner.types import AREEvaluatedTrajectory, Outcome
from tests.are.conftest import Create
from tests.are.test_scenarios import call, evaluation_of, play_oracle, play_to_end


async def test_an_own_scenario_is_listed_and_played_by_its_task_id(create: Create, own_settings: ARESettings) -> None:
    assert {"lab", "chained"} < set(warm_process(own_settings).ready.scenarios)
    environment = create("offline", own_settings)
    observation = await environment.reset(task={"task_id": "lab"})
    assert "Scenario lab with the apps Lab" in str(observation[0]["content"])
    assert str(observation[-1]["content"]) == "[environment] Simulated time: 2025-01-01 00:00:01"
    with pytest.raises(EnvironmentFault, match=r"unknown_scenario.*no scenario 'missing'; it has .*lab"):
        await environment.reset(task={"task_id": "missing"})


@pytest.mark.parametrize(
    ("tool", "message"),
    [("exit", "ended during call"), ("spin", "did not answer call within 4 s")],
)
async def test_a_tool_that_ends_or_blocks_the_process_is_an_error(
    create: Create, own_settings: ARESettings, tool: str, message: str
) -> None:
    own_settings = msgspec.structs.replace(own_settings, step_timeout_sec=4.0)
    environment = create("lab", own_settings)
    await environment.reset()
    process = warm_process(own_settings)
    with pytest.raises(EnvironmentFault, match=message):
        await environment.step(call(f"Lab__{tool}"))
    await environment.reset()
    assert warm_process(own_settings) is process
    observation, _, _ = await environment.step(call("Lab__long_text", n=2))
    assert observation[0]["content"] == "[result] xx"


async def test_the_memory_of_an_episode_is_bounded(create: Create, own_settings: ARESettings) -> None:
    environment = create("lab", own_settings)
    await environment.reset()
    observation, _, _ = await environment.step(call("Lab__allocate", mib=100))
    assert observation[0]["content"] == f"[result] {100 << 20} bytes"
    observation, _, _ = await environment.step(call("Lab__allocate", mib=400))
    assert str(observation[0]["content"]).startswith("[error] MemoryError")
    details = await environment.get_evaluation_details()
    assert details is not None and details["memory_limit_mib"] == 300 and details["memory_mib"] > 200


async def test_a_tool_that_exits_prints_or_returns_much_does_no_harm(
    create: Create, own_settings: ARESettings, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = create("lab", own_settings)
    await environment.reset()
    assert (await environment.step(call("Lab__quit")))[0][0]["content"] == "[error] SystemExit: 3"
    assert (await environment.step(call("Lab__shout")))[0][0]["content"] == "[result] None"
    observation, _, _ = await environment.step(call("Lab__long_text", n=20_000_000))
    assert str(observation[0]["content"]).endswith("… (20000000 characters)")
    assert len(str(observation[0]["content"])) < 70_000
    assert (await environment.step(call("wait", seconds=0)))[0][0]["content"] == (
        "[error] wait takes seconds, a whole number from 1 to 3600."
    )
    assert (await environment.step(call("Lab__allocate", mib="many")))[0][0]["content"].startswith("[error] TypeError")  # type: ignore[union-attr]
    assert capfd.readouterr() == ("", "")


async def test_a_tool_that_closes_the_output_harms_no_other_episode(create: Create, own_settings: ARESettings) -> None:
    other, environment = create("lab", own_settings), create("lab", own_settings)
    await other.reset()
    server = psutil.Process(warm_process(own_settings).ready.pid)
    earlier = server.children()
    await environment.reset()
    (process,) = (child for child in server.children() if child not in earlier)
    with pytest.raises(EnvironmentFault, match="I/O operation on closed file"):  # ARE prints
        await environment.step(call("Lab__close_output"))
    environment.cleanup()
    await asyncio.to_thread(psutil.wait_procs, [process], timeout=30)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert (await other.step(call("Lab__long_text", n=2)))[0][0]["content"] == "[result] xx"


async def test_events_have_neither_secrets_nor_instances(create: Create, own_settings: ARESettings) -> None:
    environment = create("lab", own_settings)
    await environment.reset()
    await environment.step(call("Lab__log_in", user="ada", password="hunter2-hunter2"))
    details = await environment.get_evaluation_details()
    assert details is not None and details["events"][-1] == {
        "app": "Lab",
        "function": "log_in",
        "args": {"user": "ada", "password": "***"},
        "type": "AGENT",
        "time": 1_735_689_601.0,
    }
    assert "hunter2" not in json.dumps(details) and '"self"' not in json.dumps(details)


async def test_chance_is_the_same_in_each_episode(create: Create, own_settings: ARESettings) -> None:
    seen = []
    for _ in range(3):
        environment = create("lab", own_settings)
        await environment.reset()
        seen.append([(await environment.step(call("Lab__chance")))[0][0]["content"] for _ in range(2)])
    assert seen[0] == seen[1] == seen[2] and seen[0][0] != seen[0][1]
    assert "2025-01-01T00:00:01" in str(seen[0][0])


async def test_a_scenario_that_starts_when_it_is_loaded_starts_at_a_fixed_time(
    create: Create, own_settings: ARESettings
) -> None:
    observation = await create("starts_now", own_settings).reset()
    assert observation[-1]["content"] == "[environment] Simulated time: 2025-01-01 00:00:01"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("no_verdict", "RuntimeError: no model for the judge"), ("raising", "ValueError: the judge is broken")],
)
async def test_a_judge_that_fails_is_an_error_of_the_evaluation(
    own_settings: ARESettings, name: str, reason: str
) -> None:
    trajectory = await play_oracle(name, own_settings)
    assert isinstance(trajectory, AREEvaluatedTrajectory)
    assert (trajectory.outcome, trajectory.success) == (Outcome.ERROR, False)
    assert trajectory.error_info is not None and trajectory.error_info.type == "evaluation"
    assert reason in trajectory.error_info.message
    assert (trajectory.are_evaluation["success"], trajectory.are_evaluation["exception"]) == (None, reason)


async def test_a_rationale_is_kept(own_settings: ARESettings) -> None:
    trajectory = await play_oracle("rationale", own_settings)
    assert (trajectory.outcome, evaluation_of(trajectory)["rationale"]) == (
        Outcome.FAILURE,
        "Nothing was \x1b[31mfinished.",
    )


async def test_a_scenario_that_cannot_start_is_an_error(create: Create, own_settings: ARESettings) -> None:
    with pytest.raises(EnvironmentFault, match=r"failed \(scenario\): ConnectionError: no such server"):
        await create("broken_start", own_settings).reset()


async def test_the_oracle_waits_resolves_placeholders_and_plays_two_turns(own_settings: ARESettings) -> None:
    trajectory = await play_oracle("chained", own_settings)
    details: dict[str, Any] = evaluation_of(trajectory)
    assert trajectory.outcome == Outcome.SUCCESS, (trajectory.error_info, details)
    agent = [
        (event["function"], event["time"] - 1_700_000_000) for event in details["events"] if event["type"] == "AGENT"
    ]
    assert agent == [("create", 4), ("finish", 9), ("send_message_to_user", 10), ("send_message_to_user", 62)]
    finished = next(event for event in details["events"] if event["function"] == "finish")
    assert len(finished["args"]["id"]) == 32


async def test_a_scenario_that_stops_itself_is_done(create: Create, own_settings: ARESettings) -> None:
    environment = create("stopping", own_settings)
    await environment.reset()
    observation, _, done = await environment.step(call("wait", seconds=60))
    assert done and observation[-2]["content"] == "[environment] The scenario has ended."
    assert observation[0]["content"] == "[result] Waited 4 s."


async def test_waiting_ends_with_a_notification(create: Create, own_settings: ARESettings) -> None:
    environment = create("reminding", own_settings)
    await environment.reset()
    due = {"title": "Tea", "due_datetime": "2025-01-01 00:00:30", "description": "Make tea"}
    added, _, _ = await environment.step(call("ReminderApp__add_reminder", **due))
    assert str(added[0]["content"]).startswith("[result] "), added
    observation, _, _ = await environment.step(call("wait", seconds=600))
    assert str(observation[1]["content"]).startswith("[notification] ReminderApp: ")
    assert str(observation[-1]["content"]) == "[environment] Simulated time: 2025-01-01 00:00:30"
    details = await play_to_end(environment, call("wait", seconds=3600))
    own = [event["function"] for event in details["events"] if not event.get("nested")]
    assert own == ["send_message_to_agent", "add_reminder"] and details["events_dropped"] > 500


async def test_an_oracle_event_that_calls_no_tool_is_an_error_of_the_oracle(own_settings: ARESettings) -> None:
    trajectory = await play_oracle("not_a_tool", own_settings)
    assert trajectory.error_info is not None and "no tool of its agent" in trajectory.error_info.message


async def test_without_a_tool_the_idle_agent_reaches_the_end(create: Create, own_settings: ARESettings) -> None:
    environment = create("chained", own_settings)
    await environment.reset()
    details = await play_to_end(environment, call("wait", seconds=3600))
    assert details["success"] is False and len(details["missed"]) == 4
