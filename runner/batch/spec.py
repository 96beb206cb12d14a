"""What a batch is: its request, its settings (``BatchSpec``), and all that its profile adds (``ResolvedBatch``)."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from runner.agents.agentgym import AGENT, Instruction, read_instruction
from runner.config import AgentSettings, Profile
from runner.config.profile import RateLimit
from runner.envs.placement import Placement, choose_placement, environment_entry, find_environment, resolve_environment
from runner.errors import ConfigError
from runner.plugins import AGENTS, ENVS, MODEL_ARGUMENTS, Plugin, check_constructor, find
from runner.pool.worker import MAX_THREADS
from runner.types import MAX_DURATION_S, MAX_ROUNDS, MAX_WORKERS, Budget, Limits, Mode, SpanLevel, Workers
from runner.util.display_text import one_line
from runner.util.resources import open_file_limit, usable_cpus
from runner.worker.runner_setup import RunnerSetup, uses_judge

INTEGER_LIMIT = 2**62
"""Exclusive limit of seeds and task indices; with the attempt or task number added, they still fit 64 bits."""
MAX_CONCURRENCY = 256
MAX_EPISODES = 1_000_000
MAX_CHOSEN = 3000
"""Maximum number of single episodes that a batch names; one line of the journal names them all."""
DEFAULT_AGENT = "react"


class Adaptive(msgspec.Struct, frozen=True, kw_only=True):
    """The adaptive repeats of which a batch is a part: up to ``repeat`` tasks, until the interval is ``width`` wide."""

    width: float
    task_index: int
    repeat: int


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one batch: play each task from ``task_index`` to ``task_index + repeat - 1`` ``attempts`` times.

    Attributes:
        seed: random seed of the agent; attempt k of a task, counted from 0, uses ``seed + k``.
        script: actions of the ``scripted`` agent; None for other agents.
        instruction: what the agent ``agentgym`` begins with, read when the batch is accepted; None for other agents.
        workers: where the episodes run; None: in this process one at a time, else in local processes.
        budget: what the batch may use up each time it is started or resumed; None: no limit.
        tasks: the ``repeat`` tasks in their order, beginning with ``task_index``; None: consecutive ones from there.
        chosen: (task index, attempt) of the only episodes to play; None: all.
        requests_per_minute, concurrent_requests: what each model endpoint admits, where the profile admits more.
        adaptive: the adaptive repeats of which the batch is a part; None: it is no part.
        notice: what differed from the request when the node accepted it, as ``ResolvedBatch.warning``.
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
    instruction: Instruction | None = None
    lost_episodes: Literal["replay", "interrupt"] = "replay"
    workers: Workers | None = None
    budget: Budget | None = None
    chosen: tuple[tuple[int, int], ...] | None = None
    adaptive: Adaptive | None = None
    tasks: tuple[int, ...] | None = None
    requests_per_minute: int | None = None
    concurrent_requests: int | None = None
    notice: str | None = None

    @property
    def n_planned(self) -> int:
        return self.repeat * self.attempts if self.chosen is None else len(self.chosen)

    def plan(self) -> list[PlannedEpisode]:
        tasks = range(self.task_index, self.task_index + self.repeat) if self.tasks is None else self.tasks
        every = ((task, attempt) for task in tasks for attempt in range(self.attempts))
        return [
            PlannedEpisode(task_index=task, attempt=attempt, seed=self.seed + attempt)
            for task, attempt in (every if self.chosen is None else self.chosen)
        ]

    @property
    def chosen_workers(self) -> Workers:
        """``workers``, or by default a process per CPU, at most one per episode at a time; 0 for one at a time."""
        if self.workers is not None:
            return self.workers
        n_slots = min(self.concurrency, self.n_planned)
        return 0 if n_slots <= 1 else min(n_slots, usable_cpus())

    def check_numbers(self) -> None:
        """Raise ``ConfigError`` if a number is out of range; the message has the number and the range."""
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
        if self.tasks is not None and (len(set(self.tasks)) < self.repeat or min(self.tasks) < 0):
            raise ConfigError("tasks has a task twice, or a negative number; give each task once")
        if self.tasks is not None and max(self.tasks) >= INTEGER_LIMIT:
            raise ConfigError(f"tasks has {_shown(max(self.tasks))}; a task must be below {INTEGER_LIMIT}")
        for field in ("seed", "task_index"):
            if abs(getattr(self, field)) >= INTEGER_LIMIT:
                raise ConfigError(f"{field} is {_shown(getattr(self, field))}; it must be below {INTEGER_LIMIT}")


class PlannedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    task_index: int
    attempt: int
    seed: int


def extended(spec: BatchSpec, repeat: int | None, attempts: int | None) -> BatchSpec:
    """Return a spec with more tasks or attempts; None: as many as it has.

    Raises ``ConfigError`` if these would be fewer, or it has no consecutive tasks that could go on.
    """
    if spec.chosen is not None or spec.adaptive is not None:
        kind = "plays single episodes" if spec.chosen is not None else "is part of adaptive repeats"
        raise ConfigError(f"a batch that {kind} cannot be extended; start another one")
    for name, planned, wanted in (("tasks", spec.repeat, repeat), ("attempts", spec.attempts, attempts)):
        if wanted is not None and wanted < planned:
            raise ConfigError(f"it has {planned} {name}, and {wanted} are fewer; give the number after the extension")
    if spec.tasks is not None and repeat not in (None, spec.repeat):
        raise ConfigError("its tasks were named one by one; extend its attempts, or start another batch")
    return msgspec.structs.replace(spec, repeat=repeat or spec.repeat, attempts=attempts or spec.attempts)


def extension(
    played: Sequence[BatchSpec],
    repeat: int | None,
    attempts: int | None,
    done: Collection[tuple[int, int]] | None = None,
) -> BatchSpec | None:
    """Return the episodes that an ended batch and its earlier extensions, in their order, lack; None if they lack none.

    ``done`` are the episodes that they do not lack; None: all that they planned.

    Raises ``ConfigError`` like ``extended``, or if too many episodes must be named one by one.
    """
    first, *others = played
    n_tasks, n_attempts = first.repeat, first.attempts
    for spec in others:  # an extension that names episodes has the numbers of all tasks and attempts
        n_tasks = spec.repeat + (0 if spec.chosen is not None else spec.task_index - first.task_index)
        n_attempts = spec.attempts
    whole = extended(msgspec.structs.replace(first, repeat=n_tasks, attempts=n_attempts), repeat, attempts)
    whole.check_numbers()
    if done is None and whole.attempts == n_attempts:
        new = msgspec.structs.replace(whole, task_index=first.task_index + n_tasks, repeat=whole.repeat - n_tasks)
        return new if new.repeat else None
    if done is None:
        done = {(each.task_index, each.attempt) for spec in played for each in spec.plan()}
    planned = ((each.task_index, each.attempt) for each in whole.plan())
    chosen = tuple(episode for episode in planned if episode not in done)
    if len(chosen) > MAX_CHOSEN:
        raise ConfigError(
            f"{len(chosen)} episodes are more than the {MAX_CHOSEN} that can be named; start another batch"
        )
    return msgspec.structs.replace(whole, chosen=chosen) if chosen else None


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**30 else f"a number of {number.bit_length()} bits"


RUN_FILES: Final = 32
"""Estimated number of open files of ``agentgym-runner --run`` without its episodes, with a margin.

