"""``agentgym-runner tasks``: the tasks of an environment, and what a number or an id of AgentGym means."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import Any, Final

from runner.cli.arguments import at_least, subcommand_parser
from runner.cli.reports import log_to_stderr
from runner.cli.terminal import print_json, print_stderr, print_table
from runner.envs.base import AS_PUBLISHED, data_label_of
from runner.envs.placement import find_environment
from runner.errors import ConfigError
from runner.formats.task_files import group_tasks
from runner.types import Mode, agentgym_item_id
from runner.util.display_text import one_line

DEFAULT_LIMIT: Final = 20
MAX_CHARS: Final = 120
_LEVELS: Final = 40
"""Number of BabyAI's levels: task ``i`` is level ``i % 40 + 1`` with the seed ``i // 40``."""
_GOALS: Final = {
    "BabyAI": re.compile(r"Your goal: (.*)"),
    "TextCraft": re.compile(r"Goal: (.*)"),
    "ALFWorld": re.compile(r"Your task is to: (.*)"),
    "WebShop": re.compile(r"Instruction: (?:\[SEP\] )?(.*?)(?: \[SEP\]|$)"),
}
"""Where the first observation has the goal of the task; elsewhere its last line is shown."""


def main_tasks(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(argv)
    log_to_stderr()
    env = find_environment(options.env)
    if not env.is_built_in or env.family is not None:
        raise ConfigError(f"{env.name} is not an environment of this package; --tasks takes its numbers all the same")
    if not env.is_installed:
        raise ConfigError(
            f"{env.name} is played on a server alone, which has its tasks; give numbers to --tasks all the same"
        )
    mode: Mode = "compat" if options.compat else "strict"
    environment = env.load()(mode=mode)
    n_tasks = int(environment.n_tasks)
    given = group_tasks(options.task, env.name, "the command line").get(env.name.lower(), ())
    if unknown := [number for number in given if number >= n_tasks]:
        raise ConfigError(f"{env.name} has the tasks 0 to {n_tasks - 1}; there is no task {unknown[0]}")
    tasks = list(_explained(env.name, environment, given or range(min(options.limit, n_tasks))))
    label = data_label_of(env.name, os.environ, mode)
    if options.json:
        print_json({"env": env.name, "mode": mode, "data_label": label, "n_tasks": n_tasks, "tasks": tasks})
        return 0
    rows = [(str(each["task"]), each["id"], each["about"]) for each in tasks]
    print_table(f"{env.name} ({mode} rules, {label or AS_PUBLISHED})", ("task", "AgentGym's id", "what"), rows)
    print_stderr(f"{n_tasks:,} tasks in all" + ("" if given else "; give numbers or ids to explain others"))
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "tasks",
        "List the tasks of an environment, or explain some of them: the goal of each, and its id in "
        "AgentGym's files. --tasks FILE of a run takes the same numbers and ids.",
    )
    parser.add_argument("env", metavar="ENV", help="environment (case-insensitive)")
    parser.add_argument("task", metavar="TASK", nargs="*", help="a number, a range such as 3-7, or an id of AgentGym")
    parser.add_argument(
        "--limit",
        type=at_least(1),
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"list the first N tasks (default {DEFAULT_LIMIT})",
    )
    parser.add_argument("--compat", action="store_true", help="the tasks with AgentGym's rules")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    return parser


def _explained(env: str, environment: Any, tasks: Iterable[int]) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    with closing(environment) if hasattr(environment, "close") else nullcontext():
        for number in tasks:
            text = str(environment.reset(task_index=number)[-1]["content"])
            found = pattern.search(text) if (pattern := _GOALS.get(env)) else None
            goal = found[1] if found else text.strip().rpartition("\n")[2]
            yield {
                "task": number,
                "id": agentgym_item_id(env, number) or "",
                "about": one_line(" · ".join([*_details(env, environment, number), goal]), MAX_CHARS),
            }


def _details(env: str, environment: Any, number: int) -> Iterator[str]:  # noqa: ANN401
    if env == "BabyAI":
        yield f"level {number % _LEVELS + 1}, seed {number // _LEVELS}"
    if env == "ALFWorld":
        yield str(environment.task_type)
