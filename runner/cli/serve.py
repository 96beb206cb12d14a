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
    _serve(_ports(profile, options.env, options.port), options)
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
    known: dict[str, int] = {}
    for _, entry in profile.tiered_entries():
        if entry.port is not None:
            known.setdefault(entry.name.casefold(), entry.port)
    resolved = list(dict.fromkeys(_resolve(profile, name) for name in names))
    resolved = resolved or [name for name in _servable() if name.casefold() in known]
    if not resolved:
        raise ConfigError(f"Profile {profile.id} has no environment with a port that can be served")
    if requested_port is not None:
        if len(resolved) != 1:
            raise ConfigError("--port requires a single environment; several use their ports in the profile")
        return {resolved[0]: requested_port}
    for name in resolved:
        if name.casefold() not in known:
            raise ConfigError(f"{name} has no port in profile {profile.id}; give --port")
    return {name: known[name.casefold()] for name in resolved}


def _servable() -> list[str]:
    from runner.serve.env_api import DIALECTS

    return [name for name in DIALECTS if plugins.is_registered(plugins.ENVS, name)]


def _resolve(profile: Profile, name: str) -> str:
    """Return the registered name of an environment to serve."""
    from runner.envs.names import server_only_name, server_only_problem
    from runner.envs.placement import resolve_environment

    if plugins.is_registered(plugins.ENVS, name):
        return resolve_environment(profile, name).name
    names = f"Environments that can be served: {', '.join(_servable())}"
    if (other := server_only_name(name)) is not None:
        problem = server_only_problem(other, profile)
        raise ConfigError(
            f"{other} cannot be served: it is not embedded; only AgentGym's own server plays it. "
            f"{f'{problem}. ' if problem else ''}{names}"
        )
    closest = plugins.closest_name(name, _servable())
    suggestion = f"Did you mean {closest}? " if closest else ""
    raise ConfigError(f"There is no embedded environment named {name!r}. {suggestion}{names}")


def _serve(ports: dict[str, int], options: argparse.Namespace) -> None:
    from runner.serve.env_api import PoolOptions, environment_app
    from runner.serve.host import Site, check_exposure, read_token, run_apps
    from runner.serve.request_guard import RequestGuard

    token = read_token(options.token, os.environ)
    check_exposure(options.host, token)
    reserve_stdout()
    executors = {name: ThreadPoolExecutor(THREADS, name) for name in ports}

    def site(name: str, executor: ThreadPoolExecutor) -> Site:
        first_id = SystemRandom().randrange(2**31)  # so that an id from before a restart is unknown
        pool = PoolOptions(executor, options.max_open, options.idle_sec, first_id)
        app = environment_app(name, "compat" if options.compat else "strict", pool)
        guard = RequestGuard(app.application(), token=token, allowed_hosts=[options.host, *options.allow_host])
        return Site(guard, options.host, ports[name], app.description)

    try:
        run_apps([site(name, executor) for name, executor in executors.items()], on_ready=print_line)
    finally:
        for executor in executors.values():
            executor.shutdown(wait=False, cancel_futures=True)
