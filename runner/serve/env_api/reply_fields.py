"""Reply fields: functions that read the values of a server's reply from an environment instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TypeAlias

from runner.serve.env_api.pool import PooledInstance

FieldGetter: TypeAlias = Callable[[PooledInstance], object]
ReplyTemplate: TypeAlias = Mapping[str, FieldGetter] | FieldGetter
"""Template of a reply: a JSON object with a function for each member, or a function for a single value."""


def constant(value: object) -> FieldGetter:
    """Return a function that returns the same value for every instance."""
    return lambda instance: value


INSTANCE_ID: FieldGetter = attrgetter("instance_id")
OBSERVATION: FieldGetter = attrgetter("observation")
INITIAL_OBSERVATION: FieldGetter = attrgetter("initial_observation")
REWARD: FieldGetter = attrgetter("reward")
SCORE: FieldGetter = attrgetter("score")
DONE: FieldGetter = attrgetter("done")
TASK_NUMBER: FieldGetter = attrgetter("task_number")
DELETED: FieldGetter = constant(False)

BARE_OBSERVATION: FieldGetter = attrgetter("environment.observation")
"""Returns ALFWorld's observation without the list of actions, which is in a separate reply field."""
TASK_TYPE: FieldGetter = attrgetter("environment.task_type")
INSTRUCTION: FieldGetter = attrgetter("environment.instruction")
HAS_SEARCH_BAR: FieldGetter = attrgetter("environment.has_search_bar")
CLICKABLES: FieldGetter = attrgetter("environment.clickables")
REMAINING_WORDS: FieldGetter = attrgetter("environment.remaining_words")


def available_actions(instance: PooledInstance) -> list[str]:
    """Return the actions that are admissible in the current state of an instance."""
    return instance.environment.admissible_actions() or []


def observation_with_goal(instance: PooledInstance) -> str:
    """Return the task's first line (the goal) and below it the observation, like BabyAI's ``/observation``."""
    initial_observation = instance.initial_observation or ""
    if instance.observation == initial_observation:
        return initial_observation
    return f"{initial_observation.partition(chr(10))[0]}\n{instance.observation}"


def observation_pair(instance: PooledInstance) -> list[object]:
    """Return ``[observation, null]``, like ``/reset`` of SQLGym and WebShop."""
    return [instance.observation, None]


def render_reply(reply: ReplyTemplate, instance: PooledInstance) -> object:
    """Return the reply that a template yields for an instance, as values for JSON."""
    return render_fields(reply, instance) if isinstance(reply, Mapping) else reply(instance)


def render_fields(reply: Mapping[str, FieldGetter], instance: PooledInstance) -> dict[str, object]:
    """Return the JSON object that a template yields for an instance."""
    return {name: value(instance) for name, value in reply.items()}
