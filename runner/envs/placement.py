"""Where an environment is played: in this process, or on a server that says it is that environment's."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from runner import plugins
from runner.config import EnvironmentEntry, Profile
from runner.envs.data_labels import AS_PUBLISHED as AS_PUBLISHED
from runner.envs.data_labels import uses_configured_data
from runner.envs.http.address import ServerAddress
from runner.envs.http.identify import ServerIdentity, ServerKind
from runner.envs.http.probe import NOT_LISTENING, UNAUTHORIZED, ServerState, probe_servers
from runner.errors import ConfigError
from runner.types import Mode
from runner.util.text import one_line

Transport: TypeAlias = Literal["embedded", "http"]

SERVER_NAMES: dict[ServerKind, str] = {
    "console": "AgentGym Console",
    "agentgym": "AgentGym server",
    "unknown": "unknown server",
    "wrong": "wrong server",
}
"""What people are told of a server, by what it said it is."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """How one batch is played.

    Attributes:
        address: where the server is; None: embedded.
        mode: by which rules, those of the server where there is one.
        data_label: which data that is.
        packages: distributions that play it here beyond the runner's own.
        note: what a person is told of it, without secrets.
    """

    transport: Transport = "embedded"
    address: ServerAddress | None = None
    mode: Mode = "strict"
    data_label: str = ""
    packages: tuple[str, ...] = ()
    note: str = "embedded"


def environment_entry(profile: Profile, env: str) -> EnvironmentEntry | None:
    """What a profile says of an environment that is played, None where it says nothing."""
    entry = profile.find(env)
    return entry if isinstance(entry, EnvironmentEntry) else None


def server_address(entry: EnvironmentEntry | None) -> ServerAddress | None:
    """Where a profile's environment has its server, None where it names no place."""
    if entry is None or (entry.base_url is None and entry.port is None):
        return None
    return ServerAddress(entry.base_url or f"http://127.0.0.1:{entry.port}", entry.timeout_sec)


def has_http_dialect(env: str) -> bool:
    """Whether the runner speaks with servers of this environment, installed or not."""
    from runner.envs.http.dialects import dialect_for  # seldom asked

    return dialect_for(env) is not None


def embedded_placement(env: str, mode: Mode, *, why: str = "") -> Placement:
    """Play in this process; ``why`` not on the server.

    Raises:
        ConfigError: for an environment that cannot be loaded, or whose data a variable names that cannot be played.
    """
    environment = plugins.load(plugins.ENVS, env)
    if plugins.is_built_in(plugins.ENVS, env) and uses_configured_data(env, os.environ):
        environment(mode=mode)
    return Placement(
        mode=mode,
        data_label=str(getattr(environment, "data_label", "")),
        packages=tuple(getattr(environment, "packages", None) or ()),
        note=f"embedded: {why}" if why else "embedded",
    )


def choose_placement(entry: EnvironmentEntry | None, env: str, mode: Mode) -> Placement:
    """Where to play a batch that is about to begin; takes two seconds at most.

    Args:
        entry: what the profile says of the environment; None: nothing.
        env: its registered name.
        mode: by which rules it is to be played.

    Raises:
        ConfigError: where it has to be played on a server that is not there, or is not the right one.
    """
    wanted = entry.transport if entry is not None else "auto"
    address = server_address(entry)
    is_installed = plugins.is_registered(plugins.ENVS, env)
    if address is None and (wanted == "http" or not is_installed):
        raise ConfigError(f"{env} is played on a server; give its port or its base_url in the profile")
    if address is None or wanted == "embedded":
        return embedded_placement(env, mode)
    state = probe_servers({env: address})[env]
    reason = rejection_reason(state, mode, sure=wanted == "auto" and is_installed)
    if reason is None:
        return http_placement(state)
    if wanted == "http" or not is_installed:
        advice = _login() if state.http_status == UNAUTHORIZED else _advice(env, address)
        raise ConfigError(f"{env} is to be played at {address.base}, but {reason}. {advice}")
    return embedded_placement(env, mode, why="" if state.cause == NOT_LISTENING else f"at {address.base}: {reason}")


def rejection_reason(state: ServerState, mode: Mode, *, sure: bool) -> str | None:
    """Why a batch cannot be played on a server, None where it can.

    Args:
        state: how the server is.
        mode: the rules that were asked for; ``compat`` is kept to, ``strict`` is what one gets without asking.
        sure: whether a server that does not say what it is will not do.
    """
    said = state.greeting
    if not state.usable or said is None:
        return state.cause or "it is not well"
    if sure and said.kind == "unknown":
        return "it does not say what it is; transport http would take it all the same"
    if mode == "compat" and said.mode == "strict":
        return "it plays by the strict rules, not those of --compat"
    return None


def http_placement(state: ServerState) -> Placement:
    """Play on a server that can be played on; one that does not tell its rules is taken to have AgentGym's."""
    said = state.greeting or ServerIdentity("unknown")
    label = one_line(said.label) if said.kind == "console" else SERVER_NAMES[said.kind]
    mode: Mode = said.mode or "compat"
    facts = [SERVER_NAMES[said.kind], f"{mode} rules", *([label] if said.kind == "console" else [])]
    if state.status == "slow" and state.latency_s is not None:
        facts.append(f"slow, {state.latency_s:.1f} s")
    return Placement(
        transport="http",
        address=state.address,
        mode=mode,
        data_label="" if label == AS_PUBLISHED else label,
        note=f"over HTTP at {state.address.base} ({', '.join(facts)})",
    )


def start_command(env: str, address: ServerAddress) -> str | None:
    """The command that starts a server of ours on this machine where a profile looks for it; None where it could not.

    Raises:
        ConfigError: for an address that no request can be sent to.
    """
    parts = urlsplit(address.base)
    here = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost") and not parts.path
    ours = here and plugins.is_built_in(plugins.ENVS, env)
    return f"agentgym-runner serve {env} --port {parts.port or 80}" if ours else None


def _advice(env: str, address: ServerAddress) -> str:
    command = start_command(env, address)
    start = "Start its server" if command is None else f"Start its server, e.g. with: {command}"
    if not plugins.is_registered(plugins.ENVS, env):
        return f"{start}, or correct its port or base_url"
    return f"{start}; or set its transport to auto or embedded"


def _login() -> str:
    from runner.envs.http.response import ADVICE_BY_STATUS  # seldom asked

    return ADVICE_BY_STATUS[UNAUTHORIZED]
