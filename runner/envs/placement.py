"""Choice between playing an environment in this process (embedded) and on a server (HTTP)."""

from __future__ import annotations

import os
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from runner.config import EnvironmentEntry, Profile, SkipEntry
from runner.envs.are.catalog import FAMILY, check_scenario
from runner.envs.base import AS_PUBLISHED, data_folder, data_label_of
from runner.envs.http.dialects import dialect_for
from runner.envs.http.response import ADVICE_BY_STATUS
from runner.envs.http.server import (
    NOT_LISTENING,
    UNAUTHORIZED,
    ServerAddress,
    ServerIdentity,
    ServerKind,
    ServerState,
    probe_servers,
)
from runner.envs.names import server_problem, skipped_environment, unknown_environment, unplayable_entry
from runner.errors import ConfigError, ServerBusy
from runner.plugins import ENVS, Plugin, find, is_registered
from runner.types import Mode
from runner.util.display_text import one_line, secret_lines

Transport: TypeAlias = Literal["embedded", "http"]

SERVER_NAMES: dict[ServerKind, str] = {
    "console": "AgentGym Console",
    "agentgym": "AgentGym server",
    "unknown": "unknown server",
    "wrong": "wrong server",
}
_MOUNTED: Final = ("maze", "wordle")
"""Environments that AgentGym's LMRL-Gym server mounts below its root; AgentGym's clients take the URL of the mount."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where and by which rules one batch is played.

    Attributes:
        data_label: label of data that is not the published data; empty otherwise.
        packages: distributions that the embedded environment needs in addition to the runner's own.
        wait_s: seconds that the batch waits for a server that goes away; 0: it goes on at once.
    """

    transport: Transport = "embedded"
    address: ServerAddress | None = None
    mode: Mode = "strict"
    data_label: str = ""
    packages: tuple[str, ...] = ()
    note: str = "embedded"
    wait_s: float = 0.0

    @property
    def kind(self) -> tuple[Transport, Mode, str]:
        return self.transport, self.mode, self.data_label

    def require_kind(self, earlier: tuple[str, str, str] | None) -> None:
        """Check that the placement is of the same kind as that of the episodes that a batch has already, if any."""
        if earlier is not None and earlier != self.kind:
            transport, mode, label = earlier
            raise ConfigError(
                f"The episodes so far were played {'over HTTP' if transport == 'http' else transport} ({mode} rules, "
                f"{label or AS_PUBLISHED}), the next one would be {self.note}. Start the same server again or set "
                "transport in the profile, then resume the batch, or start a new one"
            )


def environment_entry(profile: Profile, env: str) -> EnvironmentEntry | None:
    entry = profile.find_entry(env)
    return entry if isinstance(entry, EnvironmentEntry) else None


def server_address(entry: EnvironmentEntry | None) -> ServerAddress | None:
    """Return None if the entry has neither base_url nor port."""
    if entry is None or (entry.base_url is None and entry.port is None):
        return None
    url = entry.base_url or f"http://127.0.0.1:{entry.port}"
    if entry.name.lower() in _MOUNTED:
        url = url.rstrip("/").removesuffix(f"/{entry.name.lower()}")
    secrets = secret_lines(entry.env.values())
    return ServerAddress(url, entry.timeout_sec, secrets=secrets, places=entry.places)


def has_http_dialect(env: str) -> bool:
    """Return whether the environment can be played over HTTP; it need not be installed in this process."""
    return dialect_for(env) is not None


def observation_planner(env: str) -> str | None:
    """Return the import path of the planner that plays ``env`` on any server; None if the oracle needs a local copy."""
    dialect = dialect_for(env)
    return None if dialect is None else dialect.planner


def find_environment(name: str) -> Plugin:
    """Ignores case; what has no import path plays only on a server. Raises ``ConfigError`` if nothing plays it."""
    if is_registered(ENVS, name):
        return find(ENVS, name)
    if not has_http_dialect(name):
        raise unknown_environment(name)
    return Plugin(name)


