"""Choice between playing an environment in this process (embedded) and on a server (HTTP)."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from runner import plugins
from runner.config import ARESettings, EnvironmentEntry, Profile
from runner.envs.data_labels import AS_PUBLISHED, data_label_of, uses_configured_data
from runner.envs.http.address import ServerAddress
from runner.envs.http.identify import ServerIdentity, ServerKind
from runner.envs.http.probe import NOT_LISTENING, UNAUTHORIZED, ServerState, probe_servers
from runner.errors import ConfigError
from runner.types import Mode
from runner.util.display_text import one_line, secret_lines

Transport: TypeAlias = Literal["embedded", "http"]

SERVER_NAMES: dict[ServerKind, str] = {
    "console": "AgentGym Console",
    "agentgym": "AgentGym server",
    "unknown": "unknown server",
    "wrong": "wrong server",
}
"""Display name of each kind of server."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where and by which rules one batch is played.

    Attributes:
        address: the server's address; None for an embedded environment.
        mode: rules of the environment; those of the server for HTTP.
        data_label: label of data that is not the published data; empty otherwise.
        packages: distributions that the embedded environment needs in addition to the runner's own.
        note: description of the placement for the user, without secrets.
        wait_s: seconds that the batch waits for a server that goes away; 0: it goes on at once.
        are: the profile's ``are`` section.
    """

    transport: Transport = "embedded"
    address: ServerAddress | None = None
    mode: Mode = "strict"
    data_label: str = ""
    packages: tuple[str, ...] = ()
    note: str = "embedded"
    wait_s: float = 0.0
    are: ARESettings = ARESettings()


def environment_entry(profile: Profile, env: str) -> EnvironmentEntry | None:
    """Return the profile's entry of an environment; None if the profile has no such entry."""
    entry = profile.find_entry(env)
    return entry if isinstance(entry, EnvironmentEntry) else None


def server_address(entry: EnvironmentEntry | None) -> ServerAddress | None:
    """Return the server address of a profile entry; None if the entry has neither base_url nor port."""
    if entry is None or (entry.base_url is None and entry.port is None):
        return None
    url = entry.base_url or f"http://127.0.0.1:{entry.port}"
    secrets = secret_lines(entry.env.values())
    return ServerAddress(url, entry.timeout_sec, secrets=secrets, places=entry.places)


def has_http_dialect(env: str) -> bool:
    """Return whether the environment can be played over HTTP; it need not be installed in this process."""
    from runner.envs.http.dialects import dialect_for  # imported late: rarely needed

    return dialect_for(env) is not None


def observation_planner(env: str) -> str | None:
    """Return the import path of the planner that plays ``env`` on any server; None if the oracle needs a local copy."""
    from runner.envs.http.dialects import dialect_for  # imported late: rarely needed

    dialect = dialect_for(env)
    return None if dialect is None else dialect.planner


def embedded_placement(env: str, mode: Mode, *, why: str = "") -> Placement:
    """Return the placement for playing in this process; ``why`` is the reason for not using a server, if any.

    Raises:
        ConfigError: if the environment cannot be loaded, or the data that an environment variable names is unusable.
    """
    environment = plugins.load(plugins.ENVS, env)
    label = str(getattr(environment, "data_label", ""))
    if plugins.is_built_in(plugins.ENVS, env):
        label = data_label_of(env, os.environ, mode)
        if uses_configured_data(env, os.environ):
            environment(mode=mode)
    return Placement(
        mode=mode,
        data_label=label,
        packages=tuple(getattr(environment, "packages", None) or ()),
        note=f"embedded: {why}" if why else "embedded",
    )


def choose_placement(entry: EnvironmentEntry | None, env: str, mode: Mode, *, wait_s: float = 0.0) -> Placement:
    """Choose where to play a batch that is about to start; probes the server for at most two seconds.

    Args:
        entry: the profile's entry of the environment, None if it has none.
        env: the environment's registered name.
        mode: the requested rules.
        wait_s: seconds that the batch waits for a server that goes away.

    Raises:
        ConfigError: if the environment needs a server, and the server is not running or serves something else.
    """
    transport = entry.transport if entry is not None else "auto"
    address = server_address(entry)
    is_installed = plugins.is_registered(plugins.ENVS, env)
    if address is None and (transport == "http" or not is_installed):
        raise ConfigError(f"{env} needs a server; set its port or base_url in the profile")
    if address is None or transport == "embedded":
        return embedded_placement(env, mode)
    state = probe_servers({env: address})[env]
    reason = rejection_reason(state, mode, must_identify=transport == "auto" and is_installed)
    if reason is None:
        return msgspec.structs.replace(http_placement(state), wait_s=wait_s)
    if transport == "http" or not is_installed:
        advice = _login_advice() if state.http_status == UNAUTHORIZED else _start_advice(env, address)
        raise ConfigError(f"{env} cannot be played at {address.base}: {reason}. {advice}")
    return embedded_placement(env, mode, why="" if state.cause == NOT_LISTENING else f"at {address.base}: {reason}")


def choose_profile_placement(profile: Profile, env: str, mode: Mode) -> Placement:
    """Choose where to play a batch of a profile; see :func:`choose_placement`."""
    entry = environment_entry(profile, env)
    placement = choose_placement(entry, env, mode, wait_s=profile.wait_sec(env))
    return msgspec.structs.replace(placement, are=profile.are)


def rejection_reason(state: ServerState, mode: Mode, *, must_identify: bool) -> str | None:
    """Return why a batch cannot be played on a server; None if it can be.

    Args:
        state: result of probing the server.
        mode: the requested rules. ``compat`` requires these rules; ``strict``, the default, accepts any rules.
        must_identify: whether to reject a server that does not identify itself.
    """
    identity = state.identity
    if not state.usable or identity is None:
        return state.cause or "server not healthy"
    if must_identify and identity.kind == "unknown":
        return "the server does not identify itself; set transport to http to use it anyway"
    if mode == "compat" and identity.mode == "strict":
        return "the server has strict rules, but --compat was requested"
    return None


def http_placement(state: ServerState) -> Placement:
    """Return the placement on a usable server; ``compat`` rules are assumed if the server does not state its rules."""
    identity = state.identity or ServerIdentity("unknown")
    label = one_line(identity.label) if identity.kind == "console" else SERVER_NAMES[identity.kind]
    mode: Mode = identity.mode or "compat"
    facts = [SERVER_NAMES[identity.kind], f"{mode} rules", *([label] if identity.kind == "console" else [])]
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
    """Return the command that starts this project's server at ``address``.

    None if the address is not local or the environment is not a built-in one.

    Raises:
        ConfigError: if the address is invalid.
    """
    parts = urlsplit(address.base)
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost") and not parts.path
    can_serve = is_local and plugins.is_built_in(plugins.ENVS, env)
    return f"agentgym-runner serve {env} --port {parts.port or 80}" if can_serve else None


def _start_advice(env: str, address: ServerAddress) -> str:
    command = start_command(env, address)
    start = "Start its server" if command is None else f"Start its server, e.g. with: {command}"
    if not plugins.is_registered(plugins.ENVS, env):
        return f"{start}, or correct its port or base_url"
    return f"{start}; or set its transport to auto or embedded"


def _login_advice() -> str:
    from runner.envs.http.response import ADVICE_BY_STATUS  # imported late: rarely needed

    return ADVICE_BY_STATUS[UNAUTHORIZED]
