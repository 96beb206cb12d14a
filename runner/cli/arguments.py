"""Options of ``agentgym-runner``, and the option types that its subcommands also use."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from runner import __version__
from runner.types import MAX_WORKERS, SpanLevel, Workers
from runner.util.argument_parser import SafeArgumentParser

if TYPE_CHECKING:
    from runner.results.summary import Score

T = TypeVar("T", int, float)

SUBCOMMANDS = {
    "node": "run batches on request over the bus",
    "watch": "print the messages of a bus",
    "outbox": "show events that are not delivered yet",
    "preflight": "check models, environments, workers, buses and the state directory, with a hint for each problem",
    "serve": "serve environments over AgentGym's HTTP protocol",
    "serve-model": "serve a test endpoint in place of a language model",
    "nats-info": "print the URL and the credential file of the node's broker",
    "episodes": "list stored episodes by a query",
    "clusters": "group failed episodes by how they failed",
    "compare": "compare two stored episodes step by step",
    "eval-report": "score and success as AgentGym computes them, and what differs",
    "export": "write stored episodes in the format of a trainer or tool",
    "import": "store the episodes of other tools' files",
    "prune": "archive or delete old episodes",
    "tasks": "list the tasks of an environment, and explain a number or an id",
    "tag": "add tags to an episode, or remove them",
    "ctl": "drive a running node: start, list, follow, pause, cancel and move batches",
    "mcp": "serve a node as tools for coding agents",
    "skill": "print the instructions for coding agents",
    "completion": "print the completion script of a shell",
}
"""Each is the function ``main_NAME`` of a module that is imported only for it, with ``NAME_parser``."""
_SUMMARIES = "\n".join(f"  {name:<11}  {what}" for name, what in SUBCOMMANDS.items())
EPILOG = f"""subcommands (see agentgym-runner COMMAND --help):
{_SUMMARIES}

exit codes:
  0    every episode ran to an outcome, successful or not
  1    an episode ended in an error, or a result could not be stored or printed; with --dry-run: a check failed
  2    invalid usage or configuration
  3    --results: the bound of --fail-below or --against is not met
  130  interrupted by a signal, or an environment server stayed away, or files, memory, threads or the budget ran out;
       finished episodes are stored and summarized"""


class Options(NamedTuple):
    """The parsed command line; None: the option is not given, so the profile's value applies if there is one."""

    run: str | None = None
    battery: Literal["lightweight", "moderate", "all"] | None = None
    list_envs: bool = False
    verbose: bool = False
    results: bool = False
    env: str | None = None
    batch: str | None = None
    matrix: bool = False
    fail_below: float | None = None
    against: str | None = None
    allow_mixed: bool = False
    score: Score = "reward"
    config: str | None = None
    data_dir: str | None = None
    node: str | None = None
    agent: str | None = None
    model: str | None = None
    endpoint: str | None = None
    key_env: str | None = None
    script: Path | None = None
    repeat: int = 1
    attempts: int = 1
    task_index: int = 0
    tasks: Path | None = None
    seed: int = 0
    concurrency: int | None = None
    workers: Workers | None = None
    max_rounds: int | None = None
    max_duration: float | None = None
    allow_longer: bool = False
    until_width: float | None = None
    budget_cost: float | None = None
    budget_tokens: int | None = None
    budget_errors: int | None = None
    tracing: SpanLevel | None = None
    compat: bool = False
    dry_run: bool = False
    json: bool = False
    argv: tuple[str, ...] = ()


_ALWAYS_ALLOWED = frozenset({"config", "data_dir", "node", "json"})
_ONLY_WITH_RESULTS = frozenset({"env", "batch", "matrix", "fail_below", "against", "allow_mixed", "score"})
_ALLOWED_WITH = {
    "list_envs": _ALWAYS_ALLOWED | {"verbose"},
    "results": _ALWAYS_ALLOWED | _ONLY_WITH_RESULTS | {"agent", "model"},
}
"""Options that may be combined with ``--list-envs`` and ``--results``, by the attribute of that action."""


def parse_options(argv: Sequence[str]) -> Options:
    """Parse the command line; ``--help``, ``--version`` and invalid usage (exit code 2) raise ``SystemExit``."""
    parser = build_parser()
    provided = vars(parser.parse_args(argv))  # contains only options of the command line
    options = Options(**provided, argv=tuple(argv))
    if not options.results and (misplaced := sorted(_ONLY_WITH_RESULTS & provided.keys())):
        advice = "; use --run ENV to run an environment" if "env" in misplaced else ""
        parser.error(f"{option_name(misplaced[0])} is only valid with --results{advice}")
    if problem := run_problem(provided):
        parser.error(problem)
    if options.verbose and not options.list_envs:
        parser.error("--verbose is only valid with --list-envs")
    if options.dry_run and not (options.run or options.battery):
        parser.error("--dry-run requires --run or --battery")
    for goal, allowed in _ALLOWED_WITH.items():
        if goal in provided and (others := sorted(provided.keys() - allowed - {goal})):
            parser.error(f"{', '.join(map(option_name, others))} cannot be combined with {option_name(goal)}")
    return options


