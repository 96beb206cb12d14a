"""Frames of a worker process: whatever it sends, its episode ends once, and its driver goes on.

The input is one JSON object per line for each frame; a value that is not a text stands for its JSON where a frame has
bytes. The id of the episode replaces ``@ID@``.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from runner.batch.observers import BatchItem, EpisodeStored, LiveItems
from runner.batch.running_episode import EpisodeFeed
from runner.envs.http.places import PlaceTable
from runner.errors import StoreError
from runner.pool.services import BatchServices
from runner.pool.worker import BrokenFrame, Worker
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeRecorder, EpisodeStore, open_index
from runner.tracing import PerfettoFile
from runner.types import ErrorInfo, Outcome
from runner.worker.frames import DriverFrame, WorkerFrame, decode_worker_frame
from tests.fuzz.oracles import check_displayable, outcome, scratch_folder
from tests.fuzz.targets.episode_file import BATCH, EPISODE, check_record
from tests.support.episodes import episode_header

TOKENS = (b'"t":"Step"', b'"t":"Ended"', b'"t":"Request"', b'"t":"Free"', b'"episode_id":"@ID@"', b'"spans":[]')
MAX_LEN = 8192
MAX_FRAMES: Final = 12
ENCODED_FIELDS: Final = frozenset(
    (
        "data",
        "evaluation",
        "flows",
        "live",
        "observation",
        "open_spans",
        "packets",
        "spans",
        "tokens",
        "tool_schemas",
        "world",
    )
)
ENCODED_ITEMS: Final = "live_spans"
"""A field with a list of encoded values."""
HEADER = episode_header(episode_id=EPISODE, batch_id=BATCH)


def check(data: bytes) -> None:
    frames = [each for line in data.split(b"\n")[:MAX_FRAMES] if isinstance(each := _frame(line), WorkerFrame)]
    store, index = _store()
    items: list[BatchItem] = []
    ends: list[BaseException | None] = []
    sent: list[DriverFrame] = []
    feed = EpisodeFeed(
        HEADER,
        EpisodeRecorder(HEADER, store, index),
        publish=items.append,
        trace_file=PerfettoFile(Path(os.devnull)),
        track="slot 0",
        on_free=ends.append,
    )
    worker = Worker("w", sent.append, BatchServices(PlaceTable(), None), runs=store.runs)
    worker.play(HEADER, "slot 0", feed, paused=False)
    try:
        for frame in frames:
            worker.receive(frame)
    except BrokenFrame as problem:
        check_displayable(str(problem))
        worker.lose(str(problem))
    worker.lose("it ended")
    assert len(ends) == 1
    if feed.recorder.is_started and not feed.has_ended:
        feed.abandon(Outcome.INTERRUPTED, ErrorInfo("worker_lost", "it ended", ""))
        assert feed.recorder.is_stored
    _check_items(items)
    _check_stored(store, feed)
    shutil.rmtree(store.runs / HEADER.batch_id, ignore_errors=True)


@cache
def _store() -> tuple[EpisodeStore, EpisodeIndex]:
    store = EpisodeStore(scratch_folder("worker_frames"))
    return store, open_index(store)


def _frame(line: bytes) -> WorkerFrame | Exception | None:
    try:
        value = _with_bytes(json.loads(line.replace(b"@ID@", HEADER.episode_id.encode())))
        encoded = msgspec.msgpack.encode(value)
    except (ValueError, TypeError, OverflowError, RecursionError):  # not what a frame can hold
        return None
    return outcome(lambda: decode_worker_frame(encoded), ValueError, RecursionError)


def _with_bytes(value: Any, name: str = "") -> Any:  # noqa: ANN401 - any JSON value
    if name in ENCODED_FIELDS and value is not None:
        return value.encode("utf-8", "replace") if isinstance(value, str) else json.dumps(value).encode()
    match value:
        case dict():
            return {key: each if key == "summary" else _with_bytes(each, key) for key, each in value.items()}
        case list():
            return [_with_bytes(each, "live" if name == ENCODED_ITEMS else "") for each in value]
    return value


def _check_items(items: list[BatchItem]) -> None:
    """What a worker has encoded is not checked: it uses the same code as its driver."""
    for item in items:
        if not isinstance(item, LiveItems):
            msgspec.json.encode(item.end if isinstance(item, EpisodeStored) else item)
    assert sum(isinstance(item, EpisodeStored) for item in items) <= 1


def _check_stored(store: EpisodeStore, feed: EpisodeFeed) -> None:
    if feed.recorder.is_stored:
        record = outcome(lambda: store.load(HEADER.episode_id), StoreError)
        if isinstance(record, EpisodeRecord):
            check_record(record)
