"""A batch with everything that its profile adds: its environment, agent, model, workers, limits and placement."""

from __future__ import annotations

import os

import msgspec

from runner import plugins
from runner.agents.agentgym import AGENT, read_instruction
from runner.batch.budget import unpriced_note
from runner.batch.slots import fit_concurrency
from runner.batch.spec import DEFAULT_AGENT, INTEGER_LIMIT, BatchSpec
from runner.config import AgentSettings, EnvironmentEntry, Profile, RaySettings
from runner.envs.placement import (
    Placement,
    choose_placement,
    environment_entry,
    find_environment,
    resolve_environment,
)
from runner.errors import ConfigError
from runner.plugins import Plugin
from runner.types import Budget, Limits, Mode, SpanLevel, Workers
from runner.util.display_text import one_line
from runner.worker.runner_setup import RunnerSetup, uses_judge, uses_model

MAX_MODEL_NAME_CHARS = 200


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it is requested; what is None comes from the profile, or has a default.

    A start request of the control bus has the same names, so that it is converted.

    Attributes:
        tasks: the tasks, in their order, in place of ``repeat`` consecutive ones from ``task_index``.
        allow_longer: whether ``max_rounds`` and ``max_duration_sec`` may exceed the profile's values.
    """

    env: str = ""
    agent: str | None = None
    model: str | None = None
    repeat: int = 1
    attempts: int = 1
    task_index: int = 0
    tasks: tuple[int, ...] | None = None
    seed: int = 0
    concurrency: int | None = None
    workers: Workers | None = None
    max_rounds: int | None = None
    max_duration_sec: float | None = None
    allow_longer: bool = False
    mode: Mode = "strict"
    tracing: SpanLevel | None = None
    script: tuple[str, ...] | None = None
    budget: Budget | None = None

    def with_defaults(self, profile: Profile) -> BatchSpec:
        """Return the batch with the values of the profile; its names and numbers are not checked yet."""
        episode = profile.episode_settings(self.env)
        return BatchSpec(
            env=self.env,
            agent=self.agent or DEFAULT_AGENT,
            model=self.model,
            repeat=self.repeat if self.tasks is None else len(self.tasks),
            attempts=self.attempts,
            task_index=self.tasks[0] if self.tasks else self.task_index,
            tasks=self.tasks,
            seed=self.seed,
            concurrency=episode.concurrent if self.concurrency is None else self.concurrency,
            workers=episode.workers if self.workers is None else self.workers,
            limits=Limits(
                episode.max_rounds if self.max_rounds is None else self.max_rounds,
                episode.max_duration_sec if self.max_duration_sec is None else self.max_duration_sec,
                profile.agent.max_unparsed,
            ),
            mode=self.mode,
            tracing=self.tracing or profile.tracing,
            script=self.script,
            budget=self.budget,
        )


class ResolvedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that needs no further look-up: its workers import agent and environment by their entry points.

    Attributes:
        spec: the batch with registered names; once it is placed, with the rules of its placement.
        env_files: files that one episode's environment opens, apart from the connection to its server.
        lowered: a text that names the concurrency that was lowered to fit the open files; None if none was.
        unpriced: a text that names the models whose answers a budget of cost does not count; None if there are none.
    """

    spec: BatchSpec
    setup: RunnerSetup
    entry: EnvironmentEntry | None = None
    wait_s: float = 0.0
    ray: RaySettings = RaySettings()
    env_files: int = 0
    placement: Placement = Placement()
    lowered: str | None = None
    unpriced: str | None = None

    @property
    def warning(self) -> str | None:
        return "; ".join(filter(None, (self.lowered, self.unpriced))) or None

    def placed(self, placement: Placement) -> ResolvedBatch:
        """Return the batch at a placement; raise ``ConfigError`` if it cannot build the environment there."""
        env = self.setup.env
        if self.spec.agent == AGENT and placement.mode == "strict":
            raise ConfigError(f"The agent {AGENT} plays by AgentGym's rules; start the server with --compat")
        if self.spec.tasks is not None:
            _check_tasks(self.spec.tasks, env, placement)
        if placement.address is None and env.is_installed and not env.is_built_in:
            arguments = () if placement.mode == "strict" else ("mode",)
            plugins.check_constructor(plugins.ENVS, env.name, env.load(), arguments)
        return msgspec.structs.replace(
            self,
            spec=msgspec.structs.replace(self.spec, mode=placement.mode),
            setup=msgspec.structs.replace(self.setup, mode=placement.mode, address=placement.address),
            placement=placement,
        )


def _check_tasks(tasks: tuple[int, ...], env: Plugin, placement: Placement) -> None:
    """Raise ``ConfigError`` if a task is known not to exist: another one would be played in its place."""
    n_tasks = INTEGER_LIMIT
    if placement.address is not None:
        from runner.envs.http.dialects import dialect_for  # imported late: rarely needed

        dialect = dialect_for(env.name)
        n_tasks = placement.address.n_tasks or (dialect and dialect.n_tasks) or n_tasks
    elif env.is_built_in and env.family is None:
        n_tasks = env.load()(mode=placement.mode).n_tasks
    if unknown := [str(task) for task in tasks if task >= n_tasks]:
        shown = f"{', '.join(unknown[:5])}{' and more' if len(unknown) > 5 else ''}"
        raise ConfigError(f"{env.name} has the tasks 0 to {n_tasks - 1}; there is no task {shown}")


