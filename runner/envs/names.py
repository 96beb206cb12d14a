"""Names of environments: which work in this process or on a server, and what to do about a name that does not.

AgentGym has servers for environments that this project does not embed, such as SciWorld. Such an environment is played
over HTTP only, and its server has to be in the profile.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.config import EnvironmentEntry, Profile, SkipEntry
from runner.envs.http.dialects import http_names
from runner.errors import ConfigError
from runner.plugins import ENVS, closest_name, is_registered, registered_names

AGENTGYM_PORT = 8000
"""Default port of AgentGym's servers: ``--port`` in ``launch.py`` of each of its ``agentenv-*`` packages."""


class UnplayableName(ConfigError):
    published_error_type = "config_error"

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(f"{problem}. {hint}")
        self.problem = problem
        self.hint = hint


def server_only_names() -> list[str]:
    return sorted((name for name in http_names() if not is_registered(ENVS, name)), key=str.lower)


def server_only_name(env: str) -> str | None:
    return next((name for name in server_only_names() if name.lower() == env.lower()), None)


def server_problem(entry: EnvironmentEntry) -> str | None:
    if server_only_name(entry.name) is None:
        return None
    if entry.transport == "embedded":
        return "played only on a server, but its transport is embedded"
    if entry.port is None and entry.base_url is None:
        return "played only on a server, but its entry has neither port nor base_url"
    return None


def server_keys(env: str) -> str:
    return (
        f"Add to environments.moderate in the profile: - {{name: {env}, transport: http, port: {AGENTGYM_PORT}}}. "
        f"Port {AGENTGYM_PORT} is the default of AgentGym's servers; for a server on another machine, replace port "
        "with base_url: http://HOST:PORT"
    )


def known_names(also: Iterable[str] = ()) -> str:
    embedded = {name.lower(): name for name in (*registered_names(ENVS), *also)}
    return (
        f"Embedded environments: {', '.join(embedded.values()) or 'none'}. "
        "Played only on a server (transport: http and port or base_url in the profile): "
        f"{', '.join(server_only_names()) or 'none'}."
    )


def did_you_mean(env: str, also: Iterable[str] = ()) -> str:
    closest = closest_name(env, [*registered_names(ENVS), *server_only_names(), *also])
    return f"Did you mean {closest}?" if closest else ""


def unknown_environment(env: str, also: Iterable[str] = ()) -> UnplayableName:
    if (name := server_only_name(env)) is not None:
        return UnplayableName(
            f"{name} is played only on a server, and the profile has no server for it", server_keys(name)
        )
    known = list(also)
    playable = [name for name in known if is_registered(ENVS, name)]
    hint = " ".join(filter(None, [did_you_mean(env, known), known_names(playable)]))
    return UnplayableName(f"There is no environment named {env!r}", hint)


def unplayable_entry(entry: EnvironmentEntry, profile: Profile) -> UnplayableName:
    if (problem := server_problem(entry)) is not None:
        return UnplayableName(
            f"{entry.name} in profile {profile.id} is {problem}", f"In its entry, {entry_advice(entry)}"
        )
    problem = f"{entry.name} is in profile {profile.id}, but no environment of that name is installed"
    return UnplayableName(problem, " ".join(filter(None, [did_you_mean(entry.name), known_names()])))


def server_only_problem(env: str, profile: Profile) -> UnplayableName | None:
    """Return why a profile cannot play an environment that needs a server; None if it can, or none is needed."""
    if server_only_name(env) is None:
        return None
    entry = profile.find_entry(env)
    if isinstance(entry, SkipEntry):
        return skipped_environment(entry, profile)
    if entry is None:
        return unknown_environment(env)
    return unplayable_entry(entry, profile) if server_problem(entry) is not None else None


def entry_advice(entry: EnvironmentEntry) -> str:
    if entry.port is not None or entry.base_url is not None:
        return "set transport: http, or remove transport"
    return (
        f"set transport: http, and port: {AGENTGYM_PORT} for a server on this machine ({AGENTGYM_PORT} is the default "
        "port of AgentGym's servers) or base_url: http://HOST:PORT for a server on another one"
    )


def skipped_environment(entry: SkipEntry, profile: Profile) -> UnplayableName:
    problem = f"{entry.name} is skipped in profile {profile.id}: {entry.reason}"
    if (name := server_only_name(entry.name)) is None:
        return UnplayableName(problem, "To play it, move it from environments.skip to environments.moderate")
    return UnplayableName(
        problem, f"It is played only on a server. Remove it from environments.skip. {server_keys(name)}"
    )
