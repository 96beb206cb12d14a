"""``--list-envs``: print the environments of the profile and of installed packages, with their availability."""

from __future__ import annotations

from functools import partial

import msgspec

from runner import plugins
from runner.cli.run_session import RunSession
from runner.cli.terminal import print_table, print_text, write_result
from runner.envs.are.catalog import OFFLINE, ScenarioCatalog, is_offline, read_catalog
from runner.envs.availability import (
    NOT_INSTALLED,
    Availability,
    EnvironmentHealth,
    environment_health,
    server_addresses,
)
from runner.envs.base import AS_PUBLISHED
from runner.envs.http.server import ServerState, probe_servers
from runner.envs.names import did_you_mean, server_keys, server_only_names
from runner.envs.placement import SERVER_NAMES, environment_entry, server_address


class EnvironmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One environment in the output of ``--list-envs``.

    Attributes:
        tier: tier in the profile; ``skip`` if the profile skips it, ``installed`` if the profile does not list it.
        server: state of its server: up, slow, wrong or down; None if no server was probed.
        kind: ``console`` for a server of this project, ``agentgym`` for AgentGym's, else ``unknown``.
        data_label: which data it uses; empty: the published data; None: unknown before a run.
        health: state of the environment, with the reason if it is not playable.
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
    deps: tuple[str, ...] = ()
    external: str | None = None
    playable: bool
    health: str


def list_environments(session: RunSession) -> int:
    """Return the exit code.

    Environments that are played only on a server, and have none in the profile, are listed apart, with the keys that
    lead to a server. So are ARE's scenarios, or the command that installs ARE.
    """
    profile = session.profile
    states = probe_servers(server_addresses(profile))
    checked = environment_health(profile, states, plugins.registered_names(plugins.ENVS))
    rows = [_row(health) for health in checked if health.entry is not None]
    rows += [
        EnvironmentRow(name=e.name, tier="skip", playable=False, health=e.reason) for e in profile.environments.skip
    ]
    rows += [_row(health) for health in checked if health.entry is None]
    others = [name for name in server_only_names() if server_address(environment_entry(profile, name)) is None]
    catalog = read_catalog(profile.are)
    document = {"profile": profile.id, "environments": rows, "server_only": others, "are": catalog}
    show = partial(_print, profile.id, rows, others, catalog, verbose=session.options.verbose)
    return write_result(0, show, document if session.options.json else None)


def _row(health: EnvironmentHealth) -> EnvironmentRow:
    entry, state, availability = health.entry, health.server, health.availability
    identity = state.identity if state is not None and state.usable else None
    parts = [part for part in (entry, state, identity) if part is not None]
    names = {name: part for part in parts for name in part.__struct_fields__}
    fields = {name: getattr(names[name], name) for name in EnvironmentRow.__struct_fields__ if name in names}
    fields |= {
        "name": health.name,
        "tier": health.tier,
        "server": None if state is None else state.status,
        "transport": availability.transport if availability.playable or entry is None else None,
        "data_label": availability.data_label,
        "playable": availability.playable,
        "health": _health(health.name, availability, state),
    }
    return EnvironmentRow(**fields)


def _health(name: str, availability: Availability, state: ServerState | None) -> str:
    if not availability.playable or (state is not None and state.status == "busy"):
        health = availability.cause or availability.status
        suggestion = did_you_mean(name) if health == NOT_INSTALLED else ""
        return f"{health}. {suggestion}" if suggestion else health
    if availability.transport == "embedded" or state is None or state.identity is None:
        embedded = "installed (embedded)"  # a list imports no environment
        return f"{embedded}; {availability.cause}" if availability.cause else embedded
    parts = [SERVER_NAMES[state.identity.kind], f"{state.identity.mode or 'unknown'} rules"]
    return ", ".join(parts if state.open is None else [*parts, f"{state.open} open"])


def _print(
    profile: str, rows: list[EnvironmentRow], server_only: list[str], catalog: ScenarioCatalog, *, verbose: bool
) -> None:
    columns = ["name", "tier", "port", "server", "transport", "data", "health"]
    print_table(f"Environments of profile {profile}", columns, map(_cells, rows))
    if verbose:
        columns = ["name", "category", "RAM of its server", "external dependencies", "port"]
        print_table("What their servers need", columns, [_needs(row) for row in rows if row.tier != "skip"])
    if server_only:
        print_text(f"Played only on a server: {', '.join(server_only)}. {server_keys('NAME')}.")
    print_text(_are_text(catalog))


def _are_text(catalog: ScenarioCatalog) -> str:
    if not catalog.installed:
        return f"Scenarios of ARE (are:SCENARIO): none. {catalog.problem}."
    n_offline = sum(map(is_offline, catalog.scenarios))
    count = f"{len(catalog.scenarios)} scenarios of ARE {catalog.version or ''}".rstrip()
    return (
        f"{count}: {', '.join(catalog.scenarios)}. "
        f"{OFFLINE} plays the {n_offline} that need neither a model nor a download."
    )


def _cells(row: EnvironmentRow) -> tuple[str, ...]:
    data = "-" if row.data_label is None else row.data_label or AS_PUBLISHED
    server = row.server or "-"
    if row.server in ("up", "slow") and row.latency_s is not None:
        server = f"{row.server}, {row.latency_s * 1000:.0f} ms"
    return row.name, row.tier, str(row.port or "-"), server, row.transport or "-", data, row.health


def _needs(row: EnvironmentRow) -> tuple[str, ...]:
    dependencies = ", ".join(filter(None, [row.external, *row.deps])) or "None"
    return row.name, row.tier, row.ram or "-", dependencies, str(row.port or "-")
