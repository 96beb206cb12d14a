"""The options of ``agentgym-runner``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from runner import __version__
from runner.types import SpanLevel

EPILOG = """commands with options of their own, see agentgym-runner COMMAND --help:
  node         play what is asked for over the bus
  watch        show what is said on a bus
  outbox       show what waits to be delivered
  preflight    show whether models, environments and buses are well, and what to do where not
  serve        play environments for others, over AgentGym's protocol
  serve-model  a test endpoint in the place of a language model
  nats-info    print the URL and the credential file of the node's broker

exit codes:
  0  every episode ran, whatever its outcome
  1  an episode ended in an error, or something could not be stored or printed; with --dry-run: the run would not work
  2  usage or configuration
  130  interrupted; what ran is kept and summarised"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line; None where the profile decides."""

    run: str | None = None
    battery: Literal["lightweight", "moderate", "all"] | None = None
    list_envs: bool = False
    results: bool = False
    env: str | None = None
    config: str | None = None
    data_dir: str | None = None
    node: str | None = None
    agent: str | None = None
    model: str | None = None
    script: Path | None = None
    repeat: int = 1
    attempts: int = 1
    task_index: int = 0
    seed: int = 0
    concurrency: int | None = None
    max_rounds: int | None = None
    max_duration: float | None = None
    tracing: SpanLevel | None = None
    compat: bool = False
    dry_run: bool = False
    json: bool = False
    argv: tuple[str, ...] = ()


_EVERYWHERE = frozenset({"config", "json"})
_APPLY = {"list_envs": _EVERYWHERE, "results": _EVERYWHERE | {"env", "data_dir"}}
"""The options that mean something beside a goal; a run takes all but ``--env``."""


def parse(argv: Sequence[str]) -> Options:
    """Read the command line; argparse itself answers ``--help``, ``--version`` and misuse (exit 2)."""
    parser = _parser()
    given = vars(parser.parse_args(argv))  # only what is on the command line
    options = Options(**given, argv=tuple(argv))
    if options.env is not None and not options.results:
        parser.error("--env narrows --results; to play an environment use --run")
    if options.dry_run and not (options.run or options.battery):
        parser.error("--dry-run tries what --run or --battery would play; name one of them")
    for goal, apply in _APPLY.items():
        if goal in given and (others := sorted(given.keys() - apply - {goal})):
            parser.error(f"{', '.join(map(_spelled, others))} cannot be given with {_spelled(goal)}")
    return options


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentgym-runner",
        description="Play agents through AgentGym environments and keep every episode as a file.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"agentgym-runner {__version__}")
    _add_goals(parser)
    _add_play(parser)
    _add_place(parser)
    return parser


def _add_goals(parser: argparse.ArgumentParser) -> None:
    goals = parser.add_argument_group("what to do").add_mutually_exclusive_group(required=True)
    goals.add_argument("--run", metavar="ENV", help="play one environment (any case)")
    goals.add_argument("--battery", choices=["lightweight", "moderate", "all"], help="play a tier of the profile")
    goals.add_argument("--list-envs", action="store_true", help="show the environments and whether they can be played")
    goals.add_argument("--results", action="store_true", help="show what was played so far")


def _add_play(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to play")
    group.add_argument(
        "--agent", help="react (default) or tools, which ask a model; oracle, random, scripted, or an installed one"
    )
    group.add_argument("--model", metavar="NAME", help="the model to ask (default: the profile's)")
    group.add_argument("--script", type=Path, metavar="FILE", help="the scripted agent's actions, one per line")
    group.add_argument("--repeat", type=_at_least(1), metavar="N", help="play N tasks, one after the other")
    group.add_argument("--attempts", type=_at_least(1), metavar="K", help="play each task K times")
    group.add_argument("--task-index", type=_at_least(0), metavar="I", help="the first task (default 0)")
    group.add_argument("--seed", type=int, help="for the agent's randomness (default 0)")
    group.add_argument("--concurrency", type=_at_least(1), metavar="N", help="episodes at the same time")
    group.add_argument("--max-rounds", type=_at_least(1), metavar="N", help="rounds after which an episode is cut")
    group.add_argument("--max-duration", type=seconds, metavar="SEC", help="seconds after which an episode is cut")
    group.add_argument("--tracing", choices=get_args(SpanLevel), help="how much goes into the trace (default full)")
    group.add_argument("--compat", action="store_true", help="AgentGym's rules with their quirks, not the strict ones")
    group.add_argument("--dry-run", action="store_true", help="only try whether that run would work")


def _add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where and how to show")
    group.add_argument("--config", metavar="NAME|PATH", help="the profile (default field-runner-4090)")
    group.add_argument("--data-dir", metavar="DIR", help="the state directory (default ./data)")
    group.add_argument("--node", metavar="NAME", help="this machine's name in what is stored")
    group.add_argument("--env", metavar="ENV", help="with --results: only this environment")
    group.add_argument("--json", action="store_true", help="print the result as JSON on standard output")


def _at_least(least: int) -> type[int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    number.__name__ = "whole number"
    return number  # type: ignore[return-value]  # argparse takes any callable; int is what it returns


def seconds(text: str) -> float:
    """A positive number of seconds, for argparse."""
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def add_listening(group: argparse._ActionsContainer) -> None:
    """Add ``--host``, ``--token`` and ``--allow-host``."""
    group.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1; any other machine's needs --token")
    group.add_argument("--token", metavar="NAME|@FILE", help="the variable or private file with what clients must send")
    group.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="another name that clients know this host by"
    )


def port(text: str) -> int:
    """A port, for argparse; 0 stands for one that is free."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return value
