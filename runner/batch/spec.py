"""Batch specification: one environment, one agent, a range of tasks, and the number of attempts per task."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner import plugins
from runner.config import AgentSettings, Profile, SkipEntry
from runner.envs.are.catalog import check_scenario
from runner.envs.names import server_problem, skipped_environment, unknown_environment, unplayable_entry
from runner.envs.placement import Placement, has_http_dialect, server_address
from runner.errors import ConfigError
from runner.inference.profile_models import Models
from runner.types import MAX_DURATION_S, MAX_ROUNDS, MAX_WORKERS, Limits, Mode, SpanLevel, Workers
from runner.util.display_text import one_line
from runner.worker.runner_setup import RunnerSetup, uses_judge, uses_model

INTEGER_LIMIT = 2**62
"""Exclusive limit of seeds and task indices; with the attempt or task number added, they still fit 64 bits."""
MAX_CONCURRENCY = 256
"""Maximum number of episodes that one batch plays at a time."""
MAX_EPISODES = 1_000_000
"""Maximum number of episodes in one batch."""
MAX_MODEL_NAME_CHARS = 200
"""Maximum length of a model name."""
DEFAULT_AGENT = "react"


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one batch: play each task from ``task_index`` to ``task_index + repeat - 1`` ``attempts`` times.

    Attributes:
        model: name of the LLM; None if the agent uses no model (see ``resolve_model``).
        seed: random seed of the agent; attempt k of a task, counted from 0, uses ``seed + k``.
        script: actions of the ``scripted`` agent; None for other agents.
        lost_episodes: whether an episode whose worker was lost is played again, or stays interrupted.
        workers: where the episodes run; None: in this process one at a time, else in local processes.
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
    lost_episodes: Literal["replay", "interrupt"] = "replay"
    workers: Workers | None = None

    @property
    def n_planned(self) -> int:
        """Number of episodes in the batch."""
        return self.repeat * self.attempts

    def plan(self) -> list[PlannedEpisode]:
        """Return the episodes of the batch, ordered by task."""
        tasks = range(self.task_index, self.task_index + self.repeat)
        return [
            PlannedEpisode(task_index=task, attempt=attempt, seed=self.seed + attempt)
            for task in tasks
            for attempt in range(self.attempts)
        ]

    def validated(self) -> BatchSpec:
        """Return the batch with registered names; check its numbers, and that its agent and environment can be loaded.

        Raises:
            ConfigError: if a name is unknown, an agent or environment cannot be loaded, a number is out of range, or
                a script or model is missing or not used by the agent.
        """
        for field, minimum in (("repeat", 1), ("attempts", 1), ("concurrency", 1), ("task_index", 0)):
            if (value := getattr(self, field)) < minimum:
                raise ConfigError(f"{field} is {_shown(value)}; it must be at least {minimum}")
        if self.n_planned > MAX_EPISODES:
            raise ConfigError(
                f"repeat x attempts is {_shown(self.n_planned)}; one batch has at most {MAX_EPISODES} episodes"
            )
        if self.concurrency > MAX_CONCURRENCY:
            requested = _shown(self.concurrency)
            raise ConfigError(f"concurrency is {requested}; a batch plays at most {MAX_CONCURRENCY} episodes at a time")
        if isinstance(self.workers, int) and not 0 <= self.workers <= MAX_WORKERS:
            raise ConfigError(
                f"workers is {_shown(self.workers)}; give 0 to {MAX_WORKERS} local processes (0: none), or ray"
            )
        if self.limits.max_rounds < 1 or not self.limits.max_duration_s > 0:
            raise ConfigError("The limits must be at least one round and a positive number of seconds")
        if self.limits.max_rounds > MAX_ROUNDS:
            raise ConfigError(f"max_rounds is {_shown(self.limits.max_rounds)}; it must be at most {MAX_ROUNDS}")
        if self.limits.max_duration_s > MAX_DURATION_S:
            duration = f"{self.limits.max_duration_s:g}"
            raise ConfigError(f"max_duration_sec is {duration}; it must be at most {MAX_DURATION_S} seconds")
        for field in ("seed", "task_index"):
            if abs(getattr(self, field)) >= INTEGER_LIMIT:
                raise ConfigError(f"{field} is {_shown(getattr(self, field))}; it must be below {INTEGER_LIMIT}")
        agent = plugins.canonical_name(plugins.AGENTS, self.agent)
        if (agent == "scripted") != (self.script is not None):
            raise ConfigError("A script needs the agent scripted, and that agent needs a script: give both or neither")
        if uses_model(agent) != (self.model is not None):
            raise ConfigError(f"The agent {agent} {'needs a' if uses_model(agent) else 'uses no'} model")
        return msgspec.structs.replace(self, env=_validated_environment(self.env, agent), agent=agent)

    def runner_setup(self, placement: Placement | None = None, models: Models | None = None) -> RunnerSetup:
        """Return what a process needs to play the episodes of this batch.

        Args:
            placement: where the environment runs; None: embedded.
            models: the profile's models.

        Raises:
            ConfigError: the agent uses a model and ``models`` is None.
        """
        placement = placement or Placement(mode=self.mode)
        needs_model, judged = uses_model(self.agent), uses_judge(self.env, placement.are)
        if needs_model and models is None:
            raise ConfigError(f"The agent {self.agent} needs a model, and none is configured")
        return RunnerSetup(
            env=self.env,
            agent=self.agent,
            mode=placement.mode,
            limits=self.limits,
            tracing=self.tracing,
            address=placement.address,
            models=models.settings if models is not None and (needs_model or judged) else None,
            script=self.script,
            are=placement.are,
            resolved=tuple(
                plugins.resolve(group, name)
                for group, name in ((plugins.ENVS, self.env), (plugins.AGENTS, self.agent))
                if plugins.is_registered(group, name)  # an environment on a server need not be
            ),
        )


class PlannedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """One episode that a batch has yet to start: its task, attempt and seed."""

    task_index: int
    attempt: int
    seed: int


def resolve_model(agent: str, settings: AgentSettings, requested: str | None) -> str | None:
    """Return the model of a batch: ``requested`` or the profile's default; None if the agent uses no model.

    Raises:
        ConfigError: if the agent is unknown, the model name is invalid, or ``requested`` is given but not used.
    """
    if not uses_model(agent):
        if requested is not None:
            raise ConfigError(f"The agent {agent} uses no model; omit the model, or choose the agent {DEFAULT_AGENT}")
        return None
    if requested is not None and not (0 < len(requested) <= MAX_MODEL_NAME_CHARS and one_line(requested) == requested):
        raise ConfigError(
            f"{one_line(requested, MAX_MODEL_NAME_CHARS)!r} is not a valid model name: "
            f"it must have 1 to {MAX_MODEL_NAME_CHARS} visible characters"
        )
    return requested or settings.model


def _shown(number: int) -> str:
    """Return a number of any size in a form for messages."""
    return str(number) if abs(number) < 10**30 else f"a number of {number.bit_length()} bits"


def _validated_environment(env: str, agent: str) -> str:
    """Return the registered name of an environment; it must be loadable or available from an HTTP server."""
    environment: object = None
    if plugins.is_registered(plugins.ENVS, env):
        env = plugins.canonical_name(plugins.ENVS, env)
        environment = plugins.load(plugins.ENVS, env)
    elif not has_http_dialect(env):
        raise unknown_environment(env)
    # a factory's product is unknown before it is called
    is_class = environment is None or isinstance(environment, type)
    if agent == "oracle" and is_class and not hasattr(environment, "oracle"):
        raise ConfigError(f"{env} has no oracle; choose another agent, e.g. random")
    return env


def resolve_environment(profile: Profile, name: str) -> str:
    """Return the registered name of an environment that the profile allows.

    Raises:
        UnplayableName: if the environment is unknown, not installed, skipped by the profile, or needs a server that the
            profile does not have; with the reason and the names or keys that work.
        ConfigError: if several packages register the name, ARE is not installed, or ARE has no such scenario.
    """
    entry = profile.find_entry(name)
    if isinstance(entry, SkipEntry):
        raise skipped_environment(entry, profile)
    if plugins.is_registered(plugins.ENVS, name):
        check_scenario(name, profile.are)
        return plugins.canonical_name(plugins.ENVS, name if entry is None else entry.name)
    if entry is None:
        raise unknown_environment(name, (listed.name for _, listed in profile.tiered_entries()))
    if server_address(entry) is not None and has_http_dialect(entry.name) and server_problem(entry) is None:
        return entry.name
    raise unplayable_entry(entry, profile)
