"""The evaluation report: AgentGym's score and success per environment, and why numbers differ from AgentEval's setting.

A result is comparable with published ones where data, rules, prompt, rounds and tasks are AgentGym's. Facts about
AgentEval: the numbers of tasks in its files, and the rounds in AgentGym's evaluation scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from runner.results.summary import EVERYTHING, ResultRow, ResultSource, Selection, selection_of, summarize_results
from runner.store.episode_file import shared_fields
from runner.types import MIX, Limits, Outcome
from runner.types.time_shares import percent_text
from runner.util.display_text import one_line, pluralize

AGENT: Final = "agentgym"
"""The agent with AgentGym's prompt and parsing."""


class EvalSetting(NamedTuple):
    n_tasks: int
    rounds: int


AGENTEVAL: Final = {
    "webshop": EvalSetting(200, 10),
    "maze": EvalSetting(25, 15),
    "wordle": EvalSetting(25, 8),
    "alfworld": EvalSetting(200, 30),
    "sciworld": EvalSetting(200, 30),
    "babyai": EvalSetting(90, 20),
    "textcraft": EvalSetting(100, 20),
    "sqlgym": EvalSetting(200, 1),
}
PUBLISHED_DATA: Final = ("", "ALFWorld data, AgentGym's numbers", "BIRD", "AgentGym recipes")
"""Data labels of AgentGym's tasks; see ``runner.envs.base``."""


