"""The actions that solve a scenario, from its own oracle events, and the comparison of what happened with them."""

from __future__ import annotations

import re
from typing import Any

from runner.envs.are.worker.values import arguments_of, as_json, as_text, without_secrets

_NO_LIMIT = 1 << 40
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

    def next_due(self) -> tuple[_Expected, float] | None:
        """Return the unmatched oracle event that is due first and its simulated time; None if none can be due yet."""
        log = self._environment.event_log.list_view()
        matched = self._match(log)
        waiting = [event for event in self._expected if event.event.event_id not in matched]
        due = [(time, event) for event in waiting if (time := self._due_time(event.event, log, matched)) is not None]
        if not due:
            return None
        time, event = min(due, key=lambda pair: pair[0])
        event.resolve(log, matched)
        return event, time

    def all_done(self) -> bool:
        return len(self._match(self._environment.event_log.list_view())) == len(self._expected)

    def missed(self) -> list[dict[str, Any]]:
        log = self._environment.event_log.list_view()
        matched = self._match(log)
        taken = {id(done) for done in matched.values()}
        others = [done for done in self._agent_events(log) if id(done) not in taken]
        missed = []
        for expected in self._expected:
            if expected.event.event_id not in matched:
                expected.resolve(log, matched)
                missed.append({**expected.described(), "reason": _reason(expected, others)})
        return missed

    def _match(self, log: list[Any]) -> dict[str, Any]:
        free = self._agent_events(log)
        matched: dict[str, Any] = {}
        for expected in self._expected:
            expected.resolve(log, matched)
            found = next((done for done in free if expected.differences(done) == []), None)
            if found is not None:
                free.remove(found)
                matched[expected.event.event_id] = found
        return matched

    def _agent_events(self, log: list[Any]) -> list[Any]:
        return [
            done
            for done in log
            if done.event_type.value == "AGENT"
            and hasattr(done.action, "app_name")
            and done.metadata.exception is None
            and not self.is_nested(done)
        ]

    def is_nested(self, done: Any) -> bool:  # noqa: ANN401 - ARE's CompletedEvent
        """Return whether a tool or an app made this call by itself; ARE logs it as an event of the agent."""
        if done.event_type.value != "AGENT":
            return False
        return done.event_id not in self.called and done.event_id not in self._scheduled

    def _due_time(self, event: Any, log: list[Any], matched: dict[str, Any]) -> float | None:  # noqa: ANN401
        if not event.dependencies:
            times = [self._start]
        else:
            known = [self._completed_at(dependency, log, matched) for dependency in event.dependencies]
            times = [time for time in known if time is not None]
            if len(times) < len(known):
                return None
        if event.event_time is not None and not event.dependencies:
            return float(event.event_time)
        return max(times) + float(event.event_relative_time or 0)

    def _completed_at(self, event: Any, log: list[Any], matched: dict[str, Any]) -> float | None:  # noqa: ANN401
        if type(event) is self._oracle_type:
            done = matched.get(event.event_id)
            return None if done is None else float(done.event_time)
        action_id = getattr(getattr(event, "action", None), "action_id", None)
        for done in log:
            if done.event_id == event.event_id or (
                action_id is not None
                and getattr(done.action, "action_id", None) == action_id
                and done.metadata.return_value is True
            ):
                return float(done.event_time)
        return self._due_time(event, log, matched) if self._is_behind_oracle(event) else None

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
        """Bounded and without secrets."""
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