def run_problem(given: Mapping[str, Any]) -> str:
    """Return why the run options that are given cannot be combined, or ""."""
    if "until_width" in given and (given.get("attempts", 1) > 1 or given.get("repeat", 1) == 1):
        return "--until-width requires --repeat N, the maximum number of tasks, and one attempt for each"
    if "tasks" in given and (others := {"repeat", "task_index", "until_width"} & given.keys()):
        return f"{option_name(min(others))} cannot be combined with --tasks, which names the tasks"
    return ""


def option_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def build_parser() -> argparse.ArgumentParser:
    parser = SafeArgumentParser(
        prog="agentgym-runner",
        description="Run agents in AgentGym environments and store every episode as a file.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"agentgym-runner {__version__}")
    _add_goals(parser)
    add_run_options(parser)
    _add_results_options(parser)
    parser.add_argument_group("options of --list-envs").add_argument(
        "--verbose", action="store_true", help="show what the servers need, too: memory and dependencies"
    )
    general = parser.add_argument_group("general options")
    add_state_options(general)
    general.add_argument("--node", metavar="NAME", help="name of this machine (default: profile, then host name)")
    general.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    return parser


def _add_goals(parser: argparse.ArgumentParser) -> None:
    goals = parser.add_argument_group("actions (exactly one is required)").add_mutually_exclusive_group(required=True)
    goals.add_argument("--run", metavar="ENV", help="run one environment (case-insensitive)")
    goals.add_argument(
        "--battery", choices=["lightweight", "moderate", "all"], help="run all environments of a tier of the profile"
    )
    goals.add_argument("--list-envs", action="store_true", help="list the environments and their availability")
    goals.add_argument("--results", action="store_true", help="show the results of all stored episodes")


def add_run_options(parser: argparse.ArgumentParser, *, dry_run: bool = True) -> None:
    group = parser.add_argument_group("run options")
    add = group.add_argument
    add(
        "--agent",
        help="react (default) or tools use a model; oracle, random, scripted and installed agents are also available",
    )
    add("--model", metavar="NAME", help="model name (default: from the profile); several with commas between")
    add_endpoint_options(group)
    add("--script", type=Path, metavar="FILE", help="actions of the scripted agent, one per line")
    add("--repeat", type=at_least(1), metavar="N", help="number of consecutive tasks (default 1)")
    add("--attempts", type=at_least(1), metavar="K", help="number of episodes per task (default 1)")
    add("--task-index", type=at_least(0), metavar="I", help="index of the first task (default 0)")
    add(
        "--tasks",
        type=Path,
        metavar="FILE",
        help="the tasks, in place of --repeat and --task-index: AgentEval's JSON, or one id or range per "
        "line; or such ids themselves, with commas between",
    )
    add("--seed", type=int, help="random seed of the agent (default 0)")
    add_change_options(group)
    add("--allow-longer", action="store_true", help="let --max-rounds and --max-duration exceed the profile's limits")
    add(
        "--until-width",
        type=rate,
        metavar="W",
        help="stop before --repeat tasks once the 95%% interval of the success rate is at most W wide, e.g. 0.2",
    )
    add("--tracing", choices=["off", "episode", "full"], help="detail of the trace (default: from the profile)")
    add("--compat", action="store_true", help="use AgentGym's rules with their quirks (default: strict rules)")
    if dry_run:
        add(
            "--dry-run",
            action="store_true",
            help="check whether the run would work, without prompting a model or storing anything",
        )


def add_change_options(group: argparse._ActionsContainer) -> None:
    """Add what may also be changed while a batch plays."""
    add = group.add_argument
    add("--concurrency", type=at_least(1), metavar="N", help="number of parallel episodes (default: from the profile)")
    add(
        "--workers",
        type=workers,
        metavar="N|ray",
        help="processes that play the episodes: N on this machine, 0 for this process alone, or a Ray cluster "
        "(default: from the profile, else as many as CPU cores if --concurrency is above 1)",
    )
    add(
        "--max-rounds",
        type=at_least(1),
        metavar="N",
        help="round limit per episode (default and maximum: the profile's)",
    )
    add(
        "--max-duration",
        type=positive_seconds,
        metavar="SEC",
        help="time limit per episode (default and maximum: the profile's)",
    )
    add(
        "--budget-cost",
        type=positive_number,
        metavar="COST",
        help="stop a batch once its episodes cost as much, by the profile's prices",
    )
    add("--budget-tokens", type=at_least(1), metavar="N", help="stop a batch once its episodes used as many tokens")
    add("--budget-errors", type=at_least(1), metavar="N", help="stop a batch after N episodes with an error in a row")


def _add_results_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options of --results (--agent and --model select episodes, too)")
    group.add_argument("--env", metavar="ENV", help="show only this environment")
    group.add_argument("--batch", metavar="ID", help="show only this batch or battery")
    group.add_argument("--matrix", action="store_true", help="show tasks and attempts, with pass@k and pass^k")
    group.add_argument(
        "--fail-below", type=rate, metavar="RATE", help="exit with 3 if a success rate is lower; from 0 to 1"
    )
    group.add_argument(
        "--against",
        "--baseline",
        metavar="ID",
        help="compare task by task with this batch or battery; exit with 3 if more were lost than won (p <= 0.05); "
        "--baseline is the earlier name",
    )
    group.add_argument(
        "--score",
        choices=["reward", "agentgym"],
        help="what tables and conditions count: the sum of rewards and the environment's verdict (default), or what "
        "AgentGym's Evaluator would: the last reward, and success only at the full score",
    )
    group.add_argument("--allow-mixed", action="store_true", help="compare also what a fallback's model answered")


def add_endpoint_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--endpoint", metavar="URL", help="use exactly this model server instead of the profile's, with --model"
    )
    group.add_argument(
        "--key-env", metavar="NAME", help="environment variable that holds the key of --endpoint (never the key itself)"
    )


