"""``agentgym-runner serve`` and ``serve-model``: environments over AgentGym's HTTP protocol, and a test endpoint."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import SystemRandom

from runner import plugins
from runner.cli.arguments import add_server_options, checked, port, positive_seconds, subcommand_parser
from runner.cli.reports import log_to_stderr
from runner.cli.terminal import print_line, reserve_stdout
from runner.config import Profile, load_profile
from runner.envs.names import server_only_name, server_only_problem
from runner.envs.placement import resolve_environment
from runner.errors import ConfigError
from runner.serve.env_api import DIALECTS, PoolOptions, environment_app
from runner.serve.host import Site, check_exposure, read_token, run_apps
from runner.serve.mock_llm.app import MARK, EchoResponder, ModelApp, Responder, ScriptResponder
from runner.serve.mock_llm.completion import TEST_MODEL_NAME
from runner.serve.mock_llm.script import FAULT_KINDS, Behavior, Fault, ScriptedReply, read_script
from runner.serve.request_guard import RequestGuard

THREADS = 16
"""Number of threads per environment, which is the maximum of its instances that run in parallel."""


def main_serve(argv: Sequence[str]) -> int:
    parser = serve_parser()
    options = parser.parse_args(argv)
    if options.all == bool(options.env):
        parser.error("name the environments to serve, or give --all")
    if options.max_open < 1:
        parser.error("--max-open must be at least 1")
    profile = load_profile(options.config, environ=os.environ, cwd=Path.cwd())
    log_to_stderr()
    _serve(_ports(profile, options.env, options.port), options)
    return 0


def serve_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "serve", "Serve embedded environments over AgentGym's HTTP protocol, each on its port in the profile."
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
    entries = reversed(profile.tiered_entries())
    known = {entry.name.casefold(): entry.port for _, entry in entries if entry.port is not None}
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
    return [name for name in DIALECTS if plugins.is_registered(plugins.ENVS, name)]


def _resolve(profile: Profile, name: str) -> str:
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


EPILOG = """No language model is involved. By default, an oracle recognizes the environment and task of a conversation
and replies with its planner's next action. Four characters count as one token.

faults: KIND for all requests, KIND:SHARE for a share of them, KINDxN for the first N; the kinds are
  400 to 599     respond with that HTTP status; 429 and 503 include Retry-After
"""
_SECONDS = checked(
    float, lambda value: 0 <= value <= 3600, "is not a number of seconds from 0 to 3600", "_delay_seconds"
)


def main_serve_model(argv: Sequence[str]) -> int:
    options = serve_model_parser().parse_args(argv)
    token = read_token(options.token, os.environ)
    check_exposure(options.host, token)
    behavior = Behavior(
        latency_s=options.latency,
        token_latency_s=options.token_latency,
        faults=tuple(map(Fault.parse, options.fault)),
        seed=options.seed,
        retry_after_s=options.retry_after,
        drip_s=options.drip,
    )
    app = ModelApp(_responder(options), behavior=behavior, models=options.model)
    reserve_stdout()
    description = f"is {TEST_MODEL_NAME}, not a language model: POST /v1/chat/completions"
    asgi_app = app.asgi_app(token=token, allowed_hosts=[options.host, *options.allow_host])
    run_apps([Site(asgi_app, options.host, options.port, description, (MARK,))], on_ready=print_line)
    return 0


def _responder(options: argparse.Namespace) -> Responder | None:
    if options.script is not None:
        return ScriptResponder(read_script(options.script))
    if options.reply is not None:
        return ScriptResponder([ScriptedReply(content=options.reply)])
    return EchoResponder() if options.echo else None


def serve_model_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "serve-model",
        "Serve an OpenAI-compatible test endpoint in place of a language model.",
        epilog=EPILOG + "".join(f"  {kind:<13}  {meaning}\n" for kind, meaning in FAULT_KINDS.items()),
    )
    _add_replies(parser)
    _add_faults(parser)
    group = parser.add_argument_group("address")
    group.add_argument("--port", type=port, default=0, help="default: a free port, which is printed")
    add_server_options(group)
    return parser


def _add_replies(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("replies")
    choices = group.add_mutually_exclusive_group()
    choices.add_argument(
        "--script", type=Path, metavar="FILE", help="reply with the lines of FILE in turn, each a text or a JSON object"
    )
    choices.add_argument("--reply", metavar="TEXT", help="always reply with TEXT")
    choices.add_argument("--echo", action="store_true", help="repeat the last message")
    group.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="additional model name to accept; repeatable"
    )


def _add_faults(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("delays and faults")
    add = group.add_argument
    add("--latency", type=_SECONDS, default=0.0, metavar="SEC", help="delay before each reply")
    add("--token-latency", type=_SECONDS, default=0.0, metavar="SEC", help="delay between streamed tokens")
    add("--fault", action="append", default=[], metavar="FAULT", help="see below; repeatable")
    add("--retry-after", type=_SECONDS, default=1.0, metavar="SEC", help="Retry-After of 429 and 503 (default 1)")
    add("--drip", type=_SECONDS, default=1.0, metavar="SEC", help="delay between bytes of the fault drip (default 1)")
    add("--seed", type=int, default=0, metavar="N", help="random seed that selects the affected requests (default 0)")
