"""Reads tables of our own Parquet exports: the rows of an episode follow one another; needs the extra ``parquet``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from runner.errors import StoreError
from runner.formats.drafts import Draft, Transcript, action_of, labelled_draft, sequence_of, sequences_of
from runner.formats.foreign_values import UnreadableItem, number_of, time_of, tokens_of, tool_calls_from
from runner.formats.format import Reader
from runner.formats.parquet_pages import Group, check_pages, read_groups
from runner.formats.reading import Found, Item, Limits, Malformed, Place, open_regular
from runner.formats.recognition import Head
from runner.store.safe_json import encode
from runner.types import Message, Tokens
from runner.util.json_accessors import as_dict, as_list, as_text, decode_json

NEEDS_PYARROW: Final = "Parquet needs the package pyarrow; install it with: pip install 'agentgym-console[parquet]'"
_REQUIRED: Final = frozenset({"episode_id", "step", "reply", "observation"})
_UNREADABLE: Final = b"null"
_BATCH_ROWS: Final = 200


def episode_items(path: Path, limits: Limits) -> Iterator[Found]:
    """Yield an item per episode: the list of its rows.

    Raises:
        StoreError: pyarrow is not installed, or the file cannot be read or has other columns.
    """
    start, limits = 0, _reduced(limits)
    for number, (_, rows) in enumerate(groupby(_rows(path, limits), key=itemgetter(0)), 1):
        kept, n_bytes, n_rows, is_readable = list[bytes](), 0, 0, True
        for _, row in rows:
            n_rows, n_bytes = n_rows + 1, n_bytes + len(row)
            is_readable &= row != _UNREADABLE
            if n_bytes <= limits.item_bytes:
                kept.append(row)
        place = Place(path, number, start, n_rows, "episode")
        start += n_rows
        if not is_readable:
            yield Malformed(place, "a value of its rows cannot be read, such as a time after the year 9999")
        elif len(kept) < n_rows:
            yield Malformed(place, "its rows are too large")
        else:
            yield Item(place, _joined(kept))


def read_rows(place: Place, limits: Limits) -> bytes:
    """Raises like ``episode_items``."""
    rows = [row for _, row in _rows(place.path, _reduced(limits), place.start, place.size)]
    if len(rows) < place.size:
        raise StoreError(f"{place.path} is shorter than before; reload it")
    return _joined(rows)


def _reduced(limits: Limits) -> Limits:
    """Return the bounds of a table, whose texts are in memory as pages, as columns, as values and as JSON."""
    return msgspec.structs.replace(limits, item_bytes=limits.item_bytes * 3 // 16)


def _joined(rows: list[bytes]) -> bytes:
    return b"[" + b",".join(rows) + b"]"


def _rows(path: Path, limits: Limits, start: int = 0, n: int | None = None) -> Iterator[tuple[str, bytes]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as exc:
        raise StoreError(NEEDS_PYARROW) from exc
    with open_regular(path) as opened:
        try:
            file = parquet.ParquetFile(opened)
            if not set(file.schema_arrow.names) >= _REQUIRED:
                raise StoreError(f"{path} has other columns than an export of episodes")
            yield from _rows_of(file, opened, limits, start, n)
        except (pa.ArrowException, OSError, ValueError) as exc:
            raise StoreError(f"{path} is damaged: {exc}") from exc


def _rows_of(
    file: Any,  # noqa: ANN401 - pyarrow's file
    opened: BinaryIO,
    limits: Limits,
    start: int,
    n: int | None,
) -> Iterator[tuple[str, bytes]]:
    first = 0  # row of the group
    end = None if n is None else start + n
    for group, size in enumerate(read_groups(opened)):
        at, first = first, first + size.n_rows
        if first <= start:
            continue
        if sum(column.unpacked for column in size.columns) > limits.item_bytes * 16:
            raise StoreError(f"row group {group} is too large")
        check_pages(opened, size, group, limits)
        for batch in file.iter_batches(_n_rows(size, limits), row_groups=[group]):
            if sum(len(column.values) for column in batch.columns if hasattr(column, "values")) > _max_values(limits):
                raise StoreError(f"rows of row group {group} have too many values")
            for row in _encoded_rows(batch):
                if end is not None and at >= end:
                    return
                if at >= start:
                    yield row
                at += 1


def _encoded_rows(batch: Any) -> Iterator[tuple[str, bytes]]:  # noqa: ANN401 - pyarrow's batch
    """A row is ``_UNREADABLE`` if it has a value that Python or JSON cannot have."""
    try:
        yield from [(as_text(row.get("episode_id")), encode(row)) for row in batch.to_pylist()]
    except (ValueError, OverflowError, TypeError):
        if batch.num_rows == 1:
            yield as_text(batch.column("episode_id")[0].as_py()), _UNREADABLE
            return
        for number in range(batch.num_rows):
            yield from _encoded_rows(batch.slice(number, 1))


def _n_rows(group: Group, limits: Limits) -> int:
    """Return how many rows of a group are decoded at once, by the largest size that they may have."""
    # a text that is stored once may be the value of every row
    largest = max((column.unpacked for column in group.columns), default=0)
    n_values = max((column.n_values for column in group.columns), default=0)
    by_size = limits.item_bytes // max(largest, 1)
    by_values = limits.item_values * group.n_rows // max(n_values, 1)
    return max(1, min(_BATCH_ROWS, by_size, by_values))


def _max_values(limits: Limits) -> int:
    return 4 * limits.item_values


def decode_rows(value: object, place: Place) -> Iterator[Draft]:
    """System prompts are not among the columns."""
    rows = [as_dict(row) for row in as_list(value)]
    if not rows:
        raise UnreadableItem("it has no rows")
    transcript, shared = Transcript(), rows[0]
    if prompt := as_text(shared.get("prompt")):
        transcript.add({"role": "user", "content": prompt})
    for row in rows:
        if row.get("step") is not None:
            _add_step(transcript, row)
    draft = labelled_draft({**shared, "reward": shared.get("episode_reward")}, transcript)
    duration_s, seed = number_of(shared.get("duration_s")), shared.get("seed")
    yield msgspec.structs.replace(
        draft,
        data_label=as_text(shared.get("data_label")),
        mode="compat" if shared.get("mode") == "compat" else "strict",
        seed=seed if type(seed) is int else None,
        started_at=time_of(shared.get("started_at")),
        ended_at=time_of(shared.get("ended_at")),
        duration_s=duration_s,
        has_step_rewards=True,
        tokens=_tokens(shared, "episode_tokens"),
        cost=number_of(shared.get("episode_cost")),
        missing=["system prompt", "roles of observations"],
    )


def _tokens(row: dict[str, Any], prefix: str) -> Tokens | None:
    if row.get(f"{prefix}_prompt") is None:
        return None
    return tokens_of(row, *(f"{prefix}_{kind}" for kind in ("prompt", "completion", "cached", "reasoning")))


def _add_step(transcript: Transcript, row: dict[str, Any]) -> None:
    reply: Message = {"role": "assistant", "content": as_text(row.get("reply"))}
    if reasoning := as_text(row.get("reasoning")):
        reply["reasoning_content"] = reasoning
    if calls := tool_calls_from(decode_json(as_text(row.get("tool_calls")).encode())):
        reply["tool_calls"] = calls
    step = transcript.add_reply(
        reply,
        msgspec.structs.replace(
            action_of(reply), valid=row.get("valid") is not False, refused=row.get("refused") is True or msgspec.UNSET
        ),
        reward=number_of(row.get("reward")) or 0.0,
        done=row.get("done") is True,
        actor="human" if row.get("actor") == "human" else "agent",
        endpoint=as_text(row.get("endpoint")) or None,
        model=as_text(row.get("step_model")) or None,
        tokens=_tokens(row, "tokens"),
        **{name: number_of(row.get(name)) or 0.0 for name in ("model_s", "env_s")},
        **{name: number_of(row.get(name)) for name in ("ttft_s", "cost")},
    )
    transcript.add_sequences(step.index, sequences_of(decode_json(as_text(row.get("other_sequences")).encode())))
    ids = {name: row.get(name) for name in ("prompt_token_ids", "completion_token_ids", "logprobs")}
    if (trained := sequence_of({**ids, "endpoint": step.endpoint, "model": step.model}, None)) is not None:
        transcript.add_sequences(step.index, [trained])
    if observation := as_text(row.get("observation")):
        transcript.add({"role": "user", "content": observation})


def is_parquet(head: Head) -> bool:
    """Its columns are checked when it is read."""
    return head.kind == "parquet"


READER = Reader(
    signature="a Parquet table, which begins with `PAR1`, with the columns below",
    matches=is_parquet,
    decode=decode_rows,
    items=episode_items,
    read=read_rows,
)