def subcommand_parser(name: str, description: str, *, epilog: str = "") -> SafeArgumentParser:
    """Return the parser of a subcommand without options; an ``epilog`` of several lines is printed as it is."""
    formatter = argparse.RawDescriptionHelpFormatter if "\n" in epilog else argparse.HelpFormatter
    program = f"agentgym-runner {name}"
    return SafeArgumentParser(program, None, description, epilog, formatter_class=formatter, allow_abbrev=False)


def add_state_options(parser: argparse._ActionsContainer, *, json: str = "") -> None:
    """Add ``--config`` and ``--data-dir``, and ``--json`` if it has a help text."""
    parser.add_argument("--config", metavar="NAME|PATH", help="profile (default field-runner-4090)")
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="state directory (default: ./data in a checkout, else the platform's data folder)",
    )
    if json:
        parser.add_argument("--json", action="store_true", help=json)


def add_bus_option(parser: argparse._ActionsContainer, help_text: str) -> None:
    parser.add_argument("--nats", metavar="URL", help=f"{help_text}, or ssh://HOST")
    parser.add_argument(
        "--remote-command",
        metavar="CMD",
        help="the runner there, for ssh:// (default agentgym-runner)",
    )


def checked(
    convert: Callable[[str], T], is_valid: Callable[[T], bool], problem: str, name: str = ""
) -> Callable[[str], T]:
    """Return the type of an option; ``name`` is that of the type in the message of a text that is no number."""

    def number(text: str) -> T:
        value = convert(text)
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"{text} {problem}")
        return value

    number.__name__ = name
    return number


def at_least(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    if maximum is None:
        return checked(int, lambda value: value >= minimum, f"is below {minimum}", "whole number")
    return checked(
        int, lambda value: minimum <= value <= maximum, f"is not from {minimum} to {maximum}", "whole number"
    )


def _is_positive(value: float) -> bool:
    return value > 0 and math.isfinite(value)


positive_seconds = checked(float, _is_positive, "is not a positive number of seconds", "positive_seconds")
positive_number = checked(float, _is_positive, "is not a positive number", "positive_number")
rate = checked(float, lambda value: 0 <= value <= 1, "is not between 0 and 1", "rate")
port = checked(int, lambda value: 0 <= value <= 65535, "is not a port from 0 to 65535", "port")
"""The value 0 selects a free port."""


def workers(text: str) -> Workers:
    if text == "ray":
        return "ray"
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(MAX_WORKERS)) or int(text) > MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is neither a number from 0 to {MAX_WORKERS} nor ray")
    return int(text)


def add_server_options(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1); others require --token")
    add("--token", metavar="NAME|@FILE", help="require the token in this environment variable or private file")
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional host name of this server; repeatable",
    )
