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
from runner.envs.availability import NOT_INSTALLED, Outlook, asked_at, foresee, played_here
from runner.envs.http.probe import ServerState, probe
from runner.envs.placement import AS_PUBLISHED, address_of, entry_of, how_to_start
from runner.errors import ConfigError, InferenceFault, RunnerError
from runner.inference.models import NOBODY, Models, answers, waited_for
from runner.util.text import mask, one_line

if TYPE_CHECKING:
    from runner.inference import EndpointHealth

BUS_S = 2.0
"""Seconds that a bus has to answer."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
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


class Plan(msgspec.Struct, frozen=True, kw_only=True):
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


def preflight(plan: Plan, models: Models) -> list[Row]:
    """Look at everything at the same time, which takes about 3 seconds at most.

    Raises:
        ConfigError: for an environment that is not known or is skipped.
    """
    entries = _entries(plan)
    return waited_for(lambda: _look(plan, models, entries))


def works(rows: Iterable[Row]) -> bool:
    """Whether the run would."""
    return all(row.state != "fail" for row in rows)


async def _look(plan: Plan, models: Models, entries: Mapping[str, EnvironmentEntry | None]) -> list[Row]:
    asked = {
        name: place for name, entry in entries.items() if entry is not None and (place := asked_at(entry)) is not None
    }
    answered, states, bus = await asyncio.gather(
        model_rows(plan.model, models), asyncio.to_thread(probe, asked), _bus_rows(plan)
    )
    environments = [_environment_row(plan, name, entry, states.get(name)) for name, entry in entries.items()]
    return [*answered, *_with_failures(environments), state_row(plan.data_dir), *bus]


async def model_rows(model: str | None, models: Models) -> list[Row]:
    """The endpoints that would be asked, of which one has to answer; none for an agent that asks no model."""
    if model is None:
        return []
    rows = [_endpoint_row(state) for state in await models.manager.check(model)]
    nobody = Row(what="model", name=model, state="fail", detail="", cause=NOBODY.partition(";")[0], hint=_NOBODY_HINT)
    return _with_failures(rows) if rows else [nobody]


_NOBODY_HINT = NOBODY.partition("; ")[2]


def _with_failures(rows: Sequence[Row]) -> list[Row]:
    """Where nothing is well, that is why the run would fail; else the others can be done without."""
    if any(row.state == "ok" for row in rows):
        return list(rows)
    return [msgspec.structs.replace(row, state="fail") for row in rows]


def _endpoint_row(state: EndpointHealth) -> Row:
    slow = f", slow: {state.latency_s:.1f} s" if state.status == "slow" and state.latency_s is not None else ""
    kind = "kind not known yet" if state.kind == "auto" else state.kind
    return Row(
        what="model",
        name=state.name,
        state="ok" if answers(state) else "warn",
        detail=one_line(f"{kind}, asked for {state.model} at {state.url}{slow}", 500),
        latency_s=state.latency_s,
        cause=state.cause,
        hint=state.hint,
    )


def _entries(plan: Plan) -> dict[str, EnvironmentEntry | None]:
    if plan.env is None:
        return {entry.name: entry for _, entry in plan.profile.listed()}
    name = resolve_environment(plan.profile, plan.env)
    entry = entry_of(plan.profile, name)
    return {name if entry is None else entry.name: entry}


def _environment_row(plan: Plan, name: str, entry: EnvironmentEntry | None, state: ServerState | None) -> Row:
    outlook = played_here(name) if entry is None else foresee(entry, state)
    cause, hint, playable = outlook.cause, _advice(name, outlook, entry), outlook.playable
    if playable:
        try:
            script = () if plan.agent == "scripted" else None
            env = resolve_environment(plan.profile, name)
            BatchSpec(env=env, agent=plan.agent, model=plan.model, script=script).checked()
        except ConfigError as exc:
            cause, hint, playable = one_line(mask(str(exc)), 500), "choose another agent or environment", False
    return Row(
        what="environment",
        name=name,
        state="ok" if playable else "warn",
        detail=_played(outlook),
        latency_s=None if state is None else state.latency_s,
        cause=cause,
        hint=hint if cause is not None else None,
    )


def _played(outlook: Outlook) -> str:
    if not outlook.playable:
        return outlook.status
    place = "embedded" if outlook.transport == "embedded" else f"over HTTP, {outlook.status}"
    return place if outlook.data_label is None else f"{place}, data {outlook.data_label or AS_PUBLISHED}"


def _advice(name: str, outlook: Outlook, entry: EnvironmentEntry | None) -> str:
    if outlook.cause == NOT_INSTALLED:
        return f"install a package that registers {name}, or leave it out of the profile"
    if outlook.cause is not None and outlook.cause.startswith("needs "):
        return f"pip install {outlook.cause.removeprefix('needs ').replace(',', '')}"
    if outlook.playable:
        return "nothing, as it is played embedded; or set its transport to embedded"
    address = address_of(entry)
    command = None if address is None else how_to_start(name, address)
    return "start its server" + (f", e.g. with: {command}" if command else "") + "; or set its transport to auto"


def state_row(data_dir: Path) -> Row:
    """Whether the state directory, or the nearest folder above it that exists, takes new files."""
    folder = data_dir
    while not folder.exists():
        folder = folder.parent
    row = Row(what="state directory", name="", state="ok", detail=str(data_dir))
    try:
        with tempfile.TemporaryFile(dir=folder):
            return row
    except OSError as exc:
        cause = f"{data_dir} cannot be written ({exc.strerror})"
        return msgspec.structs.replace(row, state="fail", cause=cause, hint="name another folder with --data-dir")


async def _bus_rows(plan: Plan) -> list[Row]:
    rows = [_broker_row()]
    if (egress := plan.egress()) is not None:
        rows.append(await _egress_row(egress))
    if plan.profile.nats.monitor_url is not None:
        rows.append(await _monitor_row(plan.profile.nats.monitor_url))
    return rows


def _broker_row() -> Row:
    from runner.bus.broker.server_process import executable

    try:
        return Row(what="bus", name="own broker", state="ok", detail=executable())
    except RunnerError as exc:
        cause, _, hint = str(exc).partition("; ")
        return Row(what="bus", name="own broker", state="warn", detail="of a node", cause=cause, hint=hint)


async def _egress_row(address: BusAddress) -> Row:
    """A bus that is not there costs no run: the events wait."""
    from runner.bus.connection import Connection

    row = Row(what="bus", name="egress", state="ok", detail=address.shown)
    try:
        await (await Connection.open(address, name="preflight", timeout_s=BUS_S)).close()
    except RunnerError as exc:
        hint = "correct NATS_URL or nats.url, or start that broker; until then the events wait in the outbox"
        return msgspec.structs.replace(row, state="warn", cause=one_line(mask(str(exc)), 300), hint=hint)
    return row


async def _monitor_row(url: str) -> Row:
    from runner.inference.endpoints import shown_url
    from runner.inference.http import client_of_loop, fetch

    asked = url.rstrip("/").removesuffix("/healthz") + "/healthz"
    row = Row(what="bus", name="egress's health", state="ok", detail=shown_url(asked))
    try:
        async with asyncio.timeout(BUS_S):
            reply = await fetch(await client_of_loop(), "GET", asked)
        cause = None if reply.status == 200 else f"HTTP {reply.status}: {reply.body[:200].decode(errors='replace')}"
    except TimeoutError:
        cause = f"no answer within {BUS_S:g} s"
    except InferenceFault as exc:
        cause = str(exc)
    if cause is None:
        return row
    hint = "look at that broker, or correct nats.monitor_url"
    return msgspec.structs.replace(row, state="warn", cause=one_line(mask(cause), 300), hint=hint)
