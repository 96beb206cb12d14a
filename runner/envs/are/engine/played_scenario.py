"""One scenario as it is played: tools, steps of simulated time, messages, the oracle's next action, the evaluation."""

from __future__ import annotations

import base64
import dataclasses
import enum
import inspect
import json
import math
import re
import resource
import sys
import time as real_time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from runner.envs.are.engine.determinism import CLOCK, simulated_start
from runner.envs.are.engine.judging import MODEL, JudgeFailed, judge_name
from runner.envs.are.tools import DEFAULT_WAIT_S, MAX_WAIT_S, WAIT, WAIT_TOOL, function_schema, unique_names

Part = tuple[str, str]
"""Kind and text of a message; the kinds are listed in ``runner.envs.are.environment``."""

MAX_EVENTS = 500
MAX_EVENTS_CHARS = 1_000_000
"""Maximum number of events in an evaluation, and of their characters as JSON: the last ones, and the first missed."""
MAX_TEXT_CHARS = 64_000
"""Maximum length of a text that an agent sees; longer texts are cut, and end with their full length."""
MAX_EVENT_CHARS = 2_000
"""Maximum length of a text in an event of the evaluation."""
MAX_ITEMS = 100
MAX_DEPTH = 6
MASK = "***"
_NO_LIMIT = 1 << 40
_FINAL_MESSAGE = ("AgentUserInterface", "send_message_to_user")
_KINDS = {"USER_MESSAGE": "user", "ENVIRONMENT_NOTIFICATION": "notification", "ENVIRONMENT_STOP": "environment"}
_UTC = timezone.utc  # noqa: UP017 - ARE also runs on Python 3.10
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,16}")
_SECRET = re.compile(r"passw|secret|token|api_?key|credential|authorization", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}")


class OraclePlan:
    """Compares the completed events of an environment with the oracle events of its scenario.

    An oracle event is due when its dependencies have completed and its relative time has passed. ARE never fires the
    successors of oracle events outside its oracle mode, so an event behind an oracle event counts as completed when it
    would have been due.

    The scenario must be initialized, since the ids in its oracle events are those of this instance. ``called`` has the
    ids of the events that the agent caused by its own calls.
    """

    def __init__(self, scenario: Any, environment: Any) -> None:  # noqa: ANN401 - ARE's types
        from are.simulation.types import OracleEvent

        self._environment = environment
        self._oracle_type = OracleEvent
        self._expected = [_Expected(event, environment) for event in scenario.events if type(event) is OracleEvent]
        self.called: set[str] = set()
        self._scheduled = {event.event_id for event in scenario.events}
        self._start = float(environment.start_time or 0)

    @property
    def n_events(self) -> int:
        return len(self._expected)

    @property
    def log(self) -> list[Any]:
        """The completed events of the environment."""
        events: list[Any] = self._environment.event_log.list_view()
        return events

    def next_due(self) -> tuple[_Expected, float] | None:
        """Return the unmatched oracle event that is due first and its simulated time; None if none can be due yet."""
        matched, _ = self._match()
        waiting = [event for event in self._expected if event.event.event_id not in matched]
        due = [(time, event) for event in waiting if (time := self._due_time(event.event, matched)) is not None]
        if not due:
            return None
        time, event = min(due, key=lambda pair: pair[0])
        event.resolve(self.log, matched)
        return event, time

    def all_done(self) -> bool:
        return len(self._match()[0]) == len(self._expected)

    def missed(self) -> list[dict[str, Any]]:
        matched, others = self._match()
        missed = [expected for expected in self._expected if expected.event.event_id not in matched]
        for expected in missed:
            expected.resolve(self.log, matched)
        return [{**expected.described(), "reason": _reason(expected, others)} for expected in missed]

    def _match(self) -> tuple[dict[str, Any], list[Any]]:
        """Return the agent's event for each oracle event that it fits, by the id of the latter, and the other ones."""
        free = [
            done
            for done in self.log
            if done.event_type.value == "AGENT"
            and hasattr(done.action, "app_name")
            and done.metadata.exception is None
            and not self.is_nested(done)
        ]
        matched: dict[str, Any] = {}
        for expected in self._expected:
            expected.resolve(self.log, matched)
            found = next((done for done in free if expected.differences(done) == []), None)
            if found is not None:
                free.remove(found)
                matched[expected.event.event_id] = found
        return matched, free

    def is_nested(self, done: Any) -> bool:  # noqa: ANN401 - ARE's CompletedEvent
        """Return whether a tool or an app made this call by itself; ARE logs it as an event of the agent."""
        if done.event_type.value != "AGENT":
            return False
        return done.event_id not in self.called and done.event_id not in self._scheduled

    def _due_time(self, event: Any, matched: dict[str, Any]) -> float | None:  # noqa: ANN401
        if not event.dependencies:
            times = [self._start]
        else:
            known = [self._completed_at(dependency, matched) for dependency in event.dependencies]
            times = [time for time in known if time is not None]
            if len(times) < len(known):
                return None
        if event.event_time is not None and not event.dependencies:
            return float(event.event_time)
        return max(times) + float(event.event_relative_time or 0)

    def _completed_at(self, event: Any, matched: dict[str, Any]) -> float | None:  # noqa: ANN401
        if type(event) is self._oracle_type:
            done = matched.get(event.event_id)
            return None if done is None else float(done.event_time)
        action_id = getattr(getattr(event, "action", None), "action_id", None)
        for done in self.log:
            if done.event_id == event.event_id or (
                action_id is not None
                and getattr(done.action, "action_id", None) == action_id
                and done.metadata.return_value is True
            ):
                return float(done.event_time)
        return self._due_time(event, matched) if self._is_behind_oracle(event) else None

    def _is_behind_oracle(self, event: Any) -> bool:  # noqa: ANN401
        parents = list(event.dependencies or ())
        return any(type(parent) is self._oracle_type or self._is_behind_oracle(parent) for parent in parents)


