"""Parquet: one row per step, in columns with types, see ``docs/formats.md``; needs the extra ``parquet``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import msgspec

from runner.errors import ConfigError, StoreError
from runner.formats.conversation import read_conversation, text_of
from runner.formats.drafts import Draft, Transcript, action_of, labelled_draft, result_fields, sequence_of, sequences_of
from runner.formats.foreign_values import UnreadableItem, number_of, time_of, tokens_of, tool_calls_from
from runner.formats.format import NOTHING_LEFT_OUT, Format, Head, Reader
from runner.formats.output import Output
from runner.formats.reading import Found, Item, Limits, Malformed, Place, open_regular
from runner.formats.training import step_tokens, unfinished_tokens, usable_logprobs
from runner.store.episode_file import EpisodeRecord
from runner.store.token_file import TokenizedEpisode
from runner.types import Message, TimeStep, Tokens
from runner.util.json_accessors import as_dict, as_list, as_text, decode_json
from runner.util.safe_values import encode

if TYPE_CHECKING:
    import pyarrow as pa


ROWS_AT_ONCE: Final = 100
"""Rows that are collected before they become columns, which take less memory."""
GROUP_BYTES: Final = 4 << 20
"""Size of the columns in bytes from which on they are written as a row group, of which pyarrow keeps 90 KB each."""
_SHARED = (
    *("episode_id", "batch_id", "battery_id", "node", "env", "data_label", "mode", "agent", "model", "task_index"),
    *("seed", "attempt", "rounds", "started_at", "ended_at", "duration_s"),
)
"""Columns with the value of the episode of the same name in each row; ``_SAME`` with that of the step."""
_SAME = ("actor", "endpoint", "reward", "valid", "refused", "model_s", "env_s", "ttft_s", "cost", "done")

NEEDS_PYARROW: Final = "Parquet needs the package pyarrow; install it with: pip install 'agentgym-console[parquet]'"
_REQUIRED: Final = frozenset({"episode_id", "step", "reply", "observation"})
_UNREADABLE: Final = b"null"
_BATCH_ROWS: Final = 200

_SMALL_HEADER, _LARGEST_HEADER = 4 << 10, 1 << 20
_MAX_DEPTH: Final = 8
_MAX_PAGES: Final = 100_000
MAX_ITEMS: Final = 4
"""Largest size of what pyarrow holds of a row group at once, a dictionary and a page per column, in items."""
MAX_VALUES: Final = 16
"""Largest number of values in the lists of a column of a row group, in items."""
_BOOLEANS: Final = frozenset({1, 2})
_STOP, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = 0, 3, frozenset({4, 5, 6}), 7, 8, {9, 10}, 11, 12
_DICTIONARY_PAGE: Final = 2
_TYPE, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY, _DATA_PAGE_V2, _N_VALUES = 1, 2, 3, 5, 7, 8, 1
"""Field numbers: of ``PageHeader``, and that of the number of values in the header of each kind of page."""
_MAX_FOOTER: Final = 16 << 20
_MAX_KEPT: Final = 1_000_000
"""Largest number of structs in lists that are kept."""
_ROW_GROUPS, _COLUMNS, _N_ROWS, _COLUMN = 4, 1, 3, 3
"""Field numbers: of ``FileMetaData``, of ``RowGroup``, and that of the metadata of a ``ColumnChunk``."""
_COLUMN_FIELDS: Final = (5, 6, 7, 9, 11)
"""Field numbers of ``ColumnMetaData``, in the order of ``Column``."""


class ParquetWriter:
    def __init__(self, output: Output) -> None:
        """Raises a ``ConfigError`` if pyarrow is not installed."""
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow's others keep more of what was freed
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as exc:
            raise ConfigError(NEEDS_PYARROW) from exc
        self._arrow = pa
        self._schema = table_schema(pa)
        self._writer = parquet.ParquetWriter(output.main, self._schema, compression="zstd")
        self._columns: dict[str, list[Any]] = {name: [] for name in self._schema.names}
        self._n_rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._n_bytes = 0

    def write(self, episode: EpisodeRecord) -> None:
        """An episode without a step has one row without the columns of a step."""
        columns = columns_of(episode)
        unknown = [None] * len(columns["prompt"])
        for name, values in self._columns.items():
            values += columns.get(name, unknown)
        self._n_rows += len(unknown)
        if self._n_rows >= ROWS_AT_ONCE:
            self._collect()
        if self._n_bytes >= GROUP_BYTES:
            self._flush()

    def finish(self) -> Mapping[str, int]:
        self._collect()
        self._flush()
        self._writer.close()
        return NOTHING_LEFT_OUT

    def _collect(self) -> None:
        if self._n_rows:
            batch = self._arrow.RecordBatch.from_pydict(self._columns, schema=self._schema)
            self._batches.append(batch)
            self._n_bytes += batch.nbytes
            self._columns, self._n_rows = {name: [] for name in self._columns}, 0

    def _flush(self) -> None:
        """Write a row group, and give the memory of its columns back, which pyarrow would keep."""
        if self._batches:
            self._writer.write_table(self._arrow.Table.from_batches(self._batches))
            self._batches, self._n_bytes = [], 0
            self._arrow.default_memory_pool().release_unused()


def table_schema(pa: Any) -> pa.Schema:  # noqa: ANN401 - the module pyarrow
    text, real, whole, flag = pa.string(), pa.float64(), pa.int64(), pa.bool_()
    at = pa.timestamp("us", tz="UTC")
    return pa.schema(
        {
            **dict.fromkeys(("episode_id", "batch_id", "battery_id", "node", "env", "data_label", "mode"), text),
            **dict.fromkeys(("agent", "model", "outcome"), text),
            **dict.fromkeys(("task_index", "seed", "attempt", "rounds"), whole),
            **dict.fromkeys(("started_at", "ended_at"), at),
            **dict.fromkeys(("duration_s", "episode_reward", "episode_cost"), real),
            **dict.fromkeys(("success", "rated"), flag),
            **dict.fromkeys([f"episode_tokens_{kind}" for kind in Tokens.__struct_fields__], whole),
            **dict.fromkeys(("step", "tokens_prompt", "tokens_completion", "tokens_reasoning", "tokens_cached"), whole),
            **dict.fromkeys(("actor", "prompt", "reasoning", "reply", "action", "tool_calls", "observation"), text),
            **dict.fromkeys(("endpoint", "step_model"), text),
            **dict.fromkeys(("reward", "model_s", "env_s", "ttft_s", "cost"), real),
            **dict.fromkeys(("valid", "refused", "done"), flag),
            **dict.fromkeys(("prompt_token_ids", "completion_token_ids"), pa.list_(pa.int32())),
            "logprobs": pa.list_(real),
            "loss_mask": pa.list_(pa.int8()),
            "other_sequences": text,
        }
    )


def columns_of(episode: EpisodeRecord) -> dict[str, list[Any]]:
    """Has a value per step; ``prompt`` is what the agent saw last."""
    conversation, unfinished = read_conversation(episode), unfinished_tokens(episode)
    turns, opening = conversation.turns, text_of(conversation.opening)
    shared = {name: getattr(episode, name) for name in _SHARED}
    result = result_fields(episode)
    shared |= {name: result.get(name) for name in ("outcome", "success")} | {"rated": not episode.unscored}
    shared |= {"episode_reward": episode.reward, "episode_cost": episode.cost}
    shared |= {f"episode_tokens_{kind}": getattr(episode.tokens, kind) for kind in Tokens.__struct_fields__}
    columns = {name: [value] * max(len(turns), 1) for name, value in shared.items()}
    if not turns:
        return {**columns, "prompt": [opening], "other_sequences": [_others(unfinished)]}
    observations = [text_of(turn.observation) for turn in turns]
    columns |= {
        "prompt": [opening, *observations[:-1]],
        "observation": observations,
        "reasoning": [turn.reply.get("reasoning_content") for turn in turns],
        "reply": [turn.reply["content"] for turn in turns],
    }
    columns |= _step_columns(episode.timesteps)
    if episode.reward is None:
        del columns["reward"]
    return {**columns, **_token_columns(episode, unfinished)}


def _step_columns(steps: list[TimeStep]) -> dict[str, list[Any]]:
    actions = [step.action for step in steps]
    counts = [step.tokens for step in steps]
    return {
        "step": [step.index for step in steps],
        "step_model": [step.model for step in steps],
        "action": [action.text for action in actions],
        "tool_calls": [encode(action.tool_calls).decode() if action.tool_calls else None for action in actions],
        **{name: [getattr(step, name) for step in steps] for name in _SAME},
        **{
            f"tokens_{name}": [None if each is None else getattr(each, name) for each in counts]
            for name in Tokens.__struct_fields__
        },
    }


def _token_columns(episode: EpisodeRecord, unfinished: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the tokens of the steps; the last one has the calls whose step did not end, too."""
    if not isinstance(episode, TokenizedEpisode):
        return {}
    found = [step_tokens(episode, number) for number in range(len(episode.timesteps))]
    trained, others = [each.trained for each in found], [each.others for each in found]
    others[-1] = [*others[-1], *unfinished]
    return {
        "prompt_token_ids": [None if each is None else each.prompt_ids for each in trained],
        "completion_token_ids": [None if each is None else each.completion_ids for each in trained],
        "logprobs": [None if each is None else usable_logprobs(each) or None for each in trained],
        "loss_mask": [None if each is None else each.loss_mask for each in trained],
        "other_sequences": list(map(_others, others)),
    }


