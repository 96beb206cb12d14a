# ruff: noqa: ANN401, DTZ005 - ARE's types are unknown here, and a scenario may use the local time
"""Scenarios of the tests, registered by ARE's entry point; loaded by ARE's interpreter."""

from __future__ import annotations

import datetime
import os
import random
import sys
import time
import uuid
from typing import Any

from are.simulation.apps.agent_user_interface import AgentUserInterface
from are.simulation.apps.app import App
from are.simulation.apps.contacts import Contact, ContactsApp
from are.simulation.apps.reminder import ReminderApp
from are.simulation.apps.system import SystemApp
from are.simulation.scenarios.scenario import Scenario, ScenarioValidationResult
from are.simulation.tool_utils import OperationType, app_tool
from are.simulation.types import EventRegisterer, OracleEvent, StopEvent, event_registered
from are.simulation.validation import GraphPerEventJudgeConfig, JudgeFactory, ScriptedGraphPerEventJudgeConfig
from are.simulation.validation.configs import InContextJudgeConfig


class Lab(App):  # type: ignore[misc]
    """An app whose tools do what a scenario must survive."""

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def allocate(self, mib: int) -> str:
        """Allocate memory.

        :param mib: amount in MiB
        """
        return f"{len(bytearray(mib << 20))} bytes"

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def spin(self) -> None:
        """Never return."""
        while True:
            time.time()

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def exit(self) -> None:
        """End the process."""
        os._exit(7)

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def quit(self) -> None:
        """Raise SystemExit."""
        sys.exit(3)

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def shout(self) -> None:
        """Print."""
        os.write(1, b"\x1b[31mto the terminal\n")

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def close_output(self) -> None:
        """Close standard output."""
        sys.stdout.close()

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def log_in(self, user: str, password: str) -> str:
        """Log in.

        :param user: name
        :param password: secret
        """
        return f"welcome {user}"

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def chance(self) -> list[Any]:
        """Return what chance and clocks yield."""
        now = datetime.datetime.now().isoformat()
        letters = {f"x{n}" for n in range(20)}
        return [
            random.random(),
            uuid.uuid4().hex,
            time.time(),
            now,
            list(letters),
            hash("a"),
            object(),
            self.rng.random(),
        ]

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def create(self) -> dict[str, str]:
        """Return a new id."""
        return {"id": uuid.uuid4().hex}

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.WRITE)  # type: ignore[untyped-decorator]
    def finish(self, id: str) -> str:
        """Finish a thing.

        :param id: its id
        """
        return f"finished {id}"

    @app_tool()  # type: ignore[untyped-decorator]
    @event_registered(operation_type=OperationType.READ)  # type: ignore[untyped-decorator]
    def long_text(self, n: int) -> str:
        """Return n characters.

        :param n: number
        """
        return "x" * n


class LabScenario(Scenario):  # type: ignore[misc]
    """Lets an agent use ``Lab``; without oracle events."""

    duration: float | None = 1000

    def init_and_populate_apps(self, *args: Any, **kwargs: Any) -> None:
        self.apps = [Lab(), AgentUserInterface(), SystemApp()]

    def build_events_flow(self) -> None:
        aui = self.get_typed_app(AgentUserInterface)
        with EventRegisterer.capture_mode():
            self.events = [aui.send_message_to_agent(content="Hello.").depends_on(None, delay_seconds=1)]


class Reminding(LabScenario):
    """Has reminders, for which ARE logs a call of the agent at each tick."""

    def init_and_populate_apps(self, *args: Any, **kwargs: Any) -> None:
        self.apps = [ReminderApp(), AgentUserInterface(), SystemApp()]


class StartsNow(LabScenario):
    """Starts at the real time at which this module is loaded."""

    start_time: float | None = datetime.datetime.now().timestamp()


class NoVerdict(LabScenario):
    """Its judge fails."""

    def validate(self, env: Any) -> ScenarioValidationResult:
        return ScenarioValidationResult(success=None, exception=RuntimeError("no model for the judge"))


class Raising(LabScenario):
    """Its judge raises."""

    def validate(self, env: Any) -> ScenarioValidationResult:
        raise ValueError("the judge is broken")


class Rationale(LabScenario):
    """Its judge explains itself."""

    def validate(self, env: Any) -> ScenarioValidationResult:
        return ScenarioValidationResult(success=False, rationale="Nothing was \x1b[31mfinished.")


