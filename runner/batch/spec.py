"""What is to be played: a batch is one environment and one agent over some tasks, each tried one or more times."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from runner import plugins as registry
from runner.agents.scripted import Script
from runner.config import AgentSettings, Profile, SkipEntry
from runner.envs.placement import Choice, address_of, is_on_servers
from runner.episode.runner import Runner
from runner.errors import ConfigError
from runner.inference.models import Models
from runner.types import Limits, Mode, SpanLevel
from runner.util.text import one_line

MAX_NUMBER = 2**62
"""Seeds and task indices stay below: with the attempts and tasks added they still fit 64 bits, as files need."""


MAX_CONCURRENCY = 256
"""Slots of one batch; each is a thread."""
MAX_EPISODES = 1_000_000
"""Episodes of one batch."""
MAX_MODEL = 200
"""Characters of a model's name."""
DEFAULT_AGENT = "react"


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: task indices ``task_index … task_index + repeat - 1``, each played ``attempts`` times.

    Attributes:
        model: who an agent that asks a model asks, None for every other agent (see ``model_of``).
        seed: feeds the agent's randomness; attempt k of a task plays with ``seed + k``.
        script: the actions of the ``scripted`` agent.
    """

    env: str
    agent: str = DEFAULT_AGENT
    model: str | None = None
    repeat: int = 1
    attempts: int = 1
    task_index: int = 0
    seed: int = 0
    concurrency: int = 1
    limits: Limits = Limits()
    mode: Mode = "strict"
    tracing: SpanLevel = "full"
    script: tuple[str, ...] | None = None

    @property
    def n_planned(self) -> int:
        """How many episodes the batch has."""
        return self.repeat * self.attempts

    def plan(self) -> list[PlannedEpisode]:
        """The episodes of the batch, task by task."""
        tasks = range(self.task_index, self.task_index + self.repeat)
        return [
            PlannedEpisode(task_index=task, attempt=attempt, seed=self.seed + attempt)
            for task in tasks
            for attempt in range(self.attempts)
        ]

    def checked(self) -> BatchSpec:
        """The same batch with registered spellings of its names, all of which can be loaded.

        Raises:
            ConfigError: for unknown or broken names, numbers below their minimum, a script or a model that is missing
                or not asked for.
        """
        for field, least in (("repeat", 1), ("attempts", 1), ("concurrency", 1), ("task_index", 0)):
            if (value := getattr(self, field)) < least:
                raise ConfigError(f"{field} is {value}; it has to be at least {least}")
        if self.n_planned > MAX_EPISODES:
            raise ConfigError(f"repeat x attempts is {self.n_planned}; one batch has at most {MAX_EPISODES} episodes")
        if self.concurrency > MAX_CONCURRENCY:
            raise ConfigError(f"concurrency is {self.concurrency}; at most {MAX_CONCURRENCY} slots can play at a time")
        if self.limits.max_rounds < 1 or not 0 < self.limits.max_duration_s < math.inf:
            raise ConfigError("The limits have to be at least one round and a positive number of seconds")
        for field in ("seed", "task_index"):
            if abs(getattr(self, field)) >= MAX_NUMBER:
                raise ConfigError(f"{field} is {getattr(self, field)}; it has to be below {MAX_NUMBER}")
        agent = registry.canonical(registry.AGENTS, self.agent)
        if (agent == "scripted") != (self.script is not None):
            raise ConfigError("The agent scripted and a script go together: give both or neither")
        if asks_model(agent) != (self.model is not None):
            raise ConfigError(f"The agent {agent} asks {'a' if asks_model(agent) else 'no'} model")
        return msgspec.structs.replace(self, env=_checked_environment(self.env, agent), agent=agent)

    def runner(self, choice: Choice | None = None, models: Models | None = None) -> Runner:
        """What plays this batch's episodes; by default in this process.

        Raises:
            ConfigError: for an agent that asks a model, without ``models``.
        """
        choice = choice or Choice(mode=self.mode)
        mode: dict[str, Any] = {} if choice.mode == "strict" else {"mode": choice.mode}
        needs: dict[str, Any] = {}
        if self.agent == "oracle":
            needs["twin"] = registry.target(registry.ENVS, self.env, **mode)
        if choice.address is None:
            env_cfg = registry.target(registry.ENVS, self.env, **mode)
        else:
            env_cfg = registry.target_on_server(env=self.env, address=choice.address, mode=choice.mode)
        if self.script is not None:
            needs["script"] = Script(self.script)
        manager = None
        if asks_model(self.agent):
            if models is None:
                raise ConfigError(f"The agent {self.agent} asks a model, and there is none to ask")
            manager, needs["settings"] = models.manager, models.settings
        agent_cfg = registry.target(registry.AGENTS, self.agent, **needs)
        return Runner(
            env_cfg=env_cfg,
            agent_cfg=agent_cfg,
            inference_mngr=manager,
            tracing_level=self.tracing,
            limits=self.limits,
        )


class PlannedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """One episode of a batch, before it is played."""

    task_index: int
    attempt: int
    seed: int


def asks_model(agent: str) -> bool:
    """Whether an agent is given a model to ask; raises a ``ConfigError`` for one that cannot be loaded."""
    return bool(getattr(registry.load(registry.AGENTS, agent), "uses_model", False))


def model_of(agent: str, settings: AgentSettings, wanted: str | None) -> str | None:
    """The model that a batch is played with: the one that is wanted, else the profile's; None where none is asked.

    Raises:
        ConfigError: for an unknown agent, one that asks no model although one is wanted, or a name that is none.
    """
    if not asks_model(agent):
        if wanted is not None:
            raise ConfigError(f"The agent {agent} asks no model; leave the model out, or choose {DEFAULT_AGENT}")
        return None
    if wanted is not None and not (0 < len(wanted) <= MAX_MODEL and one_line(wanted) == wanted):
        raise ConfigError(f"{one_line(wanted, MAX_MODEL)!r} is no name of a model: 1 to {MAX_MODEL} visible characters")
    return wanted or settings.model


def _checked_environment(env: str, agent: str) -> str:
    """The registered spelling of an environment that can be loaded, or that needs not be, as a server plays it."""
    environment: object = None
    if registry.knows(registry.ENVS, env) or not is_on_servers(env):
        env = registry.canonical(registry.ENVS, env)
        environment = registry.load(registry.ENVS, env)
    is_class = environment is None or isinstance(environment, type)  # what a factory makes is not known yet
    if agent == "oracle" and is_class and not hasattr(environment, "oracle"):
        raise ConfigError(f"{env} has no oracle; choose another agent, e.g. random")
    return env


def resolve_environment(profile: Profile, name: str) -> str:
    """The registered name of an environment that the profile allows to be played.

    Raises:
        ConfigError: saying why it cannot.
    """
    entry = profile.find(name)
    if isinstance(entry, SkipEntry):
        raise ConfigError(f"{entry.name} is skipped in profile {profile.id}: {entry.reason}")
    if registry.knows(registry.ENVS, name):
        return registry.canonical(registry.ENVS, name if entry is None else entry.name)
    installed = registry.names(registry.ENVS)
    if entry is None:
        known = [*installed, *(listed.name for _, listed in profile.listed())]
        raise ConfigError(f"There is no environment named {name!r}. {registry.suggestion(name, known)}")
    if address_of(entry) is not None and is_on_servers(entry.name):
        return entry.name
    raise ConfigError(
        f"{entry.name} is in profile {profile.id}, but no environment of that name is installed. "
        f"Installed are: {', '.join(installed)}."
    )
