"""``agentgym-runner serve-model``: serve a test endpoint that replaces a language model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from runner.cli.arguments import add_server_options, checked, port, subcommand_parser
from runner.cli.terminal import print_line, reserve_stdout
from runner.serve.host import Site, check_exposure, read_token, run_apps
from runner.serve.mock_llm.app import MARK, EchoResponder, ModelApp, Responder, ScriptResponder
from runner.serve.mock_llm.completion import TEST_MODEL_NAME
from runner.serve.mock_llm.script import FAULT_KINDS, Behavior, Fault, ScriptedReply, read_script

EPILOG = """No language model is involved. By default, an oracle recognizes the environment and task of a conversation
and replies with its planner's next action. Four characters count as one token.

faults: KIND for all requests, KIND:SHARE for a share of them, KINDxN for the first N; the kinds are
  400 to 599     respond with that HTTP status; 429 and 503 include Retry-After
"""
_SECONDS = checked(
    float, lambda value: 0 <= value <= 3600, "is not a number of seconds from 0 to 3600", "_delay_seconds"
)


def main_serve_model(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(argv)
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


def build_parser() -> argparse.ArgumentParser:
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
