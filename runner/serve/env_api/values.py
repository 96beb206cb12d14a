"""What there is to tell about an instance, and which task AgentGym's servers mean by a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TypeAlias

from runner.serve.env_api.pool import Instance, Refused

Value: TypeAlias = Callable[[Instance], object]
Reply: TypeAlias = Mapping[str, Value] | Value
"""A JSON object by its fields, or anything else as a whole."""


def always(value: object) -> Value:
    """The same for every instance."""
    return lambda instance: value


NUMBER: Value = attrgetter("number")
OBSERVATION: Value = attrgetter("observation")
REWARD: Value = attrgetter("reward")
SCORE: Value = attrgetter("score")
DONE: Value = attrgetter("done")
GIVEN: Value = attrgetter("given")
DELETED: Value = always(False)

SEEN: Value = attrgetter("environment.observation")
"""ALFWorld's observation; what can be done is in a field of its own."""
TASK_TYPE: Value = attrgetter("environment.task_type")
INSTRUCTION: Value = attrgetter("environment.instruction")
HAS_SEARCH_BAR: Value = attrgetter("environment.has_search_bar")
CLICKABLES: Value = attrgetter("environment.clickables")


def actions(instance: Instance) -> list[str]:
    """What can be done now."""
    return instance.environment.admissible_actions() or []


def with_goal(instance: Instance) -> str:
    """An observation after the line that the task began with."""
    opening = instance.opening or ""
    if instance.observation == opening:
        return opening
    return f"{opening.partition(chr(10))[0]}\n{instance.observation}"


def pair(instance: Instance) -> list[object]:
    """An observation as servers give it that return tuples."""
    return [instance.observation, None]


def as_babyai(given: int, n_tasks: int) -> int:
    """The number divided by its forty levels is a seed, and seeds are not negative."""
    if given < 0:
        raise Refused(f"Seed must be greater or equal to zero, actual value: {given // 40}")
    return given % n_tasks


def as_maze(given: int, n_tasks: int) -> int:
    """Its list of starts ends with the goal, which is no start, and is counted from the end by negative numbers."""
    n_starts = n_tasks + 1
    if not -n_starts <= given < n_starts:
        raise Refused(f"The game {given} is not valid.")
    if given % n_starts == n_tasks:
        raise Refused("")
    return given % n_starts


def as_wordle(given: int, n_tasks: int) -> int:
    """Its random generator does not heed the sign of a seed."""
    return abs(given) % n_tasks


def as_list(given: int, n_tasks: int) -> int:
    """A number beyond the tasks is an error."""
    if not 0 <= given < n_tasks:
        raise Refused(f"There are {n_tasks} tasks, and {given} is none of them")
    return given


def shown(reply: Reply, instance: Instance) -> object:
    """A reply about an instance, ready to be encoded."""
    return shown_fields(reply, instance) if isinstance(reply, Mapping) else reply(instance)


def shown_fields(reply: Mapping[str, Value], instance: Instance) -> dict[str, object]:
    """A reply that is an object."""
    return {name: value(instance) for name, value in reply.items()}
