"""The journal of a running episode, one line per step: finished steps survive a crash of the process."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import msgspec

from runner.errors import StoreError
from runner.store.episode_file import EpisodeRecord, StoredChat, check_header, decode, episode_record
from runner.store.parts import EMPTY, EncodedTraces, Ended, Part, Reset, Started, Step, Unjournaled
from runner.store.token_file import TOKENS_SUFFIX, TokenFileWriter
from runner.types import EpisodeHeader, ErrorInfo, Flow, Outcome, PackedCells, Phases, Span, TimeStep, ToolSchema
from runner.util.clock import is_ulid
from runner.util.files import TEMPORARY_SUFFIX, create_private, make_folder, read_file, write_all
from runner.util.resources import find_shortage
from runner.util.safe_values import encode, finite, safe_str

logger = logging.getLogger(__name__)

JOURNAL_SUFFIX = ".journal.jsonl"

_T = TypeVar("_T")


class TraceDelta(msgspec.Struct, omit_defaults=True):
    """Closed spans and flows, in a line since the previous one, and copies of all open spans, which end now."""

    spans: list[Span] = []
    flows: list[Flow] = []
    open_spans: list[Span] = []


class JournalExtras(msgspec.Struct, kw_only=True):
    """Fields of a journal line in addition to the timestep; a field is present only on the first line with its value.

    The line with ``env_episode_id`` is written after the reset and has no timestep.
    """

    reset_observation: StoredChat | msgspec.UnsetType = msgspec.UNSET
    reset_world: PackedCells | msgspec.UnsetType | None = msgspec.UNSET
    env_episode_id: str | msgspec.UnsetType | None = msgspec.UNSET
    tool_schemas: list[list[ToolSchema]] | msgspec.UnsetType = msgspec.UNSET
    traces: TraceDelta | msgspec.UnsetType = msgspec.UNSET


class Journal(msgspec.Struct, kw_only=True):
    """The readable part of a journal; ``damage`` is the reason why the rest is unreadable."""

    header: EpisodeHeader
    steps: list[TimeStep] = []
    reset_observation: StoredChat = []
    reset_world: PackedCells | None = None
    env_episode_id: str | None = None
    tool_schemas: list[list[ToolSchema]] = []
    traces: TraceDelta = msgspec.field(default_factory=TraceDelta)
    damage: str | None = None


@lru_cache(maxsize=512)  # an episode needs its paths a dozen times
def episode_path(runs: Path, batch_id: str, episode_id: str) -> Path:
    """Return the path of an episode file; raises ``StoreError`` if an id is not a ULID."""
    if not (is_ulid(batch_id) and is_ulid(episode_id)):
        raise StoreError(f"episode {episode_id!r} of batch {batch_id!r}: ids must be ULIDs of 26 characters")
    return runs / batch_id / f"{episode_id}.json"


def journal_path(runs: Path, batch_id: str, episode_id: str) -> Path:
    return episode_path(runs, batch_id, episode_id).with_suffix(JOURNAL_SUFFIX)


def tokens_path(runs: Path, batch_id: str, episode_id: str) -> Path:
    return episode_path(runs, batch_id, episode_id).with_suffix(TOKENS_SUFFIX)


_HEADERS = msgspec.json.Decoder(EpisodeHeader)
_STEPS = msgspec.json.Decoder(TimeStep)
_EXTRAS = msgspec.json.Decoder(JournalExtras)


class EpisodeJournal:
    """Writes the journal and the token file of one episode where it is played; one thread at a time uses it.

    A step is written before anybody learns of it, so that no death of a process loses what another one has seen. The
    lock of the file is held until ``close`` or the death of the process; a process that gets it may recover and remove
    the journal.
    """

    def __init__(self, runs: Path, header: EpisodeHeader) -> None:
        self._pid = os.getpid()
        self._header = header
        self.path = journal_path(runs, header.batch_id, header.episode_id)
        self._tokens_path = tokens_path(runs, header.batch_id, header.episode_id)
        self._tokens: TokenFileWriter | None = None
        self._descriptor: int | None = None

    def write(self, part: Part) -> Unjournaled | None:
        """Write what a part adds to the files; return the part to report if that fails, after which nothing is written.

        The first part creates the journal, the end closes it. A process that an environment has forked writes nothing.
        """
        if os.getpid() != self._pid:
            return None
        try:
            match part:
                case Started():
                    self._open()
                case Reset() | Step():
                    self._append(part)
                case Ended():
                    self._append_tokens(part.tokens)
                    self.close()
        except OSError as exc:
            self.close()
            problem = safe_str(exc, "unknown error")
            logger.warning("cannot write the journal of an episode; a crash would lose its steps: %s", problem)
            return Unjournaled(episode_id=self._header.episode_id, problem=problem, shortage=find_shortage(exc))
        return None

    def close(self) -> None:
        if self._tokens is not None:
            self._tokens.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        make_folder(self.path.parent)
        # The journal gets its name after it is locked and has its header, so no process sees it incomplete.
        temporary = self.path.with_name(self.path.name + TEMPORARY_SUFFIX)
        self._descriptor = create_private(temporary)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            write_all(self._descriptor, encode(self._header) + b"\n")
            temporary.rename(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _append(self, part: Reset | Step) -> None:
        if isinstance(part, Step):
            self._append_tokens(part.tokens)  # first, because the line refers to them
        if self._descriptor is not None:
            write_all(self._descriptor, journal_line(part) + b"\n")

    def _append_tokens(self, record: bytes) -> None:
        # A journal that has lost its name was abandoned: its episode was stored or starts again.
        if record and self._descriptor is not None and os.fstat(self._descriptor).st_nlink > 0:
            self._tokens = self._tokens or TokenFileWriter(self._tokens_path)
            self._tokens.append(record)


def stored_step(step: TimeStep, tool_schemas_ref: int) -> TimeStep:
    """It has finite numbers, and a reference in place of its tool schemas."""
    optional = {name: getattr(step, name) for name in ("ttft_s", "tokens_per_s", "cost")}
    return msgspec.structs.replace(
        step,
        available_tool_schemas=msgspec.UNSET,
        tool_schemas_ref=tool_schemas_ref,
        reward=finite(step.reward),
        model_s=finite(step.model_s),
        env_s=finite(step.env_s),
        phases=None if step.phases is None else _stored_phases(step.phases),
        **{name: finite(value) for name, value in optional.items() if value is not None},
    )


def _stored_phases(phases: Phases) -> Phases:
    values = {name: value for name in ("queue", "prefill", "decode") if (value := getattr(phases, name)) is not None}
    values |= {"model": phases.model, "env": phases.env, "own": phases.own}
    return msgspec.structs.replace(phases, **{name: finite(value) for name, value in values.items()})


def journal_line(part: Reset | Step) -> bytes:
    """Return the line of the journal, without its line break."""
    if isinstance(part, Step):
        schemas = b"{}" if part.tool_schemas == EMPTY else b'{"tool_schemas":%b}' % part.tool_schemas
        return _merge(part.data, schemas, _traces_field(part.traces))
    fields = b'{"reset_observation":%b,"env_episode_id":%b}' % (part.observation, encode(part.env_episode_id))
    world = b"{}" if part.world == EMPTY else b'{"reset_world":%b}' % part.world
    return _merge(fields, world, _traces_field(part.traces))


def _traces_field(traces: EncodedTraces) -> bytes:
    named = ((b"spans", traces.spans), (b"flows", traces.flows), (b"open_spans", traces.open_spans))
    return b'{"traces":{%b}}' % b",".join([b'"%b":%b' % (name, array) for name, array in named if array != EMPTY])


def _merge(*objects: bytes) -> bytes:
    return b"{%b}" % b",".join([fields[1:-1] for fields in objects if fields != b"{}"])


def read_journal(path: Path, *, was_moved: bool = False) -> Journal:
    """Read a journal up to its first damaged line; a last line without a newline is incomplete and ignored.

    If ``was_moved``, its path need not contain the ids of the episode. Raises ``StoreError`` if the file or its header
    is unreadable.
    """
    first, *lines = read_file(path).split(b"\n")
    if not lines:
        raise StoreError(f"{path} has no complete line: nothing was recorded; delete it")
    header = decode(first, _HEADERS, path)
    check_header(header, path, was_moved=was_moved)
    journal = Journal(header=header)
    for number, data in enumerate(lines[:-1], start=2):
        if (problem := apply_line(journal, data)) is not None:
            n_kept = len(journal.steps)
            journal.damage = f"line {number} is damaged ({problem}); the {n_kept} timesteps before it were kept"
            break
    return journal


def unfinished_record(
    journal: Journal,
    outcome: Outcome,
    *,
    ended_at: datetime,
    error: ErrorInfo | None = None,
    duration_s: float | None = None,
) -> EpisodeRecord:
    """Return the record of an episode that stopped without a normal end.

    ``duration_s`` is by default computed from the spans and steps, because the wall clock may jump.
    """
    traces = journal.traces
    ended_at = max(ended_at, journal.header.started_at)
    worked_s = sum(step.model_s + step.env_s for step in journal.steps)
    spans = _close_spans(traces.spans, traces.open_spans)
    return episode_record(
        journal.header,
        journal.steps,
        ended_at=ended_at,
        duration_s=finite(max(_spanned_s(spans) if duration_s is None else duration_s, worked_s)),
        outcome=outcome,
        success=outcome is Outcome.SUCCESS,
        reset_observation=journal.reset_observation,
        reset_world=journal.reset_world,
        env_episode_id=journal.env_episode_id,
        tool_schemas=journal.tool_schemas,
        spans=spans,
        flows=traces.flows,
        error=error,
    )


def _close_spans(closed: list[Span], open_spans: list[Span]) -> list[Span]:
    ids = {span.id for span in closed}
    still_open = [span for span in reversed(open_spans) if span.id not in ids]
    latest_ns = max((span.end_ns for span in [*closed, *open_spans]), default=0)
    return closed + [msgspec.structs.replace(span, end_ns=max(latest_ns, span.start_ns)) for span in still_open]


def _spanned_s(spans: list[Span]) -> float:
    if not spans:
        return 0.0
    spanned_ns = max(span.end_ns for span in spans) - min(span.start_ns for span in spans)
    return min(spanned_ns, 2**63) / 1e9  # a damaged journal may contain any number


def apply_line(journal: Journal, data: bytes) -> str | None:
    """Add a line, without its line break, to ``journal``; return the problem if the line is damaged, else None."""
    try:
        str(data, "utf-8")
        extras = _EXTRAS.decode(data)
        step = _STEPS.decode(data) if extras.env_episode_id is msgspec.UNSET else None
    except (ValueError, RecursionError) as exc:
        return str(exc)
    tool_schemas = journal.tool_schemas + _set_or(extras.tool_schemas, [])
    if step is not None:
        if step.tool_schemas_ref not in range(len(tool_schemas)):
            return "it refers to unknown tool schemas"
        journal.steps.append(step)
    journal.tool_schemas = tool_schemas
    journal.reset_observation = _set_or(extras.reset_observation, journal.reset_observation)
    journal.reset_world = _set_or(extras.reset_world, journal.reset_world)
    journal.env_episode_id = _set_or(extras.env_episode_id, journal.env_episode_id)
    new, traces = _set_or(extras.traces, TraceDelta()), journal.traces
    traces.spans += new.spans
    traces.flows += new.flows
    traces.open_spans = new.open_spans or traces.open_spans
    return None


def _set_or(value: _T | msgspec.UnsetType, default: _T) -> _T:
    return default if value is msgspec.UNSET else value
