"""Whether an environment could be played now and where, told without importing it."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

import msgspec

from runner import plugins as registry
from runner.config import EnvironmentEntry
from runner.envs.data_labels import label_of, what_data_lacks
from runner.envs.http.address import ServerAddress
from runner.envs.http.probe import NOBODY, ServerState
from runner.envs.placement import Transport, address_of, is_on_servers, on_server, why_not

Status: TypeAlias = Literal["up", "slow", "wrong", "down", "embedded", "unknown"]

NOT_INSTALLED = "not installed"


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
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


def asked_at(entry: EnvironmentEntry) -> ServerAddress | None:
    """Where to look for an environment's server, None where it has none that would be played on."""
    return None if entry.transport == "embedded" else address_of(entry)


def foresee(entry: EnvironmentEntry, state: ServerState | None) -> Outlook:
    """What becomes of an environment of the profile.

    Args:
        entry: what the profile says of it.
        state: how its server is; None: it has none, or that was not looked at yet.
    """
    lacking = what_lacks(entry.name, entry.deps)
    here = lacking is None and entry.transport != "http"
    if state is None:
        if here:
            return played_here(entry.name)
        if address_of(entry) is None or entry.transport == "embedded":
            return Outlook(status="down", cause=lacking or "it has transport http, but no port", playable=False)
        return Outlook(status="unknown", transport="http", playable=False)
    if lacking == NOT_INSTALLED and not is_on_servers(entry.name):
        return Outlook(status="down", cause=lacking, playable=False)
    reason = why_not(state, "strict", sure=here)
    if reason is None:
        label = on_server(state).data_label
        return Outlook(status="slow" if state.status == "slow" else "up", transport="http", data_label=label)
    if here:
        return _not_there(entry.name, state, reason)
    cause = lacking if lacking is not None and reason == NOBODY else reason
    return Outlook(status="wrong" if state.status == "wrong" else "down", transport="http", cause=cause, playable=False)


def played_here(env: str) -> Outlook:
    """An installed environment without a server."""
    if not registry.is_built_in(registry.ENVS, env):
        return Outlook(status="embedded")
    label, lacking = label_of(env, os.environ), what_data_lacks(env, os.environ)
    if lacking is not None:
        return Outlook(status="down", data_label=label, cause=lacking, playable=False)
    return Outlook(status="embedded", data_label=label)


def _not_there(env: str, state: ServerState, reason: str) -> Outlook:
    """Played in this process, as its server is not well."""
    here = played_here(env)
    if reason == NOBODY or not here.playable:
        return here
    status: Status = "embedded" if state.status == "down" else "wrong"
    return msgspec.structs.replace(here, status=status, cause=f"{state.address.base}: {reason}")


def what_lacks(env: str, deps: tuple[str, ...] = ()) -> str | None:
    """Why an environment cannot be played in this process, None where it can."""
    if not registry.knows(registry.ENVS, env):
        return NOT_INSTALLED
    if missing := registry.missing_packages(deps):
        return f"needs {', '.join(missing)}"
    return None
