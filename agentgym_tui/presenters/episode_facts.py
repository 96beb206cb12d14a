"""An episode in words and rows: who answered, how fast, at which cost; its steps, spans, pictures, flags and notes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, cast

import msgspec

from agentgym_tui.presenters.cells import (
    FOLD_WIDTH,
    Cell,
    Column,
    Line,
    Tone,
    cost_part,
    cut,
    cut_line,
    cut_start,
    display_width,
    line_width,
    wrap_offsets,
)
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_rate,
    format_reward,
    format_time,
    format_time_left,
    pluralize,
)
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.episode import Episode, StepState, StreamingAnswer
from agentgym_tui.state.episode_list import ListedEpisode
from agentgym_tui.state.servers import EndpointState, Failover
from runner.results.bottleneck import Bottleneck
from runner.types import CellRow, Phases, Span, Tokens, unpack_cells
from runner.types.cells import MAX_COLUMNS
from runner.types.notes import Note
from runner.types.time_shares import time_shares

FALLBACK_MARK: Final = "↷"  # marks an answer that did not come from the first endpoint of the chain
MARK: Final = "✎"  # mark of what has a note or a tag
FLAG_MARK: Final = "⚑"
MAX_TAGS: Final = 20  # largest number of tags of an episode that are shown
MIN_SILENCE_S: Final = 2.0  # seconds without a token from which on they are counted; between two tokens fewer are usual
MIN_SHOWN_S: Final = 0.001  # seconds from which on a part of a step is shown, unless it is a part of the answer
_MAX_SENTENCE: Final = 300
_MAX_NAME: Final = 40
_MAX_REASON: Final = 120

STEP_COLUMNS: Final = (
    Column("#", 4, right=True),
    Column("action", None, min_width=24),
    Column("reward", 8, right=True, rank=1, most=8),
    Column("done", 4, rank=3),
    Column("model", 7, right=True, rank=2, most=7),
    Column("env", 7, right=True, rank=4, most=7),
    Column("tokens", 11, right=True, rank=5, most=11),
)
MAX_INDENT: Final = 12  # depth in the tree of spans from which on rows are not indented further
_STEP_NUMBERS: Final = ("index", "timestep_idx")  # attributes of the span of a step that may have its number
MIN_LABELS: Final = 30  # columns from which on a time axis has a label in the middle
_NUMBER_WIDTH: Final = 8  # of the step number, the space before the action, and the sign for unsafe characters
_TONES: Final[dict[str, Tone]] = {
    **dict.fromkeys(("agent", "model", "inference"), "cyan"),
    "environment": "accent",
    "queue": "blue",
    "prefill": "purple",
    "decode": "good",
}
"""By the category of a span; of the parts of an answer, which have the category ``inference``, by their names."""
_LEGEND: Final[tuple[str, ...]] = ("queue", "prefill", "decode", "environment")
_EIGHTHS: Final = ("", *"▏▎▍▌▋▊▉")
_MAX_NS: Final = 2**63  # largest absolute value of a timestamp, in nanoseconds; a larger one is clamped
_MIN_WIDTH: Final = 8  # columns below which a line of a picture is cut, because its rows would be too short to read
NO_PICTURE: Final[list[Line]] = [
    [Cell("No picture of the environment.", "dim")],
    [],
    [Cell("It draws none, or none was recorded. For agents without a", "dim")],
    [Cell("model, and for servers, the profile has to set", "dim")],
    [Cell("episode.world: true before the episode starts.", "dim")],
]
NO_STEP_YET: Final[list[Line]] = [[Cell("No step yet. Pictures come with the steps, if they are recorded.", "dim")]]


def streaming_parts(answer: StreamingAnswer, waiting_s: float | None = None) -> list[Line]:
    """Describe an answer while it is streamed; ``waiting_s``: for how long the endpoint has sent nothing, if known."""
    seconds = "" if waiting_s is None or waiting_s < MIN_SILENCE_S else format_time_left(waiting_s)
    silence: Line = [Cell(f"silent {seconds}", "warn")] if seconds else []
    if not answer.n_tokens:
        silence = [Cell(f"waiting {seconds}" if seconds else "no answer yet", "dim")]
    rate = answer.tokens_per_s
    return [
        _endpoint_part(answer.endpoint, answer.skipped_endpoints),
        silence,
        [Cell(f"≈ {format_rate(rate)} tokens/s", "accent")] if rate is not None else [],
        _first_token(answer.ttft_s),
    ]


def answer_parts(episode: Episode, index: int, waiting_s: float | None = None) -> list[Line]:
    """Describe the answer of the step with this index; for an unfinished step, the streaming answer if there is one."""
    step = next((step for step in reversed(episode.steps) if step.index == index), None)
    if step is None:
        return streaming_parts(episode.streaming, waiting_s) if episode.streaming is not None else []
    return [
        _endpoint_part(step.endpoint, step.skipped_endpoints) if step.endpoint else [],
        [Cell(f"{format_rate(step.tokens_per_s)} tokens/s")] if step.tokens_per_s is not None else [],
        _first_token(step.ttft_s),
        cost_part(step.cost, episode.currency),
    ]


def fallback_note(episode: Episode) -> Line:
    """Return which endpoint answers instead of failed ones, now or in the newest step; empty if the first one does."""
    answer = episode.streaming
    if answer is not None and answer.failures:
        if answer.endpoint is None:
            return _endpoint_part(None, ["failed"])
        endpoint, failed = answer.endpoint, answer.skipped_endpoints
    elif answer is None and episode.steps and (answered := episode.steps[-1].endpoint) is not None:
        endpoint, failed = answered, episode.steps[-1].skipped_endpoints
    else:
        return []
    return [Cell(f"{FALLBACK_MARK} {_names([endpoint])} instead of {_names(failed)}", "warn")] if failed else []


def failover_text(failover: Failover) -> str:
    env, endpoint = failover.env or "?", _names([failover.endpoint])
    if not failover.failed:
        return f"{env}: {endpoint} responds again"
    reason = f" ({masked_line(failover.reason, _MAX_REASON)})" if failover.reason else ""
    return f"{env}: {_names(failover.failed)} failed{reason}; using {endpoint}"


def endpoint_state(endpoint: EndpointState) -> str:
    if endpoint.status in ("down", "wrong") or endpoint.is_answering:
        return endpoint.status
    return (
        "cooling down" if endpoint.rest_s is not None else "failed" if endpoint.failure is not None else "not checked"
    )


def tokens_text(tokens: Tokens) -> str:
    prompt, completion = f"{format_count(tokens.prompt)} prompt", f"{format_count(tokens.completion)} completion"
    cached = f" ({format_count(tokens.cached)} cached)" if tokens.cached else ""
    reasoning = f" ({format_count(tokens.reasoning)} reasoning)" if tokens.reasoning else ""
    return f"{prompt}{cached} + {completion}{reasoning} tokens"


def bottleneck_line(bottleneck: Bottleneck, width: int) -> Line:
    if not bottleneck.sentence:
        return []
    tone: Tone = "warn" if bottleneck.cause in ("queue", "endpoint") else "dim"
    return [Cell(cut(masked_line(bottleneck.sentence, _MAX_SENTENCE), width), tone)]


def phases_text(phases: Phases) -> str:
    """Describe the split of a step's time, e.g. ``queue about 1.2s · decode 3.0s · environment 4ms``."""
    about = "about " if phases.about else ""
    answer = (("queue", phases.queue), ("prefill", phases.prefill), ("decode", phases.decode))
    parts = [f"{name} {about}{format_duration(seconds)}" for name, seconds in answer if seconds is not None]
    unsplit = "before the first token" if parts else "model"
    rest = [(unsplit, phases.unsplit), ("environment", phases.env), ("own", phases.own)]
    before, *after = [f"{name} {format_duration(time)}" if time >= MIN_SHOWN_S else "" for name, time in rest]
    return " · ".join(filter(None, (before, *parts, *after)))