def _others(sequences: list[dict[str, Any]]) -> str | None:
    return encode(sequences).decode() if sequences else None


class Column(NamedTuple):
    """The sizes are in bytes; an offset is 0 if there are no such pages."""

    n_values: int
    unpacked: int
    packed: int
    data_offset: int
    dictionary_offset: int


class Group(NamedTuple):
    n_rows: int
    columns: list[Column]


def read_groups(file: BinaryIO) -> list[Group]:
    """Raises a ``StoreError`` if the footer is damaged or too large."""
    size = os.fstat(file.fileno()).st_size
    tail = os.pread(file.fileno(), 8, max(0, size - 8))
    n_footer = int.from_bytes(tail[:4], "little")
    if not tail.endswith(b"PAR1") or n_footer > min(_MAX_FOOTER, size - 8):
        raise StoreError("its footer is damaged or too large")
    try:
        footer = _Header(os.pread(file.fileno(), n_footer, size - 8 - n_footer), keeps_lists=True).struct(_MAX_DEPTH)
        return [_group(group) for group in footer.get(_ROW_GROUPS, [])]
    except (IndexError, AttributeError, TypeError) as exc:
        raise StoreError("its footer is damaged or too large") from exc


def _group(fields: dict[int, Any]) -> Group:
    columns = [chunk.get(_COLUMN) or {} for chunk in fields.get(_COLUMNS) or []]
    found = [Column(*(int(column.get(number) or 0) for number in _COLUMN_FIELDS)) for column in columns]
    n_rows = int(fields.get(_N_ROWS) or 0)
    if min((min(column) for column in found), default=0) < 0 or n_rows < 0:
        raise IndexError
    return Group(n_rows, found)


