"""Checks before a run: models, environments, buses and the state directory, with a hint for each problem; and trials.

A trial plays two turns with a tool on each model endpoint, which show what it takes and how its model acts. The turns
are those of a run: the same agent asks, the same requests are sent, and refusals teach the same lessons.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from nats.aio.client import Client

from runner.agents.model import ReactAgent
from runner.batch.spec import BatchRequest, BatchSpec, resolve_agent, resolve_batch
from runner.bus.address import BusAddress
from runner.bus.broker import server_process
from runner.bus.connection import NatsConnection
from runner.bus.streams import BUS_ERRORS, find_stream, refusal_of, stream_info
from runner.config import AgentSettings, EnvironmentEntry, Profile, RaySettings
from runner.config.profile import Capabilities
from runner.envs.are.catalog import ADVICE, is_are
from runner.envs.are.catalog import NOT_INSTALLED as ARE_NOT_INSTALLED
from runner.envs.availability import (
    NOT_INSTALLED,
    Availability,
    EnvironmentHealth,
    environment_health,
    server_addresses,
)
from runner.envs.base import AS_PUBLISHED
from runner.envs.http.server import probe_servers
from runner.envs.names import did_you_mean, entry_advice, server_problem
from runner.envs.placement import find_environment, resolve_environment, server_address, start_command
from runner.errors import ConfigError, InferenceFault, RunnerError
from runner.events.subjects import DurableNames
from runner.inference.endpoints import NO_ENDPOINT
from runner.inference.errors import WRONG_KEY
from runner.inference.health import EndpointHealth
from runner.inference.http import fetch
from runner.inference.manager import InferenceManager
from runner.inference.profile_models import Models, is_answering, run_in_thread
from runner.pool.ray_cluster import RayConnection, RayNode, inspect_nodes, load_ray, require_reachable, rewrite_setup
from runner.types import (
    Action,
    EpisodeHeader,
    EpisodeInfo,
    InvalidAction,
    Message,
    StreamDelta,
    Tokens,
    ToolSchema,
    Usage,
)
from runner.util.amounts import format_amount
from runner.util.clock import Clock, new_ulid
from runner.util.display_text import mask, one_line
from runner.util.files import world_writable_problem
from runner.util.resources import usable_cpus
from runner.util.urls import safe_url
from runner.worker.runner_setup import RunnerSetup

if TYPE_CHECKING:
    from runner.inference.health import EndpointHealth

TIMEOUT_S = 20.0
"""Maximum seconds for the nodes of a cluster to describe themselves; each starts a process for that."""
USUAL_EVENT_BYTES = 1_000
"""Size of the event of an episode with its headers; long names make it larger."""
MONITOR = "egress's health"
BUS_TIMEOUT_S = 2.0
MAX_CHARS = 500
EVENTS_WAIT = "until then the events wait in the outbox"


class PreflightCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The check of one resource: ``warn`` if an optional one is unavailable, ``fail`` if a required one is."""

    what: str
    name: str = ""
    state: Literal["ok", "warn", "fail"] = "ok"
    detail: str = ""
    latency_s: float | None = None
    cause: str | None = None
    hint: str | None = None

    def warning(self, cause: str, hint: str | None) -> PreflightCheck:
        return msgspec.structs.replace(self, state="warn", cause=one_line(mask(cause), MAX_CHARS), hint=hint)

    def failure(self, problem: str) -> PreflightCheck:
        """``problem`` is a cause, and after the last semicolon, or else the first colon, what to do."""
        cause, separator, hint = problem.rpartition("; ") if "; " in problem else problem.partition(": ")
        failed = self.warning(cause if separator else problem, hint or None)
        return msgspec.structs.replace(failed, state="fail")


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be checked: ``request`` is the batch of one environment, or without a name, of all of the profile."""

    profile: Profile
    data_dir: Path
    request: BatchRequest
    egress: Callable[[], BusAddress | None]


def preflight(plan: PlannedRun, models: Models) -> list[PreflightCheck]:
    """Run all checks concurrently and return their results, after at most about 3 seconds.

    Raises:
        ConfigError: if the agent is unknown, its model is not valid, or the environment of the plan is unknown or
            skipped by the profile.
    """
    env = resolve_environment(plan.profile, plan.request.env).name if plan.request.env else None
    return run_in_thread(lambda: _check_all(plan, models, env))


def can_run(checks: Iterable[PreflightCheck]) -> bool:
    return all(check.state != "fail" for check in checks)


async def _check_all(plan: PlannedRun, models: Models, env: str | None) -> list[PreflightCheck]:
    def is_checked(name: str) -> bool:
        return env is None or name.casefold() == env.casefold()

    addresses = {name: address for name, address in server_addresses(plan.profile).items() if is_checked(name)}
    _, model = resolve_agent(plan.profile.agent, plan.request)
    model_checks, states, bus = await asyncio.gather(
        check_models(model, models), asyncio.to_thread(probe_servers, addresses), _check_buses(plan)
    )
    setups: list[RunnerSetup] = []
    rows = environment_health(plan.profile, states, () if env is None else [env])
    environments = [_check_environment(plan, row, setups) for row in rows if is_checked(row.name)]
    spec = plan.request.with_defaults(plan.profile)
    workers = await asyncio.to_thread(check_workers, spec, plan.profile, setups)
    return [*model_checks, *_with_failures(environments), *workers, check_state_dir(plan.data_dir), *bus]


async def check_models(model: str | None, models: Models) -> list[PreflightCheck]:
    """Check the model endpoints; the checks fail only if no endpoint answers. Return no checks for ``model=None``."""
    if model is None:
        return []
    if states := await models.manager.check(model):
        return _with_failures(map(_endpoint_check, states))
    return [PreflightCheck(what="model", name=model).failure(NO_ENDPOINT)]


def _with_failures(checks: Iterable[PreflightCheck]) -> list[PreflightCheck]:
    # Warnings are failures if no check is ok.
    checks = list(checks)
    if any(check.state == "ok" for check in checks):
        return checks
    return [msgspec.structs.replace(check, state="fail") for check in checks]


def _endpoint_check(state: EndpointHealth) -> PreflightCheck:
    slow = f", slow: {state.latency_s:.1f} s" if state.status == "slow" and state.latency_s is not None else ""
    kind = "" if state.kind == "auto" else f"{state.kind}, "
    return PreflightCheck(
        what="model",
        name=state.name,
        state="ok" if is_answering(state) else "warn",
        detail=one_line(f"{kind}{state.model} at {state.url}{slow}", MAX_CHARS),
        latency_s=state.latency_s,
        cause=state.cause,
        hint=state.hint,
    )


def trial_checks(trials: Sequence[ModelTrial], currency: str) -> list[PreflightCheck]:
    """The checks fail only if no endpoint has answered both turns."""
    return _with_failures(
        PreflightCheck(
            what="trial",
            name=trial.endpoint,
            state="ok" if trial.failure is None else "warn",
            detail=one_line(trial.describe(currency), MAX_CHARS),
            cause=trial.failure or "; ".join(trial.warnings) or None,
            hint=trial.hint,
        )
        for trial in trials
    )


def _check_environment(plan: PlannedRun, row: EnvironmentHealth, setups: list[RunnerSetup]) -> PreflightCheck:
    """If the environment can be played, add what its workers need to ``setups``."""
    availability, state = row.availability, row.server
    latency_s = None if state is None else state.latency_s
    detail = _placement_text(availability)
    check = PreflightCheck(what="environment", name=row.name, detail=detail, latency_s=latency_s)
    if not availability.playable:
        return check.warning(availability.cause or availability.status, _hint(row.name, availability, row.entry))
    try:
        script = () if plan.request.agent == "scripted" else None
        request = msgspec.structs.replace(plan.request, env=row.name, script=script)
        setup = resolve_batch(plan.profile, request).setup
    except ConfigError as exc:
        return check.warning(str(exc), "choose another agent or environment")
    address = state.address if state is not None and availability.transport == "http" else None
    setups.append(msgspec.structs.replace(setup, address=address))
    if availability.cause is None:
        return check
    noted = check.warning(availability.cause, _hint(row.name, availability, row.entry))
    return msgspec.structs.replace(noted, state="ok")


def _placement_text(availability: Availability) -> str:
    if not availability.playable:
        return availability.status
    placement = "embedded" if availability.transport == "embedded" else f"over HTTP, {availability.status}"
    label = availability.data_label
    data = None if label is None else f"data {label or AS_PUBLISHED}"
    return ", ".join(filter(None, [placement, availability.note or data]))


def _hint(name: str, availability: Availability, entry: EnvironmentEntry | None) -> str:
    cause = availability.cause
    if entry is not None and server_problem(entry) is not None:
        return entry_advice(entry)
    if is_are(name):
        return ADVICE if cause == ARE_NOT_INSTALLED else "correct the name; --list-envs lists the scenarios"
    if cause == NOT_INSTALLED:
        install = f"install a package that registers {name}, or correct or remove the name in the profile"
        return ". ".join(filter(None, [install, did_you_mean(name)]))
    if cause is not None and cause.startswith("needs "):
        return f"pip install {cause.removeprefix('needs ').replace(',', '')}"
    if availability.playable and availability.transport == "http":
        return "none needed: a run waits for it, up to wait_sec of the profile"
    if availability.playable:
        return "none needed: it runs embedded; set its transport to embedded to skip the check of its server"
    address = server_address(entry)
    command = None if address is None else start_command(find_environment(name), address)
    return "start its server" + (f", e.g. with: {command}" if command else "") + "; or set its transport to auto"


def check_state_dir(data_dir: Path) -> PreflightCheck:
    """Check that the state directory, or else its nearest existing parent, is writable, but not by every user."""
    check = PreflightCheck(what="state directory", detail=str(data_dir))
    try:
        with tempfile.TemporaryFile(dir=next(each for each in (data_dir, *data_dir.parents) if each.exists())):
            pass
    except OSError as exc:
        return check.failure(f"it cannot be written ({exc.strerror}); choose another folder with --data-dir")
    if (problem := world_writable_problem(data_dir)) is None:
        return check
    return msgspec.structs.replace(check.failure(problem.removeprefix(f"{data_dir} ")), state="warn")


def check_workers(spec: BatchSpec, profile: Profile, setups: Sequence[RunnerSetup] = ()) -> list[PreflightCheck]:
    """Check the workers of a run: how many local processes would start, or whether the Ray cluster can be used."""
    workers, concurrency = spec.chosen_workers, spec.concurrency
    if workers == "ray":
        return check_ray(profile.ray, setups)
    at_a_time = "one episode" if concurrency == 1 else f"{concurrency} episodes"
    if workers == 0:
        return [PreflightCheck(what="workers", detail=f"the process of the run, {at_a_time} at a time")]
    n_workers = min(workers, concurrency)
    processes = f"{n_workers} local process{'es' if n_workers > 1 else ''}"
    start = "forked from one that is loaded" if sys.platform == "linux" else "each loaded on its own"
    text = f"{processes} for {at_a_time} at a time on {usable_cpus()} CPUs, {start}"
    return [PreflightCheck(what="workers", detail=text)]


def check_ray(settings: RaySettings, setups: Sequence[RunnerSetup]) -> list[PreflightCheck]:
    """Check whether the workers of a run can be Ray actors; a cluster that the run would start is not started."""
    check = PreflightCheck(what="workers", name="ray")
    try:
        version = load_ray(settings).__version__
        if not settings.address:
            return [msgspec.structs.replace(check, detail=f"Ray {version}, a cluster of this machine for the run")]
        with closing(RayConnection(settings)):
            nodes = inspect_nodes(TIMEOUT_S)
        connected = msgspec.structs.replace(check, detail=f"Ray {version}, {len(nodes)} nodes at {settings.address}")
        return [connected, *map(_check_node, nodes), *_check_addresses(settings, nodes, setups)]
    except ConfigError as exc:
        return [check.failure(str(exc))]


def _check_node(node: RayNode) -> PreflightCheck:
    check = PreflightCheck(what="ray node", name=node.name)
    if node.problem is None:
        return msgspec.structs.replace(check, detail="installed like this machine")
    return check.failure(f"{node.problem}; install the same versions there, or set ray.runtime_env")


def _check_addresses(
    settings: RaySettings, nodes: Sequence[RayNode], setups: Sequence[RunnerSetup]
) -> list[PreflightCheck]:
    """Check that workers on other machines reach models and servers by other addresses than ``localhost``."""
    if all(node.is_local for node in nodes):
        return []
    check = PreflightCheck(what="ray addresses", detail="of models and servers")
    for setup in setups:
        try:
            require_reachable(*rewrite_setup(setup, settings.addresses, os.environ))
        except ConfigError as exc:
            return [check.failure(str(exc))]
    return [check]


async def _check_buses(plan: PlannedRun) -> list[PreflightCheck]:
    broker = PreflightCheck(what="bus", name="own broker", detail="used by a node")
    try:
        checks = [msgspec.structs.replace(broker, detail=server_process.executable())]
    except RunnerError as exc:
        checks = [msgspec.structs.replace(broker.failure(str(exc)), state="warn")]
    if (egress := plan.egress()) is not None:
        checks.append(await check_egress(egress, DurableNames.of(plan.profile.nats).all()))
    if plan.profile.nats.monitor_url is not None:
        checks.append(await check_monitor(plan.profile.nats.monitor_url))
    return checks


async def check_egress(address: BusAddress, subjects: Iterable[str]) -> PreflightCheck:
    """Check the egress bus, which is optional: without it, the events of a run wait in the outbox.

    A missing permission to publish shows only at the first event, because only a message would reveal it.
    """
    check = PreflightCheck(what="bus", name="egress", detail=address.display_url)
    try:
        async with await NatsConnection.open(address, name="preflight", timeout_s=BUS_TIMEOUT_S) as connection:
            cause = await _refusal(connection.client, subjects)
    except RunnerError as exc:
        return check.warning(str(exc), f"correct NATS_URL or nats.url, or start that broker; {EVENTS_WAIT}")
    if cause is None:
        return check
    return check.warning(cause, f"raise that limit on the broker; {EVENTS_WAIT} or become dead letters")


async def _refusal(client: Client, subjects: Iterable[str]) -> str | None:
    """Return why a broker would refuse an event of usual size; None also where it does not let its streams be read."""
    if client.max_payload < USUAL_EVENT_BYTES:
        return f"its max_payload is {client.max_payload:,} bytes, and an event takes about {USUAL_EVENT_BYTES:,}"
    js = client.jetstream(timeout=BUS_TIMEOUT_S / 2)
    try:
        async with asyncio.timeout(BUS_TIMEOUT_S):
            streams = {await find_stream(js, subject) for subject in subjects}
            for stream in filter(None, streams):
                if (refusal := refusal_of(await stream_info(js, stream), USUAL_EVENT_BYTES)) is not None:
                    return f"{refusal}, and an event takes about {USUAL_EVENT_BYTES:,} bytes"
    except (*BUS_ERRORS, TimeoutError):
        pass
    return None


async def check_monitor(url: str) -> PreflightCheck:
    """Check the health page of a broker's monitor, whose URL may leave out ``/healthz``."""
    health_url = url.rstrip("/").removesuffix("/healthz") + "/healthz"
    check = PreflightCheck(what="bus", name=MONITOR, detail=safe_url(health_url))
    try:
        async with asyncio.timeout(BUS_TIMEOUT_S):
            reply = await fetch("GET", health_url)
        if reply.status == 200:
            return check
        cause = f"HTTP {reply.status}: {reply.body[:200].decode(errors='replace')}"
    except TimeoutError:
        cause = f"no answer within {BUS_TIMEOUT_S:g} s"
    except InferenceFault as exc:
        cause = str(exc)
    return check.warning(cause, "check that broker, or correct nats.monitor_url")


