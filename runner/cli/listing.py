"""``--list-envs``: the environments of the profile and of what is installed, and whether each can be played."""

from __future__ import annotations

import socket

import msgspec

from runner import registry
from runner.cli.session import Session
from runner.cli.tables import print_table
from runner.cli.terminal import delivered, print_json
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
    """Print every known environment; returns the exit code."""
    profile = session.profile
    rows = [_listed(tier, entry) for tier, entry in profile.listed()]
    rows += [
        EnvironmentRow(name=e.name, tier="skip", playable=False, health=e.reason) for e in profile.environments.skip
    ]
    known = {row.name.lower() for row in rows}
    rows += [_installed(name) for name in registry.names(registry.ENVS) if name.lower() not in known]
    if session.options.json:
        return delivered(0, lambda: print_json({"profile": profile.id, "environments": rows}))
    return delivered(0, lambda: _print(profile.id, rows))


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
    return True, "installed (embedded)"  # nothing is imported for a list


def _server(port: int) -> str:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PROBE_S).close()
    except OSError:
        return "closed"
    return "listening"


def _print(profile: str, rows: list[EnvironmentRow]) -> None:
    columns = ("name", "tier", "port", "server", "RAM", "dependencies", "health")
    print_table(f"Environments of profile {profile}", columns, map(_cells, rows))


def _cells(row: EnvironmentRow) -> tuple[str, ...]:
    port = "-" if row.port is None else str(row.port)
    return row.name, row.tier, port, row.server or "-", row.ram or "-", ", ".join(row.deps) or "-", row.health
