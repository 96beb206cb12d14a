# ruff: noqa: ANN401 - ARE's types are unknown here
"""Runs a scenario in oracle mode by ARE's own ``ScenarioRunner``, and prints its events and verdict as JSON."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from typing import Any

from are.simulation.scenario_runner import ScenarioRunner
from are.simulation.scenarios.config import ScenarioRunnerConfig
from are.simulation.scenarios.utils.registry import registry


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value if isinstance(value, str | int | float | list | None) else str(value)


def run(name: str) -> dict[str, Any]:
    scenario = registry.get_scenario(name)()
    scenario.initialize()
    environments: list[Any] = []
    validate = scenario.validate

    def note(environment: Any) -> Any:
        environments.append(environment)
        return validate(environment)

    scenario.validate = note
    result = ScenarioRunner().run(ScenarioRunnerConfig(oracle=True, agent=None), scenario)
    events = [
        {
            "app": getattr(event.action, "app_name", "") or "",
            "function": event.action.function_name,
            "args": {key: plain(value) for key, value in getattr(event.action, "args", {}).items() if key != "self"},
            "type": event.event_type.value,
            "time": event.event_time,
        }
        for event in environments[0].event_log.list_view()
    ]
    return {"success": result.success, "events": events}


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps({name: run(name) for name in sys.argv[1:]}, default=str)}\n")