MAX_TRIAL_S: Final = 300.0
"""Maximum seconds of an endpoint's trial; a server may have to load its model first."""

_MOVE: Final[ToolSchema] = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Walk one step.",
        "parameters": {
            "type": "object",
            "properties": {"direction": {"type": "string", "enum": ["up", "down", "left", "right"]}},
            "required": ["direction"],
        },
    },
}
_OBSERVATIONS: Final = (
    "You are in a corridor. The exit is two steps to the left.",
    "The exit is one step to the left.",
)

Act: TypeAlias = Literal["call", "text", "none"]
"""How a model acted: by a tool call, by an action in its text, or not at all."""

_ACTS: Final[dict[Act, str]] = {"call": "called its tool", "text": "wrote its action as text", "none": "gave no action"}


class ModelTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What the trial of one endpoint found.

    Attributes:
        context_tokens: size of the context, from a refusal or from the server's list of models; None if it is unknown.
        tokens: sum of the answers; requests that the endpoint refused are not counted.
        cost: cost of the answers in the profile's currency; None if the model has no price.
        warnings: refusals with what they taught, and failures that have passed.
    """

    endpoint: str
    model: str
    acts: tuple[Act, ...]
    with_tools: Capabilities
    without_tools: Capabilities
    context_tokens: int | None
    tokens: Tokens
    cost: float | None
    duration_s: float
    warnings: tuple[str, ...]
    failure: str | None = None
    hint: str | None = None

    def describe(self, currency: str) -> str:
        known = msgspec.structs.replace(self.with_tools, context_tokens=self.context_tokens)
        found = known.describe(self.without_tools) or "standard requests"
        acts = ", then ".join(_ACTS[act] for act in dict.fromkeys(self.acts))
        n_answers = f"{len(self.acts)} of {len(_OBSERVATIONS)} answers"
        usage = [n_answers, *([f"{self.tokens.total:,} tokens"] if self.tokens.total else [])]
        usage += [] if self.cost is None else [format_amount(self.cost, currency)]
        parts = [found, acts] if self.acts else []
        return "; ".join([*parts, ", ".join([*usage, f"{self.duration_s:.1f} s"])])


async def try_endpoints(
    model: str, models: Models, max_duration_s: float, on_endpoint: Callable[[str], None]
) -> list[ModelTrial]:
    """Try each endpoint alone, one after the other.

    Args:
        models: the endpoints; nothing that the trial learns stays with them.
        max_duration_s: the profile's limit of an episode; a trial takes at most as long, and at most ``MAX_TRIAL_S``.
        on_endpoint: receives the name of each endpoint before its trial.
    """
    trials = []
    for manager in models.each_alone():
        on_endpoint(manager.endpoints[0].name)
        trials.append(await _try(manager, models.settings, model, min(max_duration_s, MAX_TRIAL_S)))
    return trials


async def _try(manager: InferenceManager, settings: AgentSettings, model: str, limit_s: float) -> ModelTrial:
    """Try the only endpoint of a manager; the free check comes first, since its hints fit to failures of a turn."""
    (health,) = await manager.check(model)
    clock = Clock()
    header = EpisodeHeader(
        episode_id=new_ulid(), batch_id="preflight", env="Corridor", model=model, started_at=clock.now()
    )
    started, failures = clock.monotonic(), [""]

    def on_delta(delta: str | StreamDelta) -> None:
        if isinstance(delta, StreamDelta) and delta.failure and delta.restart:
            failures.append(delta.failure.removeprefix(f"{health.name}: "))

    def time_left_s() -> float:
        return started + limit_s - clock.monotonic()

    # Tools are tried whatever format the profile has: whether they work is what the trial is to show.
    agent = ReactAgent(inference_mngr=manager, settings=msgspec.structs.replace(settings, format="auto"))
    agent.enter(EpisodeInfo(header, time_left_s, on_delta, max_rounds=len(_OBSERVATIONS)))
    acts: list[Act] = []
    usages: list[Usage] = []
    failure = None
    try:
        for observation in _OBSERVATIONS:
            chats, action = await agent.act([{"role": "user", "content": observation}], [_MOVE])
            acts.append(_act(chats[0][-1], action))
            usages += [] if agent.last_usage is None else [agent.last_usage]
    except InferenceFault as exc:
        failure = failures[-1] or one_line(str(exc), 300)
    session = manager.session(header, model)
    known = session.capabilities(with_tools=True)
    costs = [usage.cost for usage in usages]
    return ModelTrial(
        endpoint=health.name,
        model=health.model,
        acts=tuple(acts),
        with_tools=known,
        without_tools=session.capabilities(with_tools=False),
        context_tokens=known.context_tokens or health.context_tokens,
        tokens=sum((usage.tokens or Tokens() for usage in usages), Tokens()),
        cost=None if None in costs or not costs else sum(filter(None, costs)),
        duration_s=clock.monotonic() - started,
        warnings=tuple(
            dict.fromkeys(text.removeprefix(f"{health.name}: ") for usage in usages for text in usage.warnings)
        ),
        failure=failure,
        hint=None if failure is None else _trial_hint(health, failure),
    )


def _act(reply: Message, action: Action | InvalidAction) -> Act:
    if isinstance(action, InvalidAction):
        return "none"
    return "call" if reply.get("tool_calls") else "text"


def _trial_hint(health: EndpointHealth, failure: str) -> str:
    if health.hint is not None:
        return health.hint
    if WRONG_KEY.search(failure):
        return health.key_hint
    if "agent." in failure:  # a time limit, with its key
        return "look whether the server still loads its model, or raise that limit"
    return "see the server's log; capabilities of this endpoint in the profile set what its requests have"