class _Expected:
    def __init__(self, event: Any, environment: Any) -> None:  # noqa: ANN401 - ARE's types
        self.event = event
        self.app = event.action_desc.app if event.action_desc else ""
        self.function = event.action_desc.function if event.action_desc else ""
        self._given = {each["name"]: each["value"] for each in event.action_desc.args} if event.action_desc else {}
        made = event.make(environment)
        if getattr(made, "action", None) is not None:  # the description has only the texts of the arguments
            self.app, self.function = made.action.app_name, made.action.function_name
            self._given = arguments_of(made.action)
        self.arguments = dict(self._given)

    def resolve(self, log: list[Any], matched: dict[str, Any]) -> None:
        """Replace placeholders ``{{event id.key}}`` by the return values of completed events."""
        for name, value in self._given.items():
            placeholder = _PLACEHOLDER.fullmatch(value.strip()) if isinstance(value, str) else None
            if placeholder:
                self.arguments[name] = _return_value(placeholder[1].split("."), log, matched, default=value)

    def differences(self, done: Any) -> list[str] | None:  # noqa: ANN401
        """Return the names of the arguments that differ in a completed event; None if it calls another function."""
        if (done.action.app_name, done.action.function_name) != (self.app, self.function):
            return None
        actual = arguments_of(done.action)
        return [name for name, value in self.arguments.items() if not _same(value, actual.get(name))]

    def action(self) -> dict[str, Any]:
        return {name: as_json(value, _NO_LIMIT) for name, value in self.arguments.items()}

    def described(self) -> dict[str, Any]:
        return {"app": self.app, "function": self.function, "args": without_secrets(self.arguments)}


def _return_value(path: list[str], log: list[Any], matched: dict[str, Any], *, default: object) -> object:
    done = matched.get(path[0]) or next((each for each in log if each.event_id == path[0]), None)
    if done is None:
        return default
    value = done.metadata.return_value
    for key in path[1:]:
        if not isinstance(value, dict) or key not in value:
            return default
        value = value[key]
    return value


def _same(expected: object, actual: object) -> bool:
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(_same, expected, actual))
    return bool(expected == actual) or as_text(expected, _NO_LIMIT) == as_text(actual, _NO_LIMIT)


def _reason(expected: _Expected, others: list[Any]) -> str:
    differing: list[list[str]] = [names for done in others if (names := expected.differences(done)) is not None]
    if not differing:
        return "never called"
    nearest = min(differing, key=len)
    return f"called with other arguments: {', '.join(nearest)}"


