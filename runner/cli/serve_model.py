"""``agentgym-runner serve-model``: a test endpoint in the place of a language model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from runner.cli.arguments import add_listening, port
from runner.cli.terminal import keep_output, say
from runner.serve.host import Site, check_exposure, read_token, run_apps
from runner.serve.mock_llm import (
    TEST_MODEL_NAME,
    Behavior,
    EchoResponder,
    Fault,
    ModelApp,
    Responder,
    ScriptedReply,
    ScriptResponder,
    read_script,
)
from runner.serve.mock_llm.faults import FAULT_KINDS

EPILOG = """No language model is involved. The oracle finds out from a conversation which task of an environment is
played here, and answers with its planner's next action. Token counts are a quarter of the characters.

faults: KIND, KIND:SHARE for a share of the requests, KINDxN for the first N; the kinds are
  400 to 599     an error with that status; 429 and 503 say when to try again
"""


def main_serve_model(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; returns 0.

    Raises:
        ConfigError: for options that cannot be used, or when it cannot listen.
    """
    options = _parser().parse_args(argv)
    token = read_token(options.token, os.environ)
    check_exposure(options.host, token)
    behavior = Behavior(
        latency_s=options.latency,
        token_latency_s=options.token_latency,
        faults=tuple(map(Fault.read, options.fault)),
        seed=options.seed,
        retry_after_s=options.retry_after,
        drip_s=options.drip,
    )
    app = ModelApp(_responder(options), behavior=behavior, models=options.model)
    keep_output()
    description = f"is {TEST_MODEL_NAME}, no language model: POST /v1/chat/completions"
    site = app.site(token=token, allowed_hosts=[options.host, *options.allow_host])
    run_apps([Site(site, options.host, options.port, description)], say=say)
    return 0


def _responder(options: argparse.Namespace) -> Responder | None:
    if options.script is not None:
        return ScriptResponder(read_script(options.script))
    if options.reply is not None:
        return ScriptResponder([ScriptedReply(content=options.reply)])
    return EchoResponder() if options.echo else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentgym-runner serve-model",
        description="A test endpoint that stands in for a language model, for tests and for trying the console.",
        epilog=EPILOG + "".join(f"  {kind:<13}  {meaning}\n" for kind, meaning in FAULT_KINDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_replies(parser)
    _add_faults(parser)
    group = parser.add_argument_group("where")
    group.add_argument("--port", type=port, default=0, help="default: one that is free, which is printed")
    add_listening(group)
    return parser


def _add_replies(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what it answers")
    responders = group.add_mutually_exclusive_group()
    responders.add_argument(
        "--script", type=Path, metavar="FILE", help="a reply per line, as text or JSON; again and again"
    )
    responders.add_argument("--reply", metavar="TEXT", help="always the same")
    responders.add_argument("--echo", action="store_true", help="what was said last")
    group.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="answer to this name, too; can be repeated"
    )


def _add_faults(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it misbehaves")
    group.add_argument("--latency", type=_wait, default=0.0, metavar="SEC", help="before each reply")
    group.add_argument("--token-latency", type=_wait, default=0.0, metavar="SEC", help="between streamed tokens")
    group.add_argument("--fault", action="append", default=[], metavar="FAULT", help="see below; can be repeated")
    group.add_argument("--retry-after", type=_wait, default=1.0, metavar="SEC", help="what 429 and 503 say (default 1)")
    group.add_argument("--drip", type=_wait, default=1.0, metavar="SEC", help="between the bytes of a drip (default 1)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="decides which requests are hit (default 0)")


def _wait(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 to 3600")
    return value
