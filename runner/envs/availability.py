"""Availability of environments: whether and where each can be played, determined without importing the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from runner import plugins
from runner.config import ARESettings, EnvironmentEntry, Profile
from runner.envs.are.catalog import OFFLINE, is_are, read_catalog, scenario_problem
from runner.envs.base import data_label_of, missing_data
from runner.envs.http.server import NOT_LISTENING, ServerAddress, ServerState
from runner.envs.names import server_problem
from runner.envs.placement import Transport, has_http_dialect, http_placement, rejection_reason, server_address

Status: TypeAlias = Literal["up", "slow", "wrong", "down", "embedded", "unknown"]

NOT_INSTALLED = "not installed"
DEFAULT_ARE: Final = ARESettings()


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether and where a batch can be played now, by the strict rules unless the environment's server has others.

    Attributes:
        status: ``wrong`` means that another program answers at the server's address; the environment may still be
            playable embedded.
        data_label: label of the task data; None if it is unknown without importing the environment.
        note: number and names of the scenarios of a family of environments; None for other environments.
    """

    status: Status
    transport: Transport = "embedded"
    data_label: str | None = None
    cause: str | None = None
    playable: bool = True
    note: str | None = None


class EnvironmentHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The row of an environment in each table; ``server`` is None without a server, and before it is probed."""

    name: str
    tier: str
    availability: Availability
    entry: EnvironmentEntry | None = None
    server: ServerState | None = None


def environment_health(
    profile: Profile, servers: Mapping[str, ServerState], installed: Iterable[str] = ()
) -> list[EnvironmentHealth]:
    """``servers`` has the state of each environment's server, by the environment's name; see ``server_addresses``."""
    listed = [
        EnvironmentHealth(
            name=entry.name,
            tier=tier,
            availability=availability_of(entry, servers.get(entry.name), profile.are),
            entry=entry,
            server=servers.get(entry.name),
        )
        for tier, entry in profile.tiered_entries()
    ]
    others = [
        EnvironmentHealth(name=name, tier="installed", availability=embedded_availability(name, profile.are))
        for name in installed
        if profile.find_entry(name) is None
    ]
    return listed + others


def server_addresses(profile: Profile) -> dict[str, ServerAddress]:
    """Servers that the profile names and does not exclude."""
    used = [entry for _, entry in profile.tiered_entries() if entry.transport != "embedded"]
    return {entry.name: address for entry in used if (address := server_address(entry)) is not None}


def availability_of(entry: EnvironmentEntry, state: ServerState | None, are: ARESettings = DEFAULT_ARE) -> Availability:
    """``state`` is None if there is no server or it was not probed yet."""
    missing = None
    if not plugins.is_registered(plugins.ENVS, entry.name):
        missing = NOT_INSTALLED
    elif packages := plugins.missing_packages(entry.deps):
        missing = f"needs {', '.join(packages)}"
    can_embed = missing is None and entry.transport != "http"
    if state is None:
        if can_embed:
            return embedded_availability(entry.name, are)
        if server_address(entry) is None or entry.transport == "embedded":
            cause = server_problem(entry) or missing or "transport is http, but no port is set"
            return Availability(status="down", cause=cause, playable=False)
        return Availability(status="unknown", transport="http", playable=False)
    if missing == NOT_INSTALLED and not has_http_dialect(entry.name):
        return Availability(status="down", cause=missing, playable=False)
    if state.status == "busy":
        return Availability(status="slow", transport="http", cause=state.cause)
    reason = rejection_reason(state, "strict", must_identify=can_embed)
    if reason is None:
        label = http_placement(state).data_label
        return Availability(status="slow" if state.status == "slow" else "up", transport="http", data_label=label)
    if can_embed:
        return _without_server(entry.name, state, reason, are)
    cause = missing if missing is not None and reason == NOT_LISTENING else reason
    return Availability(
        status="wrong" if state.status == "wrong" else "down", transport="http", cause=cause, playable=False
    )


def embedded_availability(env: str, are: ARESettings = DEFAULT_ARE) -> Availability:
    if is_are(env):
        catalog = read_catalog(are)
        label, problem = data_label_of(env, os.environ), scenario_problem(env, catalog)
        if problem is None:
            one = f"{catalog.title}, 1 of {len(catalog.scenarios)} scenarios"
            note = catalog.summary if env.lower() == OFFLINE else one
            return Availability(status="embedded", data_label=label, note=note)
        cause = problem if catalog.installed else catalog.summary
        return Availability(status="down", data_label=label, cause=cause, playable=False)
    if not plugins.is_built_in(plugins.ENVS, env):
        return Availability(status="embedded")
    label, missing = data_label_of(env, os.environ), missing_data(env, os.environ)
    if missing is not None:
        return Availability(status="down", data_label=label, cause=missing, playable=False)
    return Availability(status="embedded", data_label=label)


def _without_server(env: str, state: ServerState, reason: str, are: ARESettings) -> Availability:
    availability = embedded_availability(env, are)
    if reason == NOT_LISTENING or not availability.playable:
        return availability
    status: Status = "embedded" if state.status == "down" else "wrong"
    return msgspec.structs.replace(availability, status=status, cause=f"{state.address.base}: {reason}")