They are standard streams, index, logs, trace and a bus, and the ``SPARE_FILES``.
"""
NODE_FILES: Final = 64
"""Estimated number of open files of a node without its episodes, with a margin.

They are those of a run (``RUN_FILES``), queue, locks, broker, and health checks of models and servers.
"""
SPARE_FILES: Final = 8
"""Open files that a batch keeps spare, so that it can store its episodes if files run out."""
SPARE_BYTES: Final = 8 << 20
"""Memory that a batch keeps spare for the same purpose."""
SLOT_FILES: Final = 6
"""Open files of one episode.

Three belong to its event loop, one is its journal, one the file that it writes, one the connection to its server.
"""
MAX_STORING: Final = MAX_THREADS
"""Maximum number of episodes that are stored while their slots play the next ones."""
STORED_FILES: Final = 1
"""Those of them that the process of the run or node opens for an episode of a worker: its file."""
MODEL_FILES: Final = 2
"""Further open files of an episode with a model: the connections to an endpoint and to the next one."""
CHANNEL_FILES: Final = 3
"""Open files of the process of the run or node for each worker process: its channel, its status and its log."""
WORKER_FILES: Final = 16
"""Estimated number of open files of a worker process without its episodes, with a margin."""


def slot_files(spec: BatchSpec, env_files: int = 0) -> int:
    """Return the number of open files of one episode in all processes; ``env_files`` are its environment's own."""
    return SLOT_FILES + (0 if spec.model is None else MODEL_FILES) + env_files


