"""Rows of the steps of an episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from agentgym_tui.presenters.annotations import MARK
from agentgym_tui.presenters.answering_endpoint import FALLBACK_MARK, MIN_SILENCE_S
from agentgym_tui.presenters.are_blocks import app_and_function, is_are
from agentgym_tui.presenters.cells import Cell, Column, Line, Tone
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_reward,
    format_time_left,
)
from agentgym_tui.presenters.text_width import cut_start, display_width
from agentgym_tui.state.episode import Episode, StepState, StreamingAnswer
from runner.types import ActionContent

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
"""Total width of the step number, the space before the action, and the warning sign for unsafe characters."""


class StepRows:
    """Steps of an episode as rows of ``columns``; consecutive steps that were not received form one row, a gap.

    While the model answers in a running episode, the last row shows the streaming answer of the step in progress.

    Args:
        episode: the episode.
        waiting_s: returns for how many seconds the endpoint of the streaming answer has sent nothing; None if that is
            not known.
    """

    def __init__(self, episode: Episode, waiting_s: Callable[[], float | None] = lambda: None) -> None:
        self._waiting_s = waiting_s
        self._is_are = is_are(episode.env)
        self._noted = {note.step for note in episode.notes}
        self._rows: list[StepState | tuple[int, int]] = []
        next_index = 0
        for step in episode.steps:
            if step.index > next_index:
                self._rows.append((next_index, step.index))
            self._rows.append(step)
            next_index = step.index + 1
        if self._rows and not episode.running and episode.rounds > next_index:
            self._rows.append((next_index, episode.rounds))
            next_index = episode.rounds
        self._streaming = episode.streaming if episode.running else None
        self._next_index = next_index

    @property
    def columns(self) -> Sequence[Column]:
        """``STEP_COLUMNS``, the first with room for the highest step number."""
        return (STEP_COLUMNS[0]._replace(width=max(4, len(str(self._next_index)))), *STEP_COLUMNS[1:])

    def __len__(self) -> int:
        """Return the number of rows: steps, gaps, and the step in progress if there is one."""
        return len(self._rows) + (self._streaming is not None)

    def key(self, index: int) -> str:
        """Return the step index as text; for a gap, ``gap`` followed by the index of the first missing step."""
        row = self._rows[index] if index < len(self._rows) else None
        return str(self._next_index if row is None else row.index) if not isinstance(row, tuple) else f"gap{row[0]}"

    def step(self, index: int) -> StepState | None:
        """Return the step in a row; None for a gap or the step in progress."""
        row = self._rows[index] if 0 <= index < len(self._rows) else None
        return row if isinstance(row, StepState) else None

    def line(self, index: int, width: int) -> Line:
        """Return the cells of a row, one per table column.

        The text of a gap or of a streaming answer spans the remaining columns.
        """
        row = self._rows[index] if index < len(self._rows) else None
        match row:
            case StepState():
                text = app_call_text(row.action) if self._is_are else action_text(row.action)
                return _step_row(row, text, is_noted=row.index in self._noted)
            case (first, after):
                return _spanning_row(f"{first}…", f"{format_count(after - first)} rounds not received", "warn")
            case _:
                return _spanning_row(
                    str(self._next_index),
                    _streaming_text(self._streaming or StreamingAnswer(), width, self._waiting_s()),
                    "accent",
                )


def action_text(action: ActionContent) -> str:
    """Return the text of an action; without text, return its tool calls. The result is untrusted text."""
    if action.text and action.text.strip():
        return action.text.strip()
    return ", ".join(f"{call.name} {call.arguments[:200]}" for call in action.tool_calls[:5])


def app_call_text(action: ActionContent) -> str:
    """Return the tool call of an ARE step with its app and function, or its text; untrusted text."""
    if not action.tool_calls:
        return action_text(action)
    call = action.tool_calls[0]
    return f"{app_and_function(call.name)} {call.arguments[:200]}"


def _step_row(step: StepState, shown: str, *, is_noted: bool) -> Sequence[Cell]:
    text = shown or "(nothing)"
    text = f"{MARK} {text}" if is_noted else text
    text = f"{FALLBACK_MARK} {text}" if step.skipped_endpoints else text
    action = Cell(text)
    if not step.valid or step.refused:
        mark = "✗ refused: " if step.valid else "✗ invalid: "
        action = Cell(f"{mark}{text}", "warn" if step.valid else "bad")
    tokens = f"{format_count(step.tokens.prompt)}+{format_count(step.tokens.completion)}" if step.tokens else UNKNOWN
    return [
        Cell(str(step.index), "dim"),
        action,
        Cell(format_reward(step.reward), _reward_tone(step.reward)),
        Cell("done", "accent") if step.done else Cell(""),
        Cell(format_duration(step.model_s)),
        Cell(format_duration(step.env_s)),
        Cell(tokens, "dim"),
    ]


def _streaming_text(answer: StreamingAnswer, width: int, waiting_s: float | None) -> str:
    """Return the end of a streaming answer; before the first token, name the endpoint that has not answered yet."""
    call = answer.calls[-1] if answer.calls else None
    tail = answer.text or answer.reasoning if call is None else f"{call.tool} {call.arguments}"
    tail = tail[-2 * width :].strip().replace("\n", " ")
    if not tail:
        seconds = "" if waiting_s is None or waiting_s < MIN_SILENCE_S else f" · {format_time_left(waiting_s)}"
        tail = f"waiting for {answer.endpoint}{seconds}" if answer.endpoint else ""
    thinking = "thinking: " if answer.reasoning and not answer.text and call is None else ""
    prefix = "".join([*[FALLBACK_MARK, " "] * bool(answer.skipped_endpoints), thinking])
    text = cut_start(f"… {tail}", max(width - _NUMBER_WIDTH - display_width(prefix), 0))
    return f"{prefix}{text}"


def _reward_tone(value: float) -> Tone:
    return "good" if value > 0 else "bad" if value < 0 else "dim"


def _spanning_row(number: str, text: str, tone: Tone) -> list[Cell]:
    return [Cell(number, "dim"), Cell(text, tone)]