class PlayedScenario:
    """A scenario that an agent plays step by step, without ARE's thread that sleeps through simulated time.

    ``scenario`` is a new instance; ``sandbox`` the folder of its simulated file system.
    """

    def __init__(self, scenario: Any, sandbox: str) -> None:  # noqa: ANN401 - ARE's type
        CLOCK.now = scenario.start_time = simulated_start(scenario.start_time)
        self._started = real_time.monotonic()
        self._scenario = scenario
        scenario.initialize(sandbox_dir=sandbox)
        CLOCK.now = float(scenario.start_time or 0)  # a judge plays the oracle's events during initialize
        self._environment = self._create_environment()
        listed = scenario.get_tools()
        names = unique_names(str(tool._public_name or tool.name) for tool in listed)
        self._tools = dict(zip(names, listed, strict=True))
        self._turns = 0
        self.done = False
        self._evaluation: dict[str, Any] | None = None
        self._environment.run(scenario, wait_for_end=False)
        self._plan = OraclePlan(scenario, self._environment)

    def _create_environment(self) -> Any:  # noqa: ANN401
        from are.simulation.environment import Environment, EnvironmentConfig
        from are.simulation.notification_system import VerboseNotificationSystem
        from are.simulation.types import EnvironmentState, EnvironmentType

        scenario = self._scenario
        config = EnvironmentConfig(
            start_time=scenario.start_time,
            duration=scenario.duration,
            time_increment_in_seconds=scenario.time_increment_in_seconds,
            verbose=False,
        )
        environment = Environment(
            config=config, environment_type=EnvironmentType.CLI, notification_system=VerboseNotificationSystem()
        )

        def start(debug: bool = False) -> None:
            environment.state = EnvironmentState.RUNNING
            environment.prepare_events_for_start()

        environment.start = start
        for app in scenario.apps or []:
            if hasattr(app, "wait_for_user_response"):
                app.wait_for_user_response = False
        return environment

    def tool_schemas(self) -> list[dict[str, Any]]:
        own = [
            function_schema(name, tool._public_description, _named_arguments(tool))
            for name, tool in self._tools.items()
        ]
        return [*own, WAIT_TOOL]

    def start(self) -> list[Part]:
        """Let time pass until the first message, with which ARE's own agents start, but not to the scenario's end."""
        self._environment.tick()
        parts = self._arrived()
        for _ in range(MAX_WAIT_S):
            if parts or self._would_end() or not self._pending_times():
                break
            parts = self._advance()
        apps = ", ".join(app.name for app in self._scenario.apps or [])
        prompt = f"\n{self._scenario.additional_system_prompt}" if self._scenario.additional_system_prompt else ""
        intro = f"Scenario {self._scenario.scenario_id} with the apps {apps}.{prompt}"
        return [("environment", intro), *parts, self._time()]

    def call(self, name: str, arguments: dict[str, Any]) -> list[Part]:
        if name == WAIT:
            return [*self._wait(arguments), self._time()]
        tool = self._tools.get(name)
        if tool is None:
            return [("error", f"There is no tool {cut(name, 100)!r}."), self._time()]
        known = {event.event_id for event in self._plan.log}
        try:
            answer: Part = ("result", as_text(tool(**arguments)))
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - a tool may raise anything, which its agent sees
            answer = ("error", as_text(f"{type(exc).__name__}: {exc}"))
        self._note_own_call(tool, known)
        arrived = self._advance()
        if answer[0] == "result" and (tool.class_name, tool.func_name) == _FINAL_MESSAGE and not self.done:
            arrived += self._end_turn(arrived)
        return [answer, *arrived, self._time()]

    def _note_own_call(self, tool: Any, known: set[str]) -> None:  # noqa: ANN401 - ARE's AppTool
        """Take note of the event of the agent's call; ARE also logs calls that tools and apps make by themselves."""
        new = [event for event in self._plan.log if event.event_id not in known and hasattr(event.action, "app_name")]
        own = [each.event_id for each in new if (each.action.app_name, each.action.function_name) == _key(tool)]
        self._plan.called |= set(own[-1:])

    def _wait(self, arguments: dict[str, Any]) -> list[Part]:
        seconds = arguments.get("seconds", DEFAULT_WAIT_S)
        if type(seconds) is not int or not 1 <= seconds <= MAX_WAIT_S or arguments.keys() - {"seconds"}:
            return [("error", f"{WAIT} takes seconds, a whole number from 1 to {MAX_WAIT_S}."), *self._advance()]
        started = CLOCK.time()
        parts = self._wait_for_message(lambda: CLOCK.time() - started >= seconds)
        if seconds == MAX_WAIT_S and not parts and not self._can_change():
            self.done = True
            parts = [("environment", "Nothing is scheduled any more, so the scenario has ended.")]
        return [("result", f"Waited {CLOCK.time() - started:g} s."), *parts]

    def _end_turn(self, arrived: list[Part]) -> list[Part]:
        """End the agent's turn, as its message to the user does in ARE: wait for the next message, or end."""
        self._turns += 1
        if self._scenario.nb_turns is not None and self._turns >= self._scenario.nb_turns:
            self.done = True
        if arrived or self.done:
            return []
        started = CLOCK.time()
        parts = self._wait_for_message(lambda: not self._can_change() or CLOCK.time() - started >= MAX_WAIT_S)
        self.done = self.done or not parts
        return parts

    def _wait_for_message(self, is_over: Callable[[], bool]) -> list[Part]:
        parts: list[Part] = []
        while not parts and not self.done and not is_over():
            parts = self._advance()
        return parts

    def _advance(self) -> list[Part]:
        """Let one increment of time pass, as ARE's time-based loop does; return the messages that arrived."""
        environment = self._environment
        if not environment.stop_event.is_set():
            CLOCK.advance(environment.time_increment_in_seconds)
            environment.tick_count += 1
            if environment.duration is None or environment.time_manager.time_passed() <= environment.duration:
                environment.tick()
            else:
                environment.stop_event.set()
        if environment.stop_event.is_set():
            self._stop()
        return self._arrived()

    def _stop(self) -> None:
        from are.simulation.types import EnvironmentState, ValidationException

        environment = self._environment
        self.done = True
        try:
            environment.final_validation_checks()
        except ValidationException:
            environment.stop(EnvironmentState.FAILED)
            return
        environment.stop(
            environment.state if environment.state is EnvironmentState.FAILED else EnvironmentState.STOPPED
        )

    def _would_end(self) -> bool:
        environment = self._environment
        after = environment.time_manager.time_passed() + environment.time_increment_in_seconds
        return self.done or (environment.duration is not None and after > environment.duration)

    def _pending_times(self) -> list[float]:
        """Return the times of the scheduled events; ARE ignores oracle events outside its oracle mode."""
        from are.simulation.types import OracleEvent

        queue = self._environment.event_queue.list_view()
        return [float(event.event_time) for event in queue if type(event) is not OracleEvent]

    def _can_change(self) -> bool:
        """Return whether time can still bring anything: scheduled events, reminders, or the scenario's end."""
        reminders = self._environment.notification_system.reminder_app
        return (
            self._environment.duration is not None
            or bool(self._pending_times())
            or bool(reminders and any(not each.already_notified for each in reminders.reminders.values()))
        )

    def _arrived(self) -> list[Part]:
        now = datetime.fromtimestamp(CLOCK.time(), tz=_UTC)
        messages = self._environment.notification_system.message_queue.get_by_timestamp(now)
        parts: list[Part] = []
        for message in messages:
            part = (_KINDS.get(message.message_type.value, "environment"), as_text(message.message))
            if part[0] != "environment":
                parts.append(part)
            elif not any(kind == "environment" for kind, _ in parts):
                parts.append(("environment", "The scenario has ended."))
        return parts

    def _time(self) -> Part:
        shown = datetime.fromtimestamp(CLOCK.time(), tz=_UTC).strftime("%Y-%m-%d %H:%M:%S")
        return "environment", f"Simulated time: {shown}"

    def next_oracle_action(self) -> dict[str, Any] | None:
        """Return ``{name, arguments}`` of a tool or a wait for the next event; None if an event calls no tool."""
        due = self._plan.next_due()
        if due is None:
            scheduled = [] if self._plan.all_done() else self._pending_times()
            return _wait_until(min(scheduled, default=None))
        expected, time = due
        if time > CLOCK.time():
            return _wait_until(time)
        for name, tool in self._tools.items():
            if _key(tool) == (expected.app, expected.function):
                return {"name": name, "arguments": expected.action()}
        return None

    def evaluate(self) -> dict[str, Any]:
        """Return the evaluation details; see ``runner.envs.are.environment``. The scenario is validated once."""
        if self._evaluation is None:
            self._evaluation = self._validate()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {**self._evaluation, "memory_mib": peak // (1 << 20 if sys.platform == "darwin" else 1 << 10)}

    def _validate(self) -> dict[str, Any]:
        success: bool | None = None
        exception: object = None
        rationale: object = None
        simulated_s = self._environment.time_manager.time_passed()
        events = self._plan.log
        shown = _shown(events, self._plan)
        missed = self._plan.missed()
        shown_missed = take_within(missed, MAX_EVENTS, MAX_EVENTS_CHARS)
        try:
            result = self._scenario.validate(self._environment)
            success = None if result.success is None else bool(result.success)
            exception, rationale = result.exception, result.rationale
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - a judge may raise anything
            exception = exc
        if MODEL.failure is not None:
            success, exception, rationale = None, JudgeFailed(MODEL.failure), None
        return {
            "scenario": self._scenario.scenario_id,
            "success": success,
            "rationale": None if not rationale else as_text(rationale),
            "exception": None if exception is None else as_text(f"{type(exception).__name__}: {exception}"),
            "judge": judge_name(self._scenario),
            "rated": self._plan.n_events > 0,
            "n_oracle_events": self._plan.n_events,
            "events": shown,
            "events_dropped": len(events) - len(shown),
            "missed": shown_missed,
            "missed_dropped": len(missed) - len(shown_missed),
            "duration": round(real_time.monotonic() - self._started, 3),
            "simulated_s": simulated_s,
        }


def _named_arguments(tool: Any) -> list[Any]:  # noqa: ANN401 - ARE's AppTool
    kinds = {name: each.kind for name, each in inspect.signature(tool.function).parameters.items()}
    collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [argument for argument in tool.args if kinds.get(argument.name) not in collecting]


def _key(tool: Any) -> tuple[str, str]:  # noqa: ANN401 - ARE's AppTool
    return tool.app_name, tool.func_name


def _wait_until(time: float | None) -> dict[str, Any]:
    """None waits as long as possible."""
    seconds = MAX_WAIT_S if time is None else math.ceil(time - CLOCK.time())
    return {"name": WAIT, "arguments": {"seconds": min(MAX_WAIT_S, max(1, seconds))}}


def _shown(events: list[Any], plan: OraclePlan) -> list[dict[str, Any]]:
    """Return at most ``MAX_EVENTS`` events; nested calls are left out first, then the oldest events."""
    if len(events) > MAX_EVENTS:
        events = [event for event in events if not plan.is_nested(event)]
    newest_first = (_described(event, nested=plan.is_nested(event)) for event in reversed(events))
    return take_within(newest_first, MAX_EVENTS, MAX_EVENTS_CHARS)[::-1]


def _described(event: Any, *, nested: bool) -> dict[str, Any]:  # noqa: ANN401 - ARE's CompletedEvent
    action = event.action
    shown = {
        "app": getattr(action, "app_name", "") or "",
        "function": getattr(action, "function_name", None) or "",
        "args": without_secrets(arguments_of(action)),
        "type": event.event_type.value,
        "time": event.event_time,
    }
    if event.metadata is not None and event.metadata.exception is not None:
        shown["error"] = as_text(event.metadata.exception, 500)
    if nested:
        shown["nested"] = True
    return shown


def as_text(value: object, limit: int = MAX_TEXT_CHARS) -> str:
    """Return a result as ARE's own agents see it, ``str(value)``, without addresses and cut to ``limit`` characters."""
    return cut(_ADDRESS.sub("", str(value)), limit)


def cut(text: str, limit: int) -> str:
    """A cut text ends with the full length; no lone surrogates."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def as_json(value: object, limit: int = MAX_EVENT_CHARS, depth: int = MAX_DEPTH) -> Any:  # noqa: ANN401
    """Return a value as JSON data: dataclasses as objects, enums as their values, bytes as Base64, others as text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, enum.Enum):
        return as_json(value.value, limit, depth)
    if isinstance(value, str):
        return cut(value, limit)
    if isinstance(value, bytes):
        return cut(base64.b64encode(value).decode(), limit)
    if depth == 0:
        return as_text(value, limit)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        return _mapping(fields, limit, depth)
    if isinstance(value, Mapping):
        return _mapping(value, limit, depth)
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item, limit, depth - 1) for item in list(value)[:MAX_ITEMS]]
    return as_text(value, limit)


def _mapping(value: Mapping[Any, Any], limit: int, depth: int) -> dict[str, Any]:
    items = list(value.items())[:MAX_ITEMS]
    return {cut(str(key), 200): as_json(item, limit, depth - 1) for key, item in items if key != "self"}


def arguments_of(action: Any) -> dict[str, Any]:  # noqa: ANN401 - ARE's Action
    """Return the arguments of an action without ``self``; those with placeholders as resolved by ARE."""
    given = getattr(action, "resolved_args", None) or getattr(action, "args", None) or {}
    return {str(key): value for key, value in given.items() if key != "self"}


def without_secrets(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON data; at any depth, values are masked whose names are those of secrets."""
    masked: dict[str, Any] = _masked({key: as_json(value) for key, value in arguments.items()})
    return masked


def _masked(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: MASK if _SECRET.search(key) else _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value


def take_within(items: Iterable[dict[str, Any]], max_items: int, max_chars: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    for item in islice(items, max_items):
        max_chars -= len(json.dumps(item))
        if max_chars < 0:
            break
        taken.append(item)
    return taken