class BrokenStart(LabScenario):
    """Cannot be initialized."""

    def init_and_populate_apps(self, *args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no such server")


class Chained(LabScenario):
    """Its second oracle event needs a result of the first, and its third comes in a second turn."""

    start_time: float | None = 1_700_000_000
    duration: float | None = None
    nb_turns: int | None = 2

    def build_events_flow(self) -> None:
        aui, lab = self.get_typed_app(AgentUserInterface), self.get_typed_app(Lab)
        with EventRegisterer.capture_mode():
            first = aui.send_message_to_agent(content="Create a thing.").depends_on(None, delay_seconds=3)
            created = lab.create().oracle().with_id("created").depends_on(first, delay_seconds=1)
            finished = lab.finish(id="{{created.id}}").oracle().depends_on(created, delay_seconds=5)
            reply = aui.send_message_to_user(content="Done.").oracle().depends_on(finished, delay_seconds=1)
            second = aui.send_message_to_agent(content="Thanks.").depends_on(None, delay_seconds=60)
            end = aui.send_message_to_user(content="Bye.").oracle().depends_on([second, reply], delay_seconds=2)
        self.events = [first, created, finished, reply, second, end]

    def validate(self, env: Any) -> ScenarioValidationResult:
        agent = [event.function_name() for event in env.event_log.list_view() if event.event_type.value == "AGENT"]
        expected = ["create", "finish", "send_message_to_user", "send_message_to_user"]
        return ScenarioValidationResult(success=agent == expected, rationale=" ".join(agent))


class Stopping(LabScenario):
    """Stops by itself after five seconds."""

    def build_events_flow(self) -> None:
        super().build_events_flow()
        self.events.append(StopEvent().depends_on(None, delay_seconds=5))


class NotATool(LabScenario):
    """Its oracle event calls no tool of the agent."""

    def build_events_flow(self) -> None:
        super().build_events_flow()
        with EventRegisterer.capture_mode():
            user = self.get_typed_app(AgentUserInterface).send_message_to_agent(content="Hi.")
        self.events.append(OracleEvent.from_event(user).depends_on(self.events[0], delay_seconds=1))


class Judged(Scenario):  # type: ignore[misc]
    """Rated by a judge of ARE, which asks a model where the agent's message differs from the oracle's."""

    start_time: float | None = 0
    duration: float | None = 100
    judge_config: type[Any] = GraphPerEventJudgeConfig

    def init_and_populate_apps(self, *args: Any, **kwargs: Any) -> None:
        contacts = ContactsApp()
        contacts.add_contact(Contact(first_name="Ada", last_name="King", is_user=True))
        self.apps = [contacts, AgentUserInterface(), SystemApp()]

    def build_events_flow(self) -> None:
        aui = self.get_typed_app(AgentUserInterface)
        with EventRegisterer.capture_mode():
            task = aui.send_message_to_agent(content="How many are six times seven?").depends_on(None, delay_seconds=1)
            reply = aui.send_message_to_user(content="It is 42.").oracle().depends_on(task, delay_seconds=1)
        self.events = [task, reply]

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self.judge = JudgeFactory()(self.judge_config())
        self.judge.initialize_state(self)

    def validate(self, env: Any) -> ScenarioValidationResult:
        result: ScenarioValidationResult = self.judge.validate(env)
        return result


class HardJudged(Judged):
    """Its judge asks no model."""

    judge_config: type[Any] = ScriptedGraphPerEventJudgeConfig


class InContextJudged(Judged):
    """Its judge always asks a model."""

    judge_config: type[Any] = InContextJudgeConfig


def register(registry: Any) -> None:
    """Register the scenarios; ARE calls this function, which the entry point names."""
    for name, scenario in (
        ("lab", LabScenario),
        ("reminding", Reminding),
        ("starts_now", StartsNow),
        ("no_verdict", NoVerdict),
        ("raising", Raising),
        ("rationale", Rationale),
        ("broken_start", BrokenStart),
        ("chained", Chained),
        ("stopping", Stopping),
        ("not_a_tool", NotATool),
        ("judged", Judged),
        ("hard_judged", HardJudged),
        ("in_context_judged", InContextJudged),
    ):
        registry.register(name)(scenario)