def shares_line(steps: Iterable[StepState]) -> Line:
    """Describe where the time of the steps went; an empty line for steps without a split."""
    text = time_shares(steps).text()
    return [Cell(f"time: {text}", "dim")] if text else []


def _endpoint_part(endpoint: str | None, skipped: Sequence[str]) -> Line:
    mark = [Cell(f"{FALLBACK_MARK} ", "warn")] if skipped else []
    if endpoint:
        return [*mark, Cell(_names([endpoint]))]
    return [Cell(f"{FALLBACK_MARK} no endpoint has answered", "warn")] if mark else []


def _first_token(seconds: float | None) -> Line:
    return [Cell(f"first token {format_duration(seconds)}", "dim")] if seconds is not None else []


def _names(endpoints: Sequence[str | None]) -> str:
    return masked_line(", ".join(dict.fromkeys(name[:200] for name in endpoints[:5] if name)), _MAX_NAME)


def note_title(note: Note, what: str = "") -> str:
    return " · ".join(filter(None, (f"{MARK}{what}", format_time(note.at), note.author)))


def note_line(note: Note) -> Line:
    return [Cell(f"{note_title(note)}  ", "dim"), Cell(note.text)]


def tag_text(tags: Sequence[str]) -> str:
    return " ".join(f"#{tag}" for tag in tags[:MAX_TAGS])


