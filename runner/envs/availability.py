"""Whether an environment could be played now and where, told without importing it."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

import msgspec

from runner import plugins
from runner.config import EnvironmentEntry
from runner.envs.data_labels import data_label_of, missing_data
from runner.envs.http.address import ServerAddress
from runner.envs.http.probe import NOT_LISTENING, ServerState
from runner.envs.placement import Transport, server_address, has_http_dialect, http_placement, rejection_reason

Status: TypeAlias = Literal["up", "slow", "wrong", "down", "embedded", "unknown"]

NOT_INSTALLED = "not installed"


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a batch that began now, by the strict rules unless its server has others.

    Attributes:
        status: ``wrong`` is about what listens in the server's place, which may not be needed.
        data_label: None where only the environment itself could tell.
        cause: what is not well.
    """

    status: Status
    transport: Transport = "embedded"
    data_label: str | None = None
    cause: str | None = None
    playable: bool = True


def probe_address(entry: EnvironmentEntry) -> ServerAddress | None:
    """Where to look for an environment's server, None where it has none that would be played on."""
    return None if entry.transport == "embedded" else server_address(entry)


def availability_of(entry: EnvironmentEntry, state: ServerState | None) -> Availability:
    """What becomes of an environment of the profile.

    Args:
        entry: what the profile says of it.
        state: how its server is; None: it has none, or that was not looked at yet.
    """
    lacking = missing_requirement(entry.name, entry.deps)
    here = lacking is None and entry.transport != "http"
    if state is None:
        if here:
            return embedded_availability(entry.name)
        if server_address(entry) is None or entry.transport == "embedded":
            return Availability(status="down", cause=lacking or "it has transport http, but no port", playable=False)
        return Availability(status="unknown", transport="http", playable=False)
    if lacking == NOT_INSTALLED and not has_http_dialect(entry.name):
        return Availability(status="down", cause=lacking, playable=False)
    reason = rejection_reason(state, "strict", sure=here)
    if reason is None:
        label = http_placement(state).data_label
        return Availability(status="slow" if state.status == "slow" else "up", transport="http", data_label=label)
    if here:
        return _not_there(entry.name, state, reason)
    cause = lacking if lacking is not None and reason == NOT_LISTENING else reason
    return Availability(status="wrong" if state.status == "wrong" else "down", transport="http", cause=cause, playable=False)


def embedded_availability(env: str) -> Availability:
    """An installed environment without a server."""
    if not plugins.is_built_in(plugins.ENVS, env):
        return Availability(status="embedded")
    label, lacking = data_label_of(env, os.environ), missing_data(env, os.environ)
    if lacking is not None:
        return Availability(status="down", data_label=label, cause=lacking, playable=False)
    return Availability(status="embedded", data_label=label)


def _not_there(env: str, state: ServerState, reason: str) -> Availability:
    """Played in this process, as its server is not well."""
    here = embedded_availability(env)
    if reason == NOT_LISTENING or not here.playable:
        return here
    status: Status = "embedded" if state.status == "down" else "wrong"
    return msgspec.structs.replace(here, status=status, cause=f"{state.address.base}: {reason}")


def missing_requirement(env: str, deps: tuple[str, ...] = ()) -> str | None:
    """Why an environment cannot be played in this process, None where it can."""
    if not plugins.is_registered(plugins.ENVS, env):
        return NOT_INSTALLED
    if missing := plugins.missing_packages(deps):
        return f"needs {', '.join(missing)}"
    return None