def fit_concurrency(spec: BatchSpec, own_files: int, env_files: int = 0) -> tuple[BatchSpec, str | None]:
    """Lower the concurrency of a batch to what the limit of open files allows; return also a text about that, or None.

    ``own_files`` are those of the process without its episodes, ``RUN_FILES`` or ``NODE_FILES``.

    Raises:
        ConfigError: the limit allows no episode.
    """
    limit, advice = open_file_limit(), "raise it with ulimit -n"
    n_slots, share = min(_bounds(spec, own_files, slot_files(spec, env_files), limit))
    if n_slots < 1:
        raise ConfigError(f"No episode of {spec.env} fits the limit of {limit} open files: {share}; {advice}")
    if min(spec.concurrency, spec.n_planned) <= n_slots:
        return spec, None
    lowered = f"concurrency lowered from {spec.concurrency} to {n_slots}"
    note = f"{lowered}: the limit of open files is {limit}, {share}; {advice}"
    return msgspec.structs.replace(spec, concurrency=n_slots), note


def _bounds(spec: BatchSpec, own_files: int, per_episode: int, limit: int) -> list[tuple[int, str]]:
    n_planned, workers = min(spec.concurrency, spec.n_planned), spec.chosen_workers
    if workers == "ray" or not workers:
        return [_bound("the process", own_files, per_episode, limit)]
    n_workers, in_worker = min(workers, n_planned), per_episode - STORED_FILES
    if (in_driver := own_files + MAX_STORING + MAX_THREADS + n_workers * CHANNEL_FILES) > limit:
        return [(0, f"the process needs {in_driver}")]
    n_slots, share = _bound("a worker process", WORKER_FILES, in_worker, limit)
    return [(n_slots * n_workers, share)]


def _bound(process: str, own_files: int, per_episode: int, limit: int) -> tuple[int, str]:
    return (limit - own_files) // per_episode, f"{process} needs {own_files} and each episode {per_episode}"


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
        lowered: a text that names the concurrency that was lowered to fit the open files; None if none was.
    """

    spec: BatchSpec
    profile: Profile
    env: Plugin
    agent: Plugin
    placement: Placement = Placement()
    lowered: str | None = None

    @property
    def setup(self) -> RunnerSetup:
        spec, profile = self.spec, self.profile
        agent = msgspec.structs.replace(profile.agent, rate_limits=self.rate_limits)
        return RunnerSetup(
            env=self.env,
            agent=self.agent,
            mode=spec.mode,
            limits=spec.limits,
            tracing=spec.tracing,
            address=self.placement.address,
            models=agent if spec.model is not None or uses_judge(self.env, profile.are) else None,
            script=spec.script,
            instruction=spec.instruction,
            are=profile.are,
            world=self._records_world,
        )

    @property
    def rate_limits(self) -> dict[str, RateLimit]:
        """The limits of the endpoints that have any, by name: the lower ones of the profile and of the batch."""
        found = dict[str, RateLimit]()
        for name in self.profile.agent.endpoint_names:
            limit = self.profile.agent.rate_limits.get(name, RateLimit())
            both = {each: (getattr(limit, each), getattr(self.spec, each)) for each in RateLimit.__struct_fields__}
            found[name] = RateLimit(**{each: min(filter(None, two), default=None) for each, two in both.items()})
        return {name: limit for name, limit in found.items() if limit != RateLimit()}

    @property
    def _records_world(self) -> bool:
        by_default = self.spec.model is not None and self.placement.address is None
        return by_default if (chosen := self.profile.episode.world) is None else chosen

    @property
    def wait_s(self) -> float:
        return self.profile.episode_settings(self.spec.env).wait_sec

    @property
    def env_files(self) -> int:
        """Number of files that one episode's environment opens, apart from the connection to its server."""
        return int(getattr(self.env.load(), "open_files", 0)) if self.env.is_installed else 0

    @property
    def warning(self) -> str | None:
        """The lowered concurrency, and the models whose answers a budget of cost does not count."""
        unpriced = unpriced_note(self.spec.budget, self.spec.model, self.profile.agent)
        return "; ".join(filter(None, (self.lowered, unpriced))) or None

    def placed(self, placement: Placement) -> ResolvedBatch:
        """Return the batch at a placement; raise ``ConfigError`` if it cannot build the environment there."""
        env = self.env
        if self.spec.agent == AGENT and placement.mode == "strict":
            raise ConfigError(f"The agent {AGENT} plays by AgentGym's rules; start the server with --compat")
        if self.spec.tasks is not None:
            _check_tasks(self.spec.tasks, env, placement)
        if placement.address is None and env.is_installed and not env.is_built_in:
            arguments = () if placement.mode == "strict" else ("mode",)
            check_constructor(ENVS, env.name, env.load(), arguments)
        spec = msgspec.structs.replace(self.spec, mode=placement.mode)
        return msgspec.structs.replace(self, spec=spec, placement=placement)


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
    check_limits(profile, request)
    return batch


