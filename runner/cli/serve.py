"""``agentgym-runner serve``: serve embedded environments with AgentGym's HTTP protocol."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from runner import plugins
from runner.cli.arguments import add_server_options, port, positive_seconds
from runner.cli.reports import log_to_stderr
from runner.cli.terminal import print_line, reserve_stdout
from runner.config import Profile, load_profile
from runner.errors import ConfigError
from runner.types import Mode
from runner.util.argument_parser import SafeArgumentParser

if TYPE_CHECKING:
    from runner.serve.host import Site

THREADS = 16
"""Number of threads per environment, which is the maximum of its instances that run in parallel."""


def main_serve(argv: Sequence[str]) -> int:
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.all == bool(options.env):
        parser.error("name the environments to serve, or give --all")
    if options.max_open < 1:
        parser.error("--max-open must be at least 1")
    profile = load_profile(options.config, environ=os.environ, cwd=Path.cwd())
    log_to_stderr()
    ports = _ports(profile, options.env, options.port)
    _serve(ports, options)
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = SafeArgumentParser(
        prog="agentgym-runner serve",
        description="Serve embedded environments over AgentGym's HTTP protocol, each on its port in the profile.",
    )
    add = parser.add_argument
    add("env", nargs="*", metavar="ENV", help="environment (case-insensitive)")
    add("--all", action="store_true", help="serve all environments of the profile that have a protocol")
    add_server_options(parser)
    add("--port", type=port, metavar="N", help="port for a single ENV (default: from the profile); 0: a free port")
    add("--compat", action="store_true", help="use AgentGym's rules with their quirks (default: strict rules)")
    add("--config", metavar="NAME|PATH", help="profile (default field-runner-4090)")
    add("--max-open", type=int, default=256, metavar="N", help="maximum open instances per environment (default 256)")
    add(
        "--idle-sec",
        type=positive_seconds,
        default=1800.0,
        metavar="SEC",
        help="close an instance after SEC idle seconds (default 1800)",
    )
    return parser


def _ports(profile: Profile, names: Sequence[str], requested_port: int | None) -> dict[str, int]:
    resolved = list(dict.fromkeys(_resolve(profile, name) for name in names)) or _all_of(profile)
    if requested_port is not None and len(resolved) != 1:
        raise ConfigError("--port requires a single environment; several use their ports in the profile")
    return {name: _port_of(profile, name) if requested_port is None else requested_port for name in resolved}


def _resolve(profile: Profile, name: str) -> str:
    """Return the registered name of an environment to serve."""
    from runner.envs.names import server_only_name, server_only_problem
    from runner.envs.placement import resolve_environment
    from runner.serve.env_api import DIALECTS

    if plugins.is_registered(plugins.ENVS, name):
        return resolve_environment(profile, name).name
    servable = [known for known in DIALECTS if plugins.is_registered(plugins.ENVS, known)]
    names = f"Environments that can be served: {', '.join(servable)}"
    if (other := server_only_name(name)) is not None:
        problem = server_only_problem(other, profile)
        raise ConfigError(
            f"{other} cannot be served: it is not embedded; only AgentGym's own server plays it. "
            f"{f'{problem}. ' if problem else ''}{names}"
        )
    closest = plugins.closest_name(name, servable)
    suggestion = f"Did you mean {closest}? " if closest else ""
    raise ConfigError(f"There is no embedded environment named {name!r}. {suggestion}{names}")


def _all_of(profile: Profile) -> list[str]:
    from runner.serve.env_api import DIALECTS

    with_port = {entry.name.casefold() for _, entry in profile.tiered_entries() if entry.port is not None}
    names = [
        name for name in DIALECTS if name in plugins.registered_names(plugins.ENVS) and name.casefold() in with_port
    ]
    if not names:
        raise ConfigError(f"Profile {profile.id} has no environment with a port that can be served")
    return names


def _port_of(profile: Profile, name: str) -> int:
    for _, entry in profile.tiered_entries():
        if entry.name.casefold() == name.casefold() and entry.port is not None:
            return entry.port
    raise ConfigError(f"{name} has no port in profile {profile.id}; give --port")


def _serve(ports: dict[str, int], options: argparse.Namespace) -> None:
    from runner.serve.env_api import PoolOptions, environment_app
    from runner.serve.host import Site, check_exposure, read_token, run_apps
    from runner.serve.request_guard import RequestGuard

    token = read_token(options.token, os.environ)
    check_exposure(options.host, token)
    mode: Mode = "compat" if options.compat else "strict"
    hosts = [options.host, *options.allow_host]
    reserve_stdout()
    executors: list[ThreadPoolExecutor] = []

    def site(name: str, site_port: int) -> Site:
        executor = ThreadPoolExecutor(THREADS, name)
        executors.append(executor)
        first_id = SystemRandom().randrange(2**31)  # so that an id from before a restart is unknown
        app = environment_app(name, mode, PoolOptions(executor, options.max_open, options.idle_sec, first_id))
        guard = RequestGuard(app.application(), token=token, allowed_hosts=hosts)
        return Site(guard, options.host, site_port, app.description)

    try:
        run_apps([site(name, site_port) for name, site_port in ports.items()], on_ready=print_line)
    finally:
        for executor in executors:
            executor.shutdown(wait=False, cancel_futures=True)