class Page(NamedTuple):
    """What a page declares; ``size`` is unpacked, in bytes."""

    is_dictionary: bool
    size: int
    n_values: int


def check_pages(file: BinaryIO, group: Group, number: int, limits: Limits) -> None:
    """Raises a ``StoreError`` if a page is damaged or too large, or the lists of a column have too many values."""
    in_memory = 0
    for column in group.columns:
        pages = list(islice(_pages(file, column, number), _MAX_PAGES + 1))
        sizes = [max((page.size for page in pages if page.is_dictionary is kind), default=0) for kind in (False, True)]
        in_memory += sum(sizes)
        n_values = sum(page.n_values for page in pages if not page.is_dictionary)
        if len(pages) > _MAX_PAGES:
            raise StoreError(f"a column of row group {number} has too many pages")
        if in_memory > limits.item_bytes * MAX_ITEMS or max(sizes) > limits.item_bytes:
            raise StoreError(f"the pages of row group {number} are too large")
        if n_values > max(group.n_rows, limits.item_values * MAX_VALUES):
            raise StoreError(f"row group {number} has too many values")


def _pages(file: BinaryIO, column: Column, number: int) -> Iterator[Page]:
    start = column.data_offset
    if 0 < column.dictionary_offset < start:
        start = column.dictionary_offset
    end = start + column.packed
    while start < end:
        page, start = _page(file, start, number)
        yield page


