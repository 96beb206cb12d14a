"""``agentgym-runner serve``: embedded environments for others, over AgentGym's protocol."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from runner import plugins
from runner.cli.arguments import add_listening, port, seconds
from runner.cli.logs import log_to_person
from runner.cli.terminal import keep_output, say
from runner.config import Profile, load_profile
from runner.errors import ConfigError
from runner.types import Mode

if TYPE_CHECKING:
    from runner.serve.host import Site

THREADS = 16
"""How many instances of one environment work at the same time; others of it wait, those of another do not."""


def main_serve(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; returns 0, or 2 when it cannot start."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.all == bool(given.env):
        parser.error("name the environments to serve, or give --all")
    if given.max_open < 1:
        parser.error("--max-open has to be at least 1")
    profile = load_profile(given.config, environ=os.environ, cwd=Path.cwd())
    log_to_person()
    ports = _ports(profile, given.env, given.port)
    _serve(ports, given)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentgym-runner serve",
        description="Serve embedded environments over AgentGym's protocol, each on its port of the profile.",
    )
    parser.add_argument("env", nargs="*", metavar="ENV", help="an environment (any case)")
    parser.add_argument("--all", action="store_true", help="every environment of the profile that can be served")
    add_listening(parser)
    parser.add_argument("--port", type=port, metavar="N", help="another port, for a single ENV; 0 takes a free one")
    parser.add_argument("--compat", action="store_true", help="AgentGym's rules with their quirks, not the strict ones")
    parser.add_argument("--config", metavar="NAME|PATH", help="the profile (default field-runner-4090)")
    parser.add_argument(
        "--max-open", type=int, default=256, metavar="N", help="instances of one environment (default 256)"
    )
    parser.add_argument(
        "--idle-sec", type=seconds, default=1800.0, metavar="SEC", help="when to close what nobody uses (default 1800)"
    )
    return parser


def _ports(profile: Profile, names: Sequence[str], given: int | None) -> dict[str, int]:
    """The registered names of what is to be served, and where; all of the profile where none is named."""
    from runner.batch.spec import resolve_environment

    resolved = list(dict.fromkeys(resolve_environment(profile, name) for name in names)) or _all_of(profile)
    if given is not None and len(resolved) != 1:
        raise ConfigError("--port goes with a single environment; several have their ports in the profile")
    return {name: _port_of(profile, name) if given is None else given for name in resolved}


def _all_of(profile: Profile) -> list[str]:
    from runner.serve.env_api import DIALECTS

    with_port = {entry.name.casefold() for _, entry in profile.listed() if entry.port is not None}
    found = [name for name in DIALECTS if name in plugins.registered_names(plugins.ENVS) and name.casefold() in with_port]
    if not found:
        raise ConfigError(f"Profile {profile.id} has no environment with a port that can be served")
    return found


def _port_of(profile: Profile, name: str) -> int:
    for _, entry in profile.listed():
        if entry.name.casefold() == name.casefold() and entry.port is not None:
            return entry.port
    raise ConfigError(f"{name} has no port in profile {profile.id}; give --port")


def _serve(ports: dict[str, int], given: argparse.Namespace) -> None:
    from runner.serve.env_api import environment_app
    from runner.serve.host import Site, check_exposure, guard_app, read_token, run_apps

    token = read_token(given.token, os.environ)
    check_exposure(given.host, token)
    mode: Mode = "compat" if given.compat else "strict"
    hosts = [given.host, *given.allow_host]
    keep_output()
    executors: list[ThreadPoolExecutor] = []

    def site(name: str, at: int) -> Site:
        executor = ThreadPoolExecutor(THREADS, name)
        executors.append(executor)
        app = environment_app(name, mode=mode, max_open=given.max_open, idle_s=given.idle_sec, executor=executor)
        guard = guard_app(app.application(), token=token, allowed_hosts=hosts)
        return Site(guard, given.host, at, app.served.description)

    try:
        run_apps([site(name, at) for name, at in ports.items()], say=say)
    finally:
        for executor in executors:
            executor.shutdown(wait=False, cancel_futures=True)