def check_limits(profile: Profile, request: BatchRequest) -> None:
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
    return _resolve(profile, spec, find_environment(spec.env), find(AGENTS, spec.agent))


def resolve_agent(settings: AgentSettings, request: BatchRequest) -> tuple[Plugin, str | None]:
    """Return the agent of a request, and its model: the requested one, the profile's, or None if it uses no model.

    Raises:
        ConfigError: the agent is unknown, the model name is invalid, or a model is requested but not used.
    """
    agent, model = find(AGENTS, request.agent or DEFAULT_AGENT), request.model
    if not agent.uses_model:
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
    needs_model = agent.uses_model
    if needs_model != (spec.model is not None):
        raise ConfigError(f"The agent {agent.name} {'needs a' if needs_model else 'uses no'} model")
    if needs_model and spec.budget is not None and spec.budget.cost is not None and not profile.agent.price:
        raise ConfigError("A budget of cost needs prices; set agent.price in the profile, or give a budget of tokens")
    if not agent.is_built_in:
        arguments = MODEL_ARGUMENTS if needs_model else ()
        check_constructor(AGENTS, agent.name, agent.load(), arguments)
    if not has_oracle(env) and agent.name == "oracle":  # in this order: an environment that cannot be loaded fails here
        raise ConfigError(f"{env.name} has no oracle; choose another agent, e.g. random")
    spec = msgspec.structs.replace(spec, env=env.name, agent=agent.name)
    return ResolvedBatch(spec=spec, profile=profile, env=env, agent=agent)


def unpriced_note(budget: Budget | None, model: str | None, settings: AgentSettings) -> str | None:
    """Return which models have no price, so that a budget of cost does not limit their answers; None if it does."""
    if budget is None or budget.cost is None or model is None:
        return None
    fallback = settings.local_fallback
    models = [model, *(each.model or model for each in settings.endpoints), *([fallback] if fallback else [])]
    unpriced = [name for name in dict.fromkeys(models) if name not in settings.price]
    if not unpriced:
        return None
    names = ", ".join(one_line(name, 100) for name in unpriced)
    return f"no price for {names}: such answers count as 0 in the budget of cost; set agent.price, or limit tokens, too"


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
    placement = choose_placement(
        environment_entry(batch.profile, batch.env.name), batch.env, batch.spec.mode, wait_s=batch.wait_s
    )
    return fit_batch(batch, own_files).placed(placement)


def fit_batch(batch: ResolvedBatch, own_files: int) -> ResolvedBatch:
    spec, lowered = fit_concurrency(batch.spec, own_files, batch.env_files)
    return msgspec.structs.replace(batch, spec=spec, lowered=lowered)