def annotation_count(notes: Sequence[Note]) -> str:
    n = sum(note.kind == "note" for note in notes)
    return f"{MARK} {pluralize(n, 'note')}" if n else ""


def episode_flags(episode: ListedEpisode) -> Sequence[tuple[str, int | None]]:
    """Return the flags of an episode, each with the step where it begins if that is known."""
    if isinstance(episode, Episode):
        return episode.found_flags
    return [(name, None) for name in episode.flags.split(",")] if episode.flags else []


def is_are(env: str) -> bool:
    return env.lower().startswith("are:")


def app_and_function(name: str) -> str:
    """Return the name of a tool, ``App__function``, as ``App · function``; any other name as it is."""
    app, separator, function = name[:160].partition("__")
    return f"{app} · {function}" if separator and app and function else name


class StepRows:
    """Steps of an episode as rows of ``columns``; consecutive steps that were not received form one row, a gap.

    While the model answers in a running episode, the last row shows the streaming answer of the step in progress;
    ``waiting_s`` returns for how many seconds its endpoint has sent nothing, None if that is not known.
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
        """``STEP_COLUMNS``, the first with room for the highest step number and the mark of a note."""
        return (STEP_COLUMNS[0]._replace(width=max(4, len(str(self._next_index)) + 1)), *STEP_COLUMNS[1:])

    def __len__(self) -> int:
        return len(self._rows) + (self._streaming is not None)

    def key(self, index: int) -> str:
        row = self._rows[index] if index < len(self._rows) else None
        return f"gap{row[0]}" if isinstance(row, tuple) else str(self._next_index if row is None else row.index)

    def line(self, index: int, width: int) -> Line:
        row = self._rows[index] if index < len(self._rows) else None
        if isinstance(row, StepState):
            return _step_row(row, is_are=self._is_are, is_noted=row.index in self._noted)
        if row is not None:
            return [Cell(f"{row[0]}…", "dim"), Cell(f"{format_count(row[1] - row[0])} rounds not received", "warn")]
        text = _streaming_text(self._streaming or StreamingAnswer(), width, self._waiting_s())
        return [Cell(str(self._next_index), "dim"), Cell(text, "accent")]


def _step_row(step: StepState, *, is_are: bool, is_noted: bool) -> Line:
    calls = step.action.tool_calls
    if is_are and calls:
        text = f"{app_and_function(calls[0].name)} {calls[0].arguments[:200]}"
    else:
        text = (step.action.text or "").strip() or ", ".join(f"{it.name} {it.arguments[:200]}" for it in calls[:5])
    text = f"{FALLBACK_MARK} " * bool(step.skipped_endpoints) + (text or "(nothing)")
    action = Cell(text)
    if not step.valid:
        action = Cell(f"✗ invalid: {text}", "bad")
    elif step.refused:
        action = Cell(f"✗ refused: {text}", "warn")
    tokens = f"{format_count(step.tokens.prompt)}+{format_count(step.tokens.completion)}" if step.tokens else UNKNOWN
    return [
        Cell(f"{MARK}{step.index}") if is_noted else Cell(str(step.index), "dim"),
        action,
        Cell(format_reward(step.reward), "good" if step.reward > 0 else "bad" if step.reward < 0 else "dim"),
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
    prefix = f"{FALLBACK_MARK} " * bool(answer.skipped_endpoints) + thinking
    return prefix + cut_start(f"… {tail}", max(width - _NUMBER_WIDTH - display_width(prefix), 0))


class _SpanRow(NamedTuple):
    position: int
    depth: int
    attribute: str = ""  # part ``number`` of the texts of its attributes; "" in the row of the span itself
    number: int = 0


class SpanRows:
    """Spans in any order as rows of a tree, those at the positions ``opened`` with rows of their attributes.

    A span becomes a root if its parent is unknown or if it is part of a cycle.
    """

    def __init__(self, spans: Sequence[Span], opened: Collection[int] = (), step: int | None = None) -> None:
        """``step``: only the spans of this step, by default those of the whole episode."""
        self._spans, self.step = spans, step
        self._order: list[_SpanRow] = []
        walked = list(_walk_tree(spans) if step is None else _of_step(_walk_tree(spans), spans, step))
        for position, depth in walked:
            texts = attribute_texts(spans[position]) if position in opened else ()
            self._order += [_SpanRow(position, depth, text, number) for number, text in enumerate(["", *texts])]
        self.shown = [spans[position] for position, _ in walked]
        self._start = _clamp(min((span.start_ns for span in self.shown), default=0))
        self._total = max(_clamp(max((span.end_ns for span in self.shown), default=0)) - self._start, 1)

    def __len__(self) -> int:
        return len(self._order)

    def line(self, index: int, width: int) -> Line:
        return (self.name(index),) if self.is_attribute(index) else (self.name(index), self.duration(index))

    def key(self, index: int) -> str:
        """Return the id of a span and its position in the list; the untrusted id alone may not be unique."""
        row = self._order[index]
        key = f"{self._spans[row.position].id}.{row.position}"
        return f"{key}/{row.number}" if row.attribute else key

    def is_attribute(self, index: int) -> bool:
        return bool(self._order[index].attribute)

    def position(self, index: int) -> int | None:
        """Return the position of a row's span in the given list; None past the last row."""
        return self._order[index].position if index < len(self._order) else None

    def name(self, index: int) -> Cell:
        row = self._order[index]
        span = self._spans[row.position]
        indent = "  " * min(row.depth, MAX_INDENT)
        if row.attribute:
            return Cell(f"{indent}  · {row.attribute}", "dim")
        if "error" in span.attributes:
            return Cell(f"{indent}✗ {span.name} {span.attributes['error']}", "bad")
        return Cell(f"{indent}{span.name}")

    def bar(self, index: int, width: int) -> Cell:
        span = self._spans[self._order[index].position]
        start, end = _clamp(span.start_ns) - self._start, _clamp(span.end_ns) - self._start
        left = min(start * width // self._total, width - 1)
        full, rest = divmod(max(end - start, 0) * width * 8 // self._total, 8)
        shape = ("█" * full + _EIGHTHS[rest])[: width - left] or _EIGHTHS[1]
        kind = span.name if span.category == "inference" and span.name in _LEGEND else span.category
        tone: Tone = "bad" if "error" in span.attributes else _TONES.get(kind, "dim")
        return Cell(" " * left + shape, tone)

    def duration(self, index: int) -> Cell:
        span = self._spans[self._order[index].position]
        return Cell(format_elapsed(_clamp(span.end_ns) - _clamp(span.start_ns)))

    def axis(self, width: int) -> str:
        middle, end = format_elapsed(self._total // 2), format_elapsed(self._total)
        if not self.shown or width <= len(end):
            return ""
        left = f"0{middle:>{(width + len(middle)) // 2 - 1}}" if width >= MIN_LABELS else "0"
        return f"{left}{end:>{width - len(left)}}"


def trace_legend(width: int) -> Line:
    cells = [cell for name in (*_LEGEND, "agent") for cell in (Cell("█ ", _TONES[name]), Cell(f"{name} ", "dim"))]
    return cut_line([*cells, Cell("✗ ", "bad"), Cell("failed", "dim")], width)


def _of_step(walked: Iterable[tuple[int, int]], spans: Sequence[Span], step: int) -> Iterator[tuple[int, int]]:
    """Yield position and depth of the spans of a step, as ``walked`` has those of the whole episode."""
    top: int | None = None
    for position, depth in walked:
        if top is not None and depth <= top:
            top = None
        span = spans[position]
        if top is None and span.name == "timestep" and step in map(span.attributes.get, _STEP_NUMBERS):
            top = depth
        if top is not None:
            yield position, depth - top


def attribute_texts(span: Span) -> list[str]:
    """Return the attributes of a span as rows of untrusted text, broken after ``FOLD_WIDTH`` characters."""
    lines = [line for name, value in span.attributes.items() for line in f"{name}: {value}".split("\n")]
    return [line[at : at + FOLD_WIDTH] for line in lines for at in range(0, len(line), FOLD_WIDTH)]


def spans_with(spans: Sequence[Span], expression: re.Pattern[str]) -> set[int]:
    return {at for at, span in enumerate(spans) if any(map(expression.search, attribute_texts(span)))}


def spans_text(spans: Sequence[Span], *, raw: bool, step: int | None = None) -> str:
    """Return spans as an indented tree with durations; if ``raw``, return all fields of the spans as JSON."""
    rows = SpanRows(spans, step=step)
    if raw:
        from runner.util.safe_values import encode

        return encode(rows.shown).decode()
    return "\n".join(f"{rows.name(index).text}  {rows.duration(index).text}" for index in range(len(rows)))


def format_elapsed(ns: int) -> str:
    """Format a duration given in nanoseconds, such as ``12 µs``, ``3.4 ms`` and ``1.2 s``."""
    if ns < 1_000_000:
        return f"{max(ns, 0) / 1e3:.0f} µs"
    return f"{ns / 1e6:.1f} ms" if ns < 10_000_000 else format_duration(ns / 1e9)


def _clamp(ns: int) -> int:
    return max(-_MAX_NS, min(ns, _MAX_NS))


def _walk_tree(spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Yield position and depth of each span, a parent before its children, siblings by their start times."""
    by_start = sorted(range(len(spans)), key=lambda position: spans[position].start_ns)
    ids = {span.id for span in spans}
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for position in reversed(by_start):
        parent = spans[position].parent
        children[parent if parent in ids else None].append(position)
    visited: set[int] = set()
    for root in (*reversed(children[None]), *by_start):
        stack = [(root, 0)]
        while stack:
            position, depth = stack.pop()
            if position not in visited:
                visited.add(position)
                yield position, depth
                # popped: spans that share an id would list the same children once each
                stack += ((child, depth + 1) for child in children.pop(spans[position].id, ()))


def world_lines(packed: bytes, width: int = MAX_COLUMNS) -> list[Line]:
    """Return the lines of a picture as it is stored, wrapped to ``width`` columns; a note if there is none."""
    try:
        cells = unpack_cells(msgspec.json.decode(packed or b"null"))
    except (ValueError, RecursionError):
        cells = None
    if cells is None:
        return NO_PICTURE
    return [line for row in cells.rows for line in _wrapped(_picture_line(row), width)]


def world_at(episode: Episode, step: int, *, before: bool = False) -> bytes:
    """Return the stored picture of an episode after a step, or before it; empty if there is none."""
    shown = step - before
    if shown < 0:
        return episode.reset_world
    return next((each.world for each in reversed(episode.steps) if each.index == shown), b"")


def ended_step(episode: Episode, step: int) -> int:
    """Return a step, or the newest one that has ended while the model still answers; -1 is the reset."""
    return min(step, episode.last_step_index)


def step_world_lines(episode: Episode, step: int, width: int = MAX_COLUMNS, *, before: bool = False) -> list[Line]:
    """Return the picture of an episode after a step, or before it, wrapped to ``width``; a note if there is none."""
    if episode.running and not episode.steps and not episode.reset_world:
        return NO_STEP_YET
    return world_lines(world_at(episode, ended_step(episode, step), before=before), width)


def world_title(episode: Episode, step: int, key: str) -> Line:
    shown = ended_step(episode, step)
    when = "after the reset" if shown < 0 else f"after step {shown}"
    return [Cell("World", "head"), Cell(f" · {when} · {key}: transcript", "dim")]


def world_heading(step: int, key: str, *, before: bool) -> Line:
    """Return which picture is shown, and what the key ``key`` does; step -1 is the reset."""
    if step < 0:
        return [Cell("after the reset", "head")]
    shown, other = ("before", "after") if before else ("after", "before")
    return [Cell(f"{shown} step {step}", "head"), Cell(f" · {key}: {other} it", "dim")]


def has_pictures(episode: Episode) -> bool:
    return bool(episode.reset_world) or any(step.world for step in episode.steps)


def _picture_line(row: CellRow) -> Line:
    cells = [Cell(run.text, cast(Tone, f"{run.color}-{run.fill}" if run.fill else run.color)) for run in row]
    if display_width("".join(cell.text for cell in cells)) == line_width(cells):
        return cells
    # A terminal joins characters across runs, such as flags, so the runs would not be where they are drawn.
    return [Cell("".join(run.text for run in row))]


def _wrapped(line: Line, width: int) -> Iterator[Line]:
    """Yield the rows of a line; those that continue it are indented as it is."""
    text = "".join(cell.text for cell in line)
    indent = len(text) - len(text.lstrip(" "))
    if display_width(text) <= width or width - indent < _MIN_WIDTH:
        yield line
        return
    for start, stop in wrap_offsets(text[indent:], width - indent):
        yield [Cell(" " * indent), *part_of(line, indent + start, indent + stop)]


def part_of(pieces: Sequence[tuple[str, Tone]], start: int, stop: int) -> Iterator[Cell]:
    """Yield the part of a line between two offsets in its joined texts."""
    offset = 0
    for text, tone in pieces:
        if part := text[max(start - offset, 0) : max(stop - offset, 0)]:
            yield Cell(part, tone)
        offset += len(text)
