"""The journal: an episode line by line while it is played, so that the death of the process costs no finished step."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from runner.errors import StoreError
from runner.store.episode_file import EpisodeRecord, StoredChat, TimestepRecord, check_header, decode, episode_record
from runner.store.safe_json import encode, finite
from runner.types import EpisodeHeader, ErrorInfo, Flow, Outcome, Span, ToolSchema
from runner.util.files import TEMPORARY_SUFFIX, create_private, make_folder, read_file, write_all

JOURNAL_SUFFIX = ".journal.jsonl"

_T = TypeVar("_T")


class TraceDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was traced since the line before; ``open_spans`` are all that are open now, each ending now."""

    spans: list[Span] = []
    flows: list[Flow] = []
    open_spans: list[Span] = []


class JournalExtras(msgspec.Struct, kw_only=True):
    """What a line holds beside its timestep, as the episode file would not get it else: each where it is new.

    The line with ``env_episode_id`` is written after the reset and has no timestep.
    """

    reset_observation: StoredChat | msgspec.UnsetType = msgspec.UNSET
    env_episode_id: str | msgspec.UnsetType | None = msgspec.UNSET
    tool_schemas: list[list[ToolSchema]] | msgspec.UnsetType = msgspec.UNSET
    traces: TraceDelta | msgspec.UnsetType = msgspec.UNSET


class Journal(msgspec.Struct, kw_only=True):
    """What could be read of a journal; ``damage`` says why the rest could not."""

    header: EpisodeHeader
    steps: list[TimestepRecord] = []
    reset_observation: StoredChat = []
    env_episode_id: str | None = None
    tool_schemas: list[list[ToolSchema]] = []
    traces: TraceDelta = msgspec.field(default_factory=TraceDelta)
    damage: str | None = None


class JournalWriter:
    """Appends to the journal of one episode; usable from several threads.

    Holds the file's lock until ``close``, or until the process is gone: who can take it may clear the journal away.
    """

    def __init__(self, path: Path, header: EpisodeHeader) -> None:
        """Create the journal with its header.

        Raises:
            OSError: when it cannot be written.
        """
        self.path = path
        self._lock = threading.Lock()
        self._fenced = False
        make_folder(path.parent)
        # It gets its name only once it is locked and has its header: nobody ever finds it half made.
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        descriptor = create_private(temporary)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            write_all(descriptor, encode(header) + b"\n")
            temporary.rename(path)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._descriptor: int | None = descriptor

    def append(self, *objects: bytes) -> None:
        """Add a line with the fields of all the encoded objects; does nothing after ``fence`` or ``close``.

        Raises:
            OSError: when it cannot be written. What follows a torn line would be lost, so the journal is then fenced.
        """
        data = b"{%b}\n" % b",".join([fields[1:-1] for fields in objects if fields != b"{}"])
        with self._lock:
            if self._fenced or self._descriptor is None:
                return
            try:
                write_all(self._descriptor, data)
            except OSError:
                self._fenced = True
                raise

    def fence(self) -> None:
        """Let nothing more be written, but keep the lock."""
        with self._lock:
            self._fenced = True

    def close(self) -> None:
        """Let go of the file; it stays where it is."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


_HEADERS = msgspec.json.Decoder(EpisodeHeader)
_STEPS = msgspec.json.Decoder(TimestepRecord)
_EXTRAS = msgspec.json.Decoder(JournalExtras)


def read_journal(path: Path) -> Journal:
    """Everything up to the first damaged line; a last line without its end was never finished and is left out.

    Raises:
        StoreError: when not even the header can be used.
    """
    first, *lines = read_file(path).split(b"\n")
    if not lines:
        raise StoreError(f"{path} ends before its first line does: nothing was recorded; delete it")
    header = decode(first, _HEADERS, path)
    check_header(header, path)
    journal = Journal(header=header)
    for number, data in enumerate(lines[:-1], start=2):
        if (problem := _apply_line(journal, data)) is not None:
            kept = len(journal.steps)
            journal.damage = f"line {number} is damaged ({problem}); the {kept} timesteps before it were kept"
            break
    return journal


def unfinished_record(
    journal: Journal,
    outcome: Outcome,
    *,
    ended_at: datetime,
    error: ErrorInfo | None = None,
    traces: TraceDelta | None = None,
    duration_s: float | None = None,
) -> EpisodeRecord:
    """The record of an episode that nobody plays any more; ``traces`` came after the journal's last line.

    Where nobody knows its ``duration_s``, it is what its spans and steps say: wall clocks jump.
    """
    traces = traces or TraceDelta()
    ended_at = max(ended_at, journal.header.started_at)
    worked_s = sum(step.model_s + step.env_s for step in journal.steps)
    opened = traces.open_spans or journal.traces.open_spans
    spans = _close_spans(journal.traces.spans + traces.spans, opened)
    if duration_s is None:
        duration_s = _spanned_s(spans) or worked_s or (ended_at - journal.header.started_at).total_seconds()
    return episode_record(
        journal.header,
        journal.steps,
        ended_at=ended_at,
        duration_s=finite(max(duration_s, worked_s)),
        outcome=outcome,
        success=outcome is Outcome.SUCCESS,
        reset_observation=journal.reset_observation,
        env_episode_id=journal.env_episode_id,
        tool_schemas=journal.tool_schemas,
        spans=spans,
        flows=journal.traces.flows + traces.flows,
        error=error,
    )


def _close_spans(closed: list[Span], opened: list[Span]) -> list[Span]:
    """The spans with the open ones closed, inner ones first, at the latest time that is known."""
    ids = {span.id for span in closed}
    still_open = [span for span in reversed(opened) if span.id not in ids]
    latest_ns = max((span.end_ns for span in [*closed, *opened]), default=0)
    return closed + [msgspec.structs.replace(span, end_ns=max(latest_ns, span.start_ns)) for span in still_open]


def _spanned_s(spans: list[Span]) -> float:
    """Seconds of the monotonic clock from the first span's start to the last one's end."""
    if not spans:
        return 0.0
    spanned_ns = max(span.end_ns for span in spans) - min(span.start_ns for span in spans)
    return min(spanned_ns, 2**63) / 1e9  # a journal may hold any number


def _apply_line(journal: Journal, data: bytes) -> str | None:
    """Add a line to ``journal``, or say why it cannot be used."""
    try:
        str(data, "utf-8")
        extras = _EXTRAS.decode(data)
        step = _STEPS.decode(data) if extras.env_episode_id is msgspec.UNSET else None
    except (ValueError, RecursionError) as exc:
        return str(exc)
    tool_schemas = journal.tool_schemas + _set_or(extras.tool_schemas, [])
    if step is not None:
        if not 0 <= step.tool_schemas_ref < len(tool_schemas):
            return "it refers to tool schemas that no line holds"
        journal.steps.append(step)
    journal.tool_schemas = tool_schemas
    journal.reset_observation = _set_or(extras.reset_observation, journal.reset_observation)
    journal.env_episode_id = _set_or(extras.env_episode_id, journal.env_episode_id)
    _add_traces(journal.traces, _set_or(extras.traces, TraceDelta()))
    return None


def _add_traces(traces: TraceDelta, new: TraceDelta) -> None:
    traces.spans += new.spans
    traces.flows += new.flows
    traces.open_spans = new.open_spans or traces.open_spans


def _set_or(value: _T | msgspec.UnsetType, otherwise: _T) -> _T:
    return otherwise if value is msgspec.UNSET else value