def _page(file: BinaryIO, start: int, number: int) -> tuple[Page, int]:
    for size in (_SMALL_HEADER, _LARGEST_HEADER):
        try:
            header = _Header(os.pread(file.fileno(), size, start))
            fields = header.struct(_MAX_DEPTH)
        except IndexError:
            continue
        packed, unpacked = _number(fields, _COMPRESSED), _number(fields, _UNCOMPRESSED)
        is_dictionary = fields.get(_TYPE) == _DICTIONARY_PAGE
        kinds = (_DICTIONARY,) if is_dictionary else (_DATA_PAGE, _DATA_PAGE_V2)
        n_values = max(
            (_number(fields[kind], _N_VALUES) for kind in kinds if isinstance(fields.get(kind), dict)), default=0
        )
        if packed < 0 or unpacked < 0 or n_values < 0 or (is_dictionary and n_values > unpacked * 8):
            break
        return Page(is_dictionary, unpacked, n_values), start + header.position + packed
    raise StoreError(f"a page header of row group {number} is damaged")


def _number(fields: dict[int, Any], id: int) -> int:
    """Without it, or if the field has another type, -1."""
    value = fields.get(id)
    return value if isinstance(value, int) else -1


class _Header:
    """Decodes a struct of Thrift's compact protocol; raises an ``IndexError`` where it ends too early or is damaged."""

    def __init__(self, data: bytes, *, keeps_lists: bool = False) -> None:
        self._data = data
        self.position = 0
        self._n_left = _MAX_KEPT if keeps_lists else 0

    def struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        id = 0
        while (byte := self._byte()) != _STOP:
            id = id + (byte >> 4) if byte >> 4 else self._integer()
            kind = byte & 15
            if kind not in _BOOLEANS:  # the kind is the value
                fields[id] = self._value(kind, depth - 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:  # noqa: ANN401
        if depth < 0:
            raise IndexError
        if kind in _INTEGERS:
            return self._integer()
        if kind == _STRUCT:
            return self.struct(depth)
        if kind in _LISTS:
            byte = self._byte()
            n = self._unsigned() if byte >> 4 == 15 else byte >> 4
            if self._n_left and byte & 15 == _STRUCT:
                return self._structs(n, depth - 1)
            self._repeat(n, lambda: self._value(byte & 15, depth - 1))
        elif kind == _MAP:
            n = self._unsigned()
            kinds = self._byte() if n else 0
            self._repeat(n, lambda: [self._value(each, depth - 1) for each in (kinds >> 4, kinds & 15)])
        elif kind in _BOOLEANS or kind == _BYTE:
            self._byte()
        elif kind in (_DOUBLE, _BINARY):
            self._skip(8 if kind == _DOUBLE else self._unsigned())
        else:
            raise IndexError
        return None

    def _structs(self, n: int, depth: int) -> list[dict[int, Any]]:
        self._n_left -= n
        if self._n_left <= 0:
            raise IndexError
        return [self.struct(depth) for _ in range(n)]

    def _repeat(self, n: int, read: Callable[[], object]) -> None:
        for _ in range(n):  # ends with the data, as every value has a byte at least
            read()

    def _skip(self, n: int) -> None:
        self.position += n
        if self.position > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise IndexError
        return value | byte << shift

    def _integer(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)


def episode_items(path: Path, limits: Limits) -> Iterator[Found]:
    """Yield an item per episode: the list of its rows.

    Raises ``StoreError`` if pyarrow is not installed, or the file cannot be read or has other columns.
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
            lists = [column.values for column in batch.columns if hasattr(column, "values")]
            if sum(map(len, lists)) > 4 * limits.item_values:
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


FORMAT = Format(
    name="parquet",
    title="Parquet",
    suffix=".parquet",
    open_writer=ParquetWriter,
    reader=Reader(
        signature="a Parquet table, which begins with `PAR1`, with the columns below",
        matches=is_parquet,
        decode=decode_rows,
        items=episode_items,
        read=read_rows,
    ),
)