class EvalRow(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of one player in one environment.

    Attributes:
        n: number of episodes, of which ``n_rated`` count; ``n_tasks`` is the number of different tasks.
        score: mean of AgentGym's score, and ``success_rate`` the share of AgentGym's successes, with its 95% interval.
        rounds: mean number of rounds; ``max_rounds`` is the limit they were played with.
        transports: how the environment was played: ``embedded``, ``http``, ``import``.
        versions: versions of packages with which the newest episode was played; empty if they were not read.
        differences: what makes the numbers not comparable with AgentEval's.
    """

    env: str
    agent: str
    model: str | None
    n: int
    n_rated: int
    n_tasks: int
    score: float | None
    success_rate: float | None
    interval: tuple[float, float] | None
    rounds: float | None
    n_errors: int
    mode: str
    data_label: str
    transports: tuple[str, ...]
    max_rounds: int
    limits: str
    versions: dict[str, str]
    differences: tuple[str, ...]


def evaluate(
    source: ResultSource,
    selection: Selection = EVERYTHING,
    versions: Callable[[str], dict[str, str]] = lambda _episode_id: {},
) -> list[EvalRow]:
    """Return one row per environment, data, rules, limits and player."""
    rows = summarize_results(source, selection, score="agentgym")
    return [_eval_row(row, _played(source, selection, row), versions) for row in rows]


class _Played(NamedTuple):
    n_tasks: int
    transports: tuple[str, ...]
    newest: str


def _played(source: ResultSource, selection: Selection, row: ResultRow) -> _Played:
    condition, parameters = selection_of(row, selection).condition()
    query = f"SELECT transport, task_index, max(episode_id) FROM episodes WHERE {condition} GROUP BY 1, 2"
    found = source.select(query, parameters)
    transports = sorted({str(transport) for transport, _, _ in found})
    return _Played(len({task for _, task, _ in found}), tuple(transports), max(str(newest) for *_, newest in found))


def _eval_row(row: ResultRow, played: _Played, versions: Callable[[str], dict[str, str]]) -> EvalRow:
    max_rounds = _max_rounds(row.limits)
    return EvalRow(
        **shared_fields(row, EvalRow),
        n_tasks=played.n_tasks,
        interval=row.success_interval,
        rounds=row.avg_rounds,
        transports=played.transports,
        max_rounds=max_rounds,
        versions=versions(played.newest),
        differences=tuple(_differences(row, played.n_tasks, max_rounds)),
    )


def _max_rounds(limits: str) -> int:
    number, _, unit = limits.partition(" ")
    return int(number) if unit.startswith("round") and number.isdecimal() else Limits().max_rounds


def _differences(row: ResultRow, n_tasks: int, max_rounds: int) -> Iterator[str]:
    if (setting := AGENTEVAL.get(row.env.lower())) is None:
        yield "AgentEval has no such environment"
        return
    if row.agent != AGENT:
        yield f"prompt and parsing are those of the agent {row.agent}, not AgentGym's"
    if row.mode == "strict":
        yield "strict rules, not AgentGym's"
    if row.data_label not in PUBLISHED_DATA:
        yield f"data: {row.data_label}"
    if max_rounds != setting.rounds:
        yield f"{pluralize(max_rounds, 'round')} instead of {setting.rounds}"
    if n_tasks != setting.n_tasks:
        yield f"{pluralize(n_tasks, 'task')} instead of {setting.n_tasks}"
    if row.model is not None and MIX in row.model:
        yield "a fallback answered"
    if row.shape:
        yield f"the server refused a part of the requests ({row.shape})"
    if n_timeouts := row.outcomes.get(Outcome.TIMEOUT, 0):
        yield f"{pluralize(n_timeouts, 'episode')} ended at the time limit"
    if n_unrated := row.n - row.n_rated:
        yield f"{pluralize(n_unrated, 'episode')} did not end with a result and is not counted"


COLUMNS: Final = ("Environment", "Player", "n", "Score", "Success", "95% interval", "Rounds", "Errors", "Setting")
_ESCAPED: Final = str.maketrans({each: f"\\{each}" for each in "\\`*_[]<>|"})
_LATEX: Final = str.maketrans(
    {each: f"\\{each}" for each in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def cells(row: EvalRow) -> list[str]:
    """Names come from outside."""
    return [
        one_line(row.env, 40),
        one_line(" ".join(filter(None, (row.agent, row.model))), 80),
        str(row.n),
        _number(row.score),
        _percent(row.success_rate),
        "-" if row.interval is None else f"{_percent(row.interval[0])} to {_percent(row.interval[1])}",
        _number(row.rounds),
        str(row.n_errors),
        one_line(", ".join(setting(row)), 200),
    ]


def setting(row: EvalRow) -> list[str]:
    data = row.data_label or "data as published"
    versions = [f"{name} {version}" for name, version in row.versions.items()]
    return [*row.transports, row.mode, data, f"at most {pluralize(row.max_rounds, 'round')}", *versions]


def markdown(rows: Sequence[EvalRow]) -> list[str]:
    """Names are escaped."""
    table = [COLUMNS, ["---"] * len(COLUMNS), *([cell.translate(_ESCAPED) for cell in cells(row)] for row in rows)]
    lines = [f"| {' | '.join(line)} |" for line in table]
    return [*lines, "", *(f"- {line.translate(_ESCAPED)}" for line in _notes(rows))]


def latex(rows: Sequence[EvalRow]) -> list[str]:
    """Names are escaped; the notes are below a ``tabular``."""
    table = [COLUMNS, *map(cells, rows)]
    lines = [" & ".join(cell.translate(_LATEX) for cell in line) + r" \\" for line in table]
    head, *body = lines
    tabular = [r"\begin{tabular}{llrrrrrrl}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
    return [*tabular, *(rf"\par {line.translate(_LATEX)}" for line in _notes(rows))]


def _notes(rows: Iterable[EvalRow]) -> Iterator[str]:
    yield (
        "Score and success as AgentGym's Evaluator computes them: the reward of the last reply; success only at "
        "exactly 1 (SciWorld: 100). Success has a 95% Wilson interval."
    )
    for row in rows:
        name = one_line(" ".join(filter(None, (row.env, row.agent, row.model))), 120)
        if row.differences:
            yield f"{name}: not comparable with AgentEval because: {one_line('; '.join(row.differences), 400)}"
        else:
            yield f"{name}: AgentEval's setting; check that the tasks are those of its file"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else percent_text(rate, 1)