def resolve_batch(profile: Profile, request: BatchRequest) -> ResolvedBatch:
    """Return a requested batch with everything that the profile adds, without contacting a server.

    Raises:
        UnplayableName: the environment is unknown, not installed, skipped by the profile, or needs a server that the
            profile does not have.
        ConfigError: the agent is unknown; the agent or environment cannot be loaded, or do not fit each other; a number
            is out of range; a limit exceeds the profile's; or a script or model is missing, or not used by the agent.
    """
    spec = request.with_defaults(profile)
    env = resolve_environment(profile, spec.env)
    agent, model = resolve_agent(profile.agent, request)
    spec = msgspec.structs.replace(spec, env=env.name, agent=agent.name, model=model)
    if agent.name == AGENT:
        instruction = read_instruction(env.name, os.environ)
        spec = msgspec.structs.replace(spec, mode="compat", instruction=instruction)
    batch = _resolve(profile, spec, env, agent)
    _check_limits(profile, request)
    return batch


def _check_limits(profile: Profile, request: BatchRequest) -> None:
    """Raise ``ConfigError`` if a requested limit exceeds the profile's, unless that is allowed.

    Stored and resumed batches keep their limits: only new requests come here.
    """
    episode = profile.episode_settings(request.env)
    for name in ("max_rounds", "max_duration_sec"):
        requested, limit = getattr(request, name), getattr(episode, name)
        if requested is not None and requested > limit and not request.allow_longer:
            raise ConfigError(
                f"{name} is {requested:.15g}, above the limit {limit:.15g} of the profile {profile.id}; lower it, "
                f"set {name} of episode or of the environment there, or give --allow-longer (allow_longer in a request)"
            )


def resolve_spec(profile: Profile, spec: BatchSpec) -> ResolvedBatch:
    """Return a batch of a queue with everything that the profile adds; the profile may skip its environment by now.

    Raises ``ConfigError`` like ``resolve_batch``.
    """
    return _resolve(profile, spec, find_environment(spec.env), plugins.find(plugins.AGENTS, spec.agent))


def resolve_agent(settings: AgentSettings, request: BatchRequest) -> tuple[Plugin, str | None]:
    """Return the agent of a request, and its model: the requested one, the profile's, or None if it uses no model.

    Raises:
        ConfigError: the agent is unknown, the model name is invalid, or a model is requested but not used.
    """
    agent, model = plugins.find(plugins.AGENTS, request.agent or DEFAULT_AGENT), request.model
    if not uses_model(agent):
        if model is not None:
            raise ConfigError(
                f"The agent {agent.name} uses no model; omit the model, or choose the agent {DEFAULT_AGENT}"
            )
        return agent, None
    if model is not None and not (0 < len(model) <= MAX_MODEL_NAME_CHARS and one_line(model) == model):
        raise ConfigError(
            f"{one_line(model, MAX_MODEL_NAME_CHARS)!r} is not a valid model name: "
            f"it must have 1 to {MAX_MODEL_NAME_CHARS} visible characters"
        )
    return agent, model or settings.model


def _resolve(profile: Profile, spec: BatchSpec, env: Plugin, agent: Plugin) -> ResolvedBatch:
    spec.check_numbers()
    if (agent.name == "scripted") != (spec.script is not None):
        raise ConfigError("A script needs the agent scripted, and that agent needs a script: give both or neither")
    needs_model = uses_model(agent)
    if needs_model != (spec.model is not None):
        raise ConfigError(f"The agent {agent.name} {'needs a' if needs_model else 'uses no'} model")
    if needs_model and spec.budget is not None and spec.budget.cost is not None and not profile.agent.price:
        raise ConfigError("A budget of cost needs prices; set agent.price in the profile, or give a budget of tokens")
    if not agent.is_built_in:
        arguments = plugins.MODEL_ARGUMENTS if needs_model else ()
        plugins.check_constructor(plugins.AGENTS, agent.name, agent.load(), arguments)
    environment = env.load() if env.is_installed else None
    if agent.name == "oracle" and not has_oracle(env):
        raise ConfigError(f"{env.name} has no oracle; choose another agent, e.g. random")
    return ResolvedBatch(
        spec=msgspec.structs.replace(spec, env=env.name, agent=agent.name),
        setup=RunnerSetup(
            env=env,
            agent=agent,
            mode=spec.mode,
            limits=spec.limits,
            tracing=spec.tracing,
            models=profile.agent if needs_model or uses_judge(env, profile.are) else None,
            script=spec.script,
            instruction=spec.instruction,
            are=profile.are,
            world=profile.episode.world,
        ),
        entry=environment_entry(profile, env.name),
        wait_s=profile.episode_settings(env.name).wait_sec,
        ray=profile.ray,
        unpriced=unpriced_note(spec.budget, spec.model, profile.agent),
        env_files=int(getattr(environment, "open_files", 0)),
    )


def has_oracle(env: Plugin) -> bool:
    """Return whether the agent ``oracle`` may play an environment; raise ``ConfigError`` if it cannot be loaded."""
    environment = env.load() if env.is_installed else None
    # a factory's product is unknown before it is called
    return hasattr(environment, "oracle") or not (environment is None or isinstance(environment, type))


def place_batch(batch: ResolvedBatch, own_files: int) -> ResolvedBatch:
    """Choose where a batch that is about to start runs, and how many of its episodes at a time fit the open files.

    Its server is probed for at most two seconds.

    Raises:
        ConfigError: the required server is not available, the environment's data cannot be used, or the limit of open
            files allows no episode.
    """
    placement = choose_placement(batch.entry, batch.setup.env, batch.spec.mode, wait_s=batch.wait_s)
    return fit_batch(batch, own_files).placed(placement)


def fit_batch(batch: ResolvedBatch, own_files: int) -> ResolvedBatch:
    spec, lowered = fit_concurrency(batch.spec, own_files, batch.env_files)
    return msgspec.structs.replace(batch, spec=spec, lowered=lowered)
