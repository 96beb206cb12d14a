"""What an interrupted batch left unplayed, and the commands that play it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec, PlannedEpisode
from runner.cli.terminal import print_stderr

MAX_COMMANDS = 3
"""Maximum number of commands to print; one command plays consecutive tasks."""
_REPLACED_OPTIONS = ("--run", "--battery", "--task-index", "--repeat", "--tasks")


_ADVICE = {
    "resources": "Free what ran out",
    "budget": "Give another budget if you like",
    "workers": "See the log for the cause, or give --workers 0",
}
"""Next step by the cause of an interruption."""


def report_remaining(spec: BatchSpec, result: BatchResult, argv: Sequence[str]) -> None:
    left = remaining_episodes(spec, result)
    print_stderr(f"{spec.env}: interrupted: {result.interruption}")
    commands = commands_for(spec, left, argv)
    n_again = spec.attempts * len({planned.task_index for planned in left}) - len(left)
    again = f" (which plays {n_again} attempts again)" if n_again else ""
    left_of = f"{len(left)} of {spec.n_planned} episodes are left"
    advice = _ADVICE.get(result.interrupted_by or "", "Start the server again")
    print_stderr(f"{spec.env}: {left_of}. {advice}, then run{again}:")
    for command in commands[:MAX_COMMANDS]:
        print_stderr(f"  {command}")
    if (more := len(commands) - MAX_COMMANDS) > 0:
        print_stderr(f"  and {more} more; the episode files show which tasks were played")


def remaining_episodes(spec: BatchSpec, result: BatchResult) -> list[PlannedEpisode]:
    played = {(each.task_index, each.attempt) for each in result.episodes if not each.is_left}
    return [planned for planned in spec.plan() if (planned.task_index, planned.attempt) not in played]


def commands_for(spec: BatchSpec, left: Sequence[PlannedEpisode], argv: Sequence[str]) -> list[str]:
    options = ["agentgym-runner", *without_options(argv, _REPLACED_OPTIONS), "--run", spec.env]
    if spec.model is not None and (others := without_options(options, ("--model",))) != options:
        options = [*others, "--model", spec.model]
    if spec.tasks is not None:
        return [shlex.join([*options, "--tasks", ",".join(dict.fromkeys(str(each.task_index) for each in left))])]
    return [
        shlex.join([*options, "--task-index", str(first), "--repeat", str(n_tasks)])
        for first, n_tasks in _runs(sorted(planned.task_index for planned in left))
    ]


def _runs(tasks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first task and the number of tasks of each run of consecutive tasks, e.g. 3, 4, 7: (3, 2), (7, 1)."""
    runs: list[tuple[int, int]] = []
    for task in tasks:
        first, n_tasks = runs[-1] if runs else (task, 0)
        if task == first + n_tasks:
            runs[-1:] = [(first, n_tasks + 1)]
        elif task > first + n_tasks:
            runs.append((task, 1))
    return runs


def without_options(argv: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return arguments without these options and their values, given as ``--option VALUE`` or ``--option=VALUE``."""
    others: list[str] = []
    words = iter(argv)
    for word in words:
        if word in options:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            others.append(word)
    return others