def resolve_environment(profile: Profile, name: str) -> Plugin:
    """Raises ``UnplayableName``, with the names or keys that work, if it is unknown, skipped or needs a server."""
    entry = profile.find_entry(name)
    if isinstance(entry, SkipEntry):
        raise skipped_environment(entry, profile)
    if is_registered(ENVS, name):
        env = find(ENVS, name if entry is None else entry.name)
        if env.family == FAMILY:
            check_scenario(env.name, profile.are)
        return env
    if entry is None:
        raise unknown_environment(name, (listed.name for _, listed in profile.tiered_entries()))
    if server_address(entry) is not None and has_http_dialect(entry.name) and server_problem(entry) is None:
        return Plugin(entry.name)
    raise unplayable_entry(entry, profile)


def choose_placement(entry: EnvironmentEntry | None, env: Plugin, mode: Mode, *, wait_s: float = 0.0) -> Placement:
    """Choose where to play a batch that is about to start; probes the server for at most two seconds.

    Raises ``ServerBusy`` if the server accepts the connection and does not reply, whatever the transport, and
    ``ConfigError`` if neither a server nor this process can play the environment.
    """
    transport = entry.transport if entry is not None else "auto"
    address = server_address(entry)
    if address is None and (transport == "http" or not env.is_installed):
        raise ConfigError(f"{env.name} needs a server; set its port or base_url in the profile")
    if address is None or transport == "embedded":
        return _embedded_placement(env, mode)
    state = probe_servers({env.name: address})[env.name]
    if state.status == "busy":
        server = f"{address.base}: {state.cause}"
        advice = "Wait until it is free, or check its log; set transport to embedded to do without it"
        raise ServerBusy(f"{env.name} cannot be played at {server}. {advice}", server, wait_s)
    reason = rejection_reason(state, mode, must_identify=transport == "auto" and env.is_installed)
    if reason is None:
        return msgspec.structs.replace(http_placement(state), wait_s=wait_s)
    if transport == "http" or not env.is_installed:
        is_login = state.http_status == UNAUTHORIZED
        advice = ADVICE_BY_STATUS[UNAUTHORIZED] if is_login else _start_advice(env, address)
        raise ConfigError(f"{env.name} cannot be played at {address.base}: {reason}. {advice}")
    return _embedded_placement(env, mode, "" if state.cause == NOT_LISTENING else f": at {address.base}: {reason}")


def _embedded_placement(env: Plugin, mode: Mode, why: str = "") -> Placement:
    environment = env.load()
    label = str(getattr(environment, "data_label", ""))
    if env.is_built_in:
        label = data_label_of(env.name, os.environ, mode)
        if data_folder(env.name) is not None:
            environment(mode=mode)
    packages = tuple(getattr(environment, "packages", None) or ())
    return Placement(mode=mode, data_label=label, packages=packages, note=f"embedded{why}")


def rejection_reason(state: ServerState, mode: Mode, *, must_identify: bool) -> str | None:
    """Return why a batch cannot be played on a server; None if it can be.

    The mode ``compat`` requires these rules; ``strict``, the default, accepts any rules. ``must_identify``: reject a
    server that does not identify itself.
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
    """``compat`` rules are assumed if the server does not state its rules."""
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


def start_command(env: Plugin, address: ServerAddress) -> str | None:
    """Return the command that starts our server of a built-in environment at a local address; None otherwise."""
    parts = urlsplit(address.base)
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost") and not parts.path
    return f"agentgym-runner serve {env.name} --port {parts.port or 80}" if is_local and env.is_built_in else None


def _start_advice(env: Plugin, address: ServerAddress) -> str:
    command = start_command(env, address)
    start = "Start its server" if command is None else f"Start its server, e.g. with: {command}"
    if not env.is_installed:
        return f"{start}, or correct its port or base_url"
    return f"{start}; or set its transport to auto or embedded"
