"""``--list-envs``: the environments of the profile and of what is installed, and whether each can be played."""

from __future__ import annotations

import msgspec

from runner import plugins
from runner.cli.session import Session
from runner.cli.terminal import delivered, print_json, print_table
from runner.config import EnvironmentEntry
from runner.envs.availability import Availability, probe_address, availability_of, embedded_availability
from runner.envs.http.probe import ServerState, probe_servers
from runner.envs.placement import AS_PUBLISHED, SERVER_NAMES


class EnvironmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One environment as ``--list-envs`` shows it; ``playable`` is false where ``health`` is a reason why not.

    Attributes:
        server: how the server is that the profile names: up, slow, wrong or down; null where none is asked.
        kind: ``console`` for a server of ours, ``agentgym`` for one of AgentGym's, else ``unknown``.
        transport: how a batch would be played that began now.
        data_label: which data that would be, empty where it is as published, null where only playing it tells.
    """

    name: str
    tier: str
    port: int | None = None
    server: str | None = None
    latency_s: float | None = None
    kind: str | None = None
    mode: str | None = None
    open: int | None = None
    transport: str | None = None
    data_label: str | None = None
    ram: str | None = None
    deps: list[str] = []
    playable: bool
    health: str


def list_environments(session: Session) -> int:
    """Print every known environment; returns the exit code."""
    profile = session.profile
    states = probe_servers({entry.name: place for _, entry in profile.listed() if (place := probe_address(entry)) is not None})
    rows = [_listed(tier, entry, states.get(entry.name)) for tier, entry in profile.listed()]
    rows += [
        EnvironmentRow(name=e.name, tier="skip", playable=False, health=e.reason) for e in profile.environments.skip
    ]
    known = {row.name.lower() for row in rows}
    rows += [_installed(name) for name in plugins.registered_names(plugins.ENVS) if name.lower() not in known]
    if session.options.json:
        return delivered(0, lambda: print_json({"profile": profile.id, "environments": rows}))
    return delivered(0, lambda: _print(profile.id, rows))


def _listed(tier: str, entry: EnvironmentEntry, state: ServerState | None) -> EnvironmentRow:
    outlook = availability_of(entry, state)
    said = state.greeting if state is not None and state.usable else None
    return EnvironmentRow(
        name=entry.name,
        tier=tier,
        port=entry.port,
        server=None if state is None else state.status,
        latency_s=None if state is None else state.latency_s,
        kind=None if said is None else said.kind,
        mode=None if said is None else said.mode,
        open=None if state is None else state.open,
        transport=outlook.transport if outlook.playable else None,
        data_label=outlook.data_label,
        ram=entry.ram,
        deps=list(entry.deps),
        playable=outlook.playable,
        health=_health(outlook, state),
    )


def _installed(name: str) -> EnvironmentRow:
    outlook = embedded_availability(name)
    return EnvironmentRow(
        name=name,
        tier="installed",
        transport=outlook.transport,
        data_label=outlook.data_label,
        playable=outlook.playable,
        health=_health(outlook, None),
    )


def _health(outlook: Availability, state: ServerState | None) -> str:
    if not outlook.playable:
        return outlook.cause or outlook.status
    if outlook.transport == "embedded" or state is None or state.greeting is None:
        embedded = "installed (embedded)"  # nothing is imported for a list
        return f"{embedded}; {outlook.cause}" if outlook.cause else embedded
    parts = [SERVER_NAMES[state.greeting.kind], f"{state.greeting.mode or 'unknown'} rules"]
    return ", ".join(parts if state.open is None else [*parts, f"{state.open} open"])


def _print(profile: str, rows: list[EnvironmentRow]) -> None:
    columns = ("name", "tier", "port", "server", "played", "data", "RAM", "dependencies", "health")
    print_table(f"Environments of profile {profile}", columns, map(_cells, rows))


def _cells(row: EnvironmentRow) -> tuple[str, ...]:
    port = "-" if row.port is None else str(row.port)
    data = "-" if row.data_label is None else row.data_label or AS_PUBLISHED
    places = row.name, row.tier, port, _server(row), row.transport or "-", data
    return *places, row.ram or "-", ", ".join(row.deps) or "-", row.health


def _server(row: EnvironmentRow) -> str:
    if row.server in ("up", "slow") and row.latency_s is not None:
        return f"{row.server}, {row.latency_s * 1000:.0f} ms"
    return row.server or "-"
