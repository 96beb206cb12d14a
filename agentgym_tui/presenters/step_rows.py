"""The live screen's tables as lines of safe text; what is above and below them is in ``status`` and ``live``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Column, Line, Tone, flag_unsafe, unsafe_texts
from agentgym_tui.presenters.model_answer import FALLBACK_MARK
from agentgym_tui.presenters.number_format import UNKNOWN, format_count, format_duration, format_reward
from agentgym_tui.presenters.text_width import cut_start, display_width
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted
from agentgym_tui.state.models import Episode, StepState, StreamingAnswer
from runner.types import Action

STEP_COLUMNS: Final = (
    Column("#", 4, right=True),
    Column("action", None, min_width=24),
    Column("reward", 8, right=True, rank=1),
    Column("done", 4, rank=3),
    Column("model", 7, right=True, rank=2),
    Column("env", 7, right=True, rank=4),
    Column("tokens", 11, right=True, rank=5),
)

_NUMBER_WIDTH: Final = 8
"""Columns of a step's number, between it and its action, and of the sign of hostile bytes."""


class StepRows:
    """The steps of an episode as rows of ``STEP_COLUMNS``; where steps are missing a row says so.

    The last row of an episode that runs is the step that is being played, once a model has begun to answer.
    """

    def __init__(self, episode: Episode) -> None:
        """As it is now."""
        self._rows: list[StepState | tuple[int, int]] = []
        following = 0
        for step in episode.steps:
            if step.index > following:
                self._rows.append((following, step.index))
            self._rows.append(step)
            following = step.index + 1
        if self._rows and not episode.running and episode.rounds > following:
            self._rows.append((following, episode.rounds))
            following = episode.rounds
        self._streaming = episode.streaming if episode.running else None
        self._following = following

    def __len__(self) -> int:
        """Steps, gaps, and the step that is being played."""
        return len(self._rows) + (self._streaming is not None)

    def key(self, index: int) -> str:
        """The step's number; another kind of text for a gap."""
        row = self._rows[index] if index < len(self._rows) else None
        return str(self._following if row is None else row.index) if not isinstance(row, tuple) else f"gap{row[0]}"

    def step(self, index: int) -> StepState | None:
        """The step of a row; None for a gap and for the step that is being played."""
        row = self._rows[index] if 0 <= index < len(self._rows) else None
        return row if isinstance(row, StepState) else None

    def line(self, index: int, width: int) -> Line:
        """A cell per column."""
        row = self._rows[index] if index < len(self._rows) else None
        match row:
            case StepState():
                return _step_row(row, unsafe_step_text(row))
            case (first, after):
                return _spanning_row(
                    trusted(f"{first}…"), trusted(f"{format_count(after - first)} rounds did not get here"), "warn"
                )
            case _:
                return _spanning_row(
                    trusted(str(self._following)),
                    _streaming_text(self._streaming or StreamingAnswer(), width),
                    "accent",
                )


def action_text(action: Action) -> str:
    """What an agent did, in short, hostile text: its text, else the calls it made."""
    if action.text and action.text.strip():
        return action.text.strip()
    return ", ".join(f"{call.name} {call.arguments[:200]}" for call in action.tool_calls[:5])


def unsafe_step_text(step: StepState) -> str | None:
    """What is shown of a step, as it came, where cleaning changes it."""
    return unsafe_texts([action_text(step.action)])


def unsafe_episode_text(episode: Episode) -> str | None:
    """What is shown of an episode beside its steps, as it came, where cleaning changes it."""
    return unsafe_texts([episode.env, episode.agent, episode.model or "", episode.data_label, episode.error_type or ""])


def _step_row(step: StepState, hostile: str | None) -> Sequence[Cell]:
    text = flag_unsafe(sanitize_line(action_text(step.action)) or trusted("(nothing)"), hostile)
    text = join([FALLBACK_MARK, trusted(" "), text]) if step.skipped_endpoints else text
    action = Cell(text) if step.valid else Cell(join([trusted("✗ invalid: "), text]), "bad")
    tokens = (
        trusted(f"{format_count(step.tokens.prompt)}+{format_count(step.tokens.completion)}")
        if step.tokens
        else UNKNOWN
    )
    return [
        Cell(format_count(step.index), "dim"),
        action,
        Cell(format_reward(step.reward), _reward_tone(step.reward)),
        Cell(trusted("done"), "accent") if step.done else Cell(trusted("")),
        Cell(format_duration(step.model_s)),
        Cell(format_duration(step.env_s)),
        Cell(tokens, "dim"),
    ]


def _streaming_text(answer: StreamingAnswer, width: int) -> SafeText:
    """The newest of an answer that comes; before there is any, who is asked for it."""
    call = answer.calls[-1] if answer.calls else None
    newest = answer.text or answer.reasoning if call is None else f"{call.tool} {call.arguments}"
    newest = newest[-2 * width :].strip().replace("\n", " ")
    if not newest:
        newest = f"asking {answer.endpoint}" if answer.endpoint else ""
    thinks = trusted("thinks: " if answer.reasoning and not answer.text and call is None else "")
    before = join([*[FALLBACK_MARK, trusted(" ")] * bool(answer.skipped_endpoints), thinks])
    text = cut_start(
        join([trusted("… "), sanitize_line(newest, 1_000)]), max(width - _NUMBER_WIDTH - display_width(before), 0)
    )
    return flag_unsafe(join([before, text]), unsafe_texts([newest]))


def _reward_tone(value: float) -> Tone:
    return "good" if value > 0 else "bad" if value < 0 else "dim"


def _spanning_row(number: SafeText, text: SafeText, tone: Tone) -> list[Cell]:
    """The text takes the whole of the line."""
    return [Cell(number, "dim"), Cell(text, tone)]
