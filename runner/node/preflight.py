"""Whether a run would work, and what to do where it would not: models, environments, buses and the state directory."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from runner.batch.spec import BatchSpec, resolve_environment
from runner.bus.address import BusAddress
from runner.config import EnvironmentEntry, Profile
from runner.envs.availability import NOT_INSTALLED, Availability, probe_address, availability_of, embedded_availability
from runner.envs.http.probe import ServerState, probe_servers
from runner.envs.placement import AS_PUBLISHED, server_address, environment_entry, start_command
from runner.errors import ConfigError, InferenceFault, RunnerError
from runner.inference.models import NO_ENDPOINT, Models, is_answering, run_in_thread
from runner.util.text import mask, one_line

if TYPE_CHECKING:
    from runner.inference import EndpointHealth

BUS_TIMEOUT_S = 2.0
"""Seconds that a bus has to answer."""


class PreflightCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a run needs or uses.

    Attributes:
        state: ``warn`` is not well but can be done without, ``fail`` is why the run would not work.
        detail: what it is, where, and how it would be used.
        cause: what is not well, and ``hint`` what to do about it; None where all is well.
    """

    what: str
    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    latency_s: float | None = None
    cause: str | None = None
    hint: str | None = None


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run that would be begun.

    Attributes:
        model: None for an agent that asks none.
        env: None: any of the profile's.
        egress: says where events go beside the own broker.
    """

    profile: Profile
    data_dir: Path
    agent: str
    model: str | None
    env: str | None
    egress: Callable[[], BusAddress | None]


def preflight(plan: PlannedRun, models: Models) -> list[PreflightCheck]:
    """Look at everything at the same time, which takes about 3 seconds at most.

    Raises:
        ConfigError: for an environment that is not known or is skipped.
    """
    entries = _entries(plan)
    return run_in_thread(lambda: _check_all(plan, models, entries))


def can_run(rows: Iterable[PreflightCheck]) -> bool:
    """Whether the run would."""
    return all(row.state != "fail" for row in rows)


async def _check_all(
    plan: PlannedRun, models: Models, entries: Mapping[str, EnvironmentEntry | None]
) -> list[PreflightCheck]:
    addresses = {
        name: address
        for name, entry in entries.items()
        if entry is not None and (address := probe_address(entry)) is not None
    }
    model_checks, states, bus = await asyncio.gather(
        check_models(plan.model, models), asyncio.to_thread(probe_servers, addresses), _check_buses(plan)
    )
    environments = [_check_environment(plan, name, entry, states.get(name)) for name, entry in entries.items()]
    return [*model_checks, *_with_failures(environments), check_state_dir(plan.data_dir), *bus]


async def check_models(model: str | None, models: Models) -> list[PreflightCheck]:
    """The endpoints that would be asked, of which one has to answer; none for an agent that asks no model."""
    if model is None:
        return []
    rows = [_endpoint_check(state) for state in await models.manager.check(model)]
    no_endpoint = PreflightCheck(
        what="model", name=model, state="fail", detail="", cause=NO_ENDPOINT.partition(";")[0], hint=_NO_ENDPOINT_HINT
    )
    return _with_failures(rows) if rows else [no_endpoint]


_NO_ENDPOINT_HINT = NO_ENDPOINT.partition("; ")[2]


def _with_failures(rows: Sequence[PreflightCheck]) -> list[PreflightCheck]:
    """Where nothing is well, that is why the run would fail; else the others can be done without."""
    if any(row.state == "ok" for row in rows):
        return list(rows)
    return [msgspec.structs.replace(row, state="fail") for row in rows]


def _endpoint_check(state: EndpointHealth) -> PreflightCheck:
    slow = f", slow: {state.latency_s:.1f} s" if state.status == "slow" and state.latency_s is not None else ""
    kind = "kind not known yet" if state.kind == "auto" else state.kind
    return PreflightCheck(
        what="model",
        name=state.name,
        state="ok" if is_answering(state) else "warn",
        detail=one_line(f"{kind}, asked for {state.model} at {state.url}{slow}", 500),
        latency_s=state.latency_s,
        cause=state.cause,
        hint=state.hint,
    )


def _entries(plan: PlannedRun) -> dict[str, EnvironmentEntry | None]:
    if plan.env is None:
        return {entry.name: entry for _, entry in plan.profile.listed()}
    name = resolve_environment(plan.profile, plan.env)
    entry = environment_entry(plan.profile, name)
    return {name if entry is None else entry.name: entry}


def _check_environment(
    plan: PlannedRun, name: str, entry: EnvironmentEntry | None, state: ServerState | None
) -> PreflightCheck:
    outlook = embedded_availability(name) if entry is None else availability_of(entry, state)
    cause, hint, playable = outlook.cause, _hint(name, outlook, entry), outlook.playable
    if playable:
        try:
            script = () if plan.agent == "scripted" else None
            env = resolve_environment(plan.profile, name)
            BatchSpec(env=env, agent=plan.agent, model=plan.model, script=script).validated()
        except ConfigError as exc:
            cause, hint, playable = one_line(mask(str(exc)), 500), "choose another agent or environment", False
    return PreflightCheck(
        what="environment",
        name=name,
        state="ok" if playable else "warn",
        detail=_placement_text(outlook),
        latency_s=None if state is None else state.latency_s,
        cause=cause,
        hint=hint if cause is not None else None,
    )


def _placement_text(outlook: Availability) -> str:
    if not outlook.playable:
        return outlook.status
    address = "embedded" if outlook.transport == "embedded" else f"over HTTP, {outlook.status}"
    return address if outlook.data_label is None else f"{address}, data {outlook.data_label or AS_PUBLISHED}"


def _hint(name: str, outlook: Availability, entry: EnvironmentEntry | None) -> str:
    if outlook.cause == NOT_INSTALLED:
        return f"install a package that registers {name}, or leave it out of the profile"
    if outlook.cause is not None and outlook.cause.startswith("needs "):
        return f"pip install {outlook.cause.removeprefix('needs ').replace(',', '')}"
    if outlook.playable:
        return "nothing, as it is played embedded; or set its transport to embedded"
    address = server_address(entry)
    command = None if address is None else start_command(name, address)
    return "start its server" + (f", e.g. with: {command}" if command else "") + "; or set its transport to auto"


def check_state_dir(data_dir: Path) -> PreflightCheck:
    """Whether the state directory, or the nearest folder above it that exists, takes new files."""
    folder = data_dir
    while not folder.exists():
        folder = folder.parent
    row = PreflightCheck(what="state directory", name="", state="ok", detail=str(data_dir))
    try:
        with tempfile.TemporaryFile(dir=folder):
            return row
    except OSError as exc:
        cause = f"{data_dir} cannot be written ({exc.strerror})"
        return msgspec.structs.replace(row, state="fail", cause=cause, hint="name another folder with --data-dir")


async def _check_buses(plan: PlannedRun) -> list[PreflightCheck]:
    rows = [_check_broker()]
    if (egress := plan.egress()) is not None:
        rows.append(await _check_egress(egress))
    if plan.profile.nats.monitor_url is not None:
        rows.append(await _check_monitor(plan.profile.nats.monitor_url))
    return rows


def _check_broker() -> PreflightCheck:
    from runner.bus.broker.server_process import executable

    try:
        return PreflightCheck(what="bus", name="own broker", state="ok", detail=executable())
    except RunnerError as exc:
        cause, _, hint = str(exc).partition("; ")
        return PreflightCheck(what="bus", name="own broker", state="warn", detail="of a node", cause=cause, hint=hint)


async def _check_egress(address: BusAddress) -> PreflightCheck:
    """A bus that is not there costs no run: the events wait."""
    from runner.bus.connection import NatsConnection

    row = PreflightCheck(what="bus", name="egress", state="ok", detail=address.display_url)
    try:
        await (await NatsConnection.open(address, name="preflight", timeout_s=BUS_TIMEOUT_S)).close()
    except RunnerError as exc:
        hint = "correct NATS_URL or nats.url, or start that broker; until then the events wait in the outbox"
        return msgspec.structs.replace(row, state="warn", cause=one_line(mask(str(exc)), 300), hint=hint)
    return row


async def _check_monitor(url: str) -> PreflightCheck:
    from runner.inference.endpoints import safe_url
    from runner.inference.http import fetch, loop_client

    addresses = url.rstrip("/").removesuffix("/healthz") + "/healthz"
    row = PreflightCheck(what="bus", name="egress's health", state="ok", detail=safe_url(addresses))
    try:
        async with asyncio.timeout(BUS_TIMEOUT_S):
            reply = await fetch(await loop_client(), "GET", addresses)
        cause = None if reply.status == 200 else f"HTTP {reply.status}: {reply.body[:200].decode(errors='replace')}"
    except TimeoutError:
        cause = f"no answer within {BUS_TIMEOUT_S:g} s"
    except InferenceFault as exc:
        cause = str(exc)
    if cause is None:
        return row
    hint = "look at that broker, or correct nats.monitor_url"
    return msgspec.structs.replace(row, state="warn", cause=one_line(mask(cause), 300), hint=hint)
