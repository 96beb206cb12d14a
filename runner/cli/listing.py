"""``--list-envs``: the environments of the profile and of what is installed, and whether each can be played."""

from __future__ import annotations

import socket

import msgspec

from runner import registry
from runner.cli.session import Session
from runner.cli.terminal import console, print_json, safe
from runner.config import EnvironmentEntry

PROBE_S = 0.2
"""Seconds to wait for a local server to accept a connection."""


class EnvironmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One environment as ``--list-envs`` shows it; ``playable`` is false where ``health`` is a reason why not."""

    name: str
    tier: str
    port: int | None = None
    server: str | None = None
    ram: str | None = None
    deps: list[str] = []
    playable: bool
    health: str


def list_environments(session: Session) -> int:
    """Print every known environment; returns 0."""
    profile = session.profile
    rows = [_listed(tier, entry) for tier, entry in profile.listed()]
    rows += [
        EnvironmentRow(name=e.name, tier="skip", playable=False, health=e.reason) for e in profile.environments.skip
    ]
    known = {row.name.lower() for row in rows}
    rows += [_installed(name) for name in registry.names(registry.ENVS) if name.lower() not in known]
    if session.options.json:
        print_json({"profile": profile.id, "environments": rows})
    else:
        _print_table(profile.id, rows)
    return 0


def _listed(tier: str, entry: EnvironmentEntry) -> EnvironmentRow:
    playable, health = _embedded(entry.name, entry.deps)
    return EnvironmentRow(
        name=entry.name,
        tier=tier,
        port=entry.port,
        server=None if entry.port is None else _server(entry.port),
        ram=entry.ram,
        deps=list(entry.deps),
        playable=playable,
        health=health,
    )


def _installed(name: str) -> EnvironmentRow:
    playable, health = _embedded(name, ())
    return EnvironmentRow(name=name, tier="installed", playable=playable, health=health)


def _embedded(name: str, deps: tuple[str, ...] | list[str]) -> tuple[bool, str]:
    if name.lower() not in map(str.lower, registry.names(registry.ENVS)):
        return False, "not installed"
    if missing := registry.missing_packages(deps):
        return False, f"needs {', '.join(missing)}"
    return True, "ready (embedded)"


def _server(port: int) -> str:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PROBE_S).close()
    except OSError:
        return "closed"
    return "listening"


def _print_table(profile: str, rows: list[EnvironmentRow]) -> None:
    from rich.table import Table

    table = Table(title=f"Environments of profile {safe(profile)}")
    for column in ("name", "tier", "port", "server", "RAM", "dependencies", "health"):
        table.add_column(column, overflow="fold", justify="right" if column == "port" else "left")
    for row in rows:
        port = "-" if row.port is None else str(row.port)
        cells = (row.name, row.tier, port, row.server or "-", row.ram or "-", ", ".join(row.deps) or "-", row.health)
        table.add_row(*map(safe, cells))
    console().print(table)
