"""Parquet: one row per step, in columns with types, see ``docs/data/formats.md``; needs the extra ``parquet``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from runner.errors import ConfigError, StoreError
from runner.formats import parquet_rows
from runner.formats.conversation import read_conversation, text_of
from runner.formats.drafts import Draft, Transcript, action_of, labelled_draft, result_fields, sequences_of
from runner.formats.foreign_values import UnreadableItem, number_of, reply_of, time_of, tokens_of
from runner.formats.format import Format
from runner.formats.reading import Found, Item, Limits, Malformed, Place, open_regular
from runner.formats.training import StepTokens, step_tokens, unfinished_tokens, usable_logprobs
from runner.store.episode_file import EpisodeRecord
from runner.store.token_file import TokenizedEpisode
from runner.types import TimeStep, Tokens
from runner.util.child_process import ChildProcess, describe_end
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
_TOKENS = Tokens.__struct_fields__
_EXIT_S: Final = 10.0


class ParquetWriter:
    def __init__(self, file: IO[bytes]) -> None:
        """Raises a ``ConfigError`` if pyarrow is not installed."""
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow's others keep more of what was freed
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as exc:
            raise ConfigError(parquet_rows.NEEDS_PYARROW) from exc
        self._arrow = pa
        self._schema = table_schema(pa)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []
        self._n_bytes = 0

    def write(self, episode: EpisodeRecord) -> None:
        self._rows += rows_of(episode)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._collect()
        if self._n_bytes >= GROUP_BYTES:
            self._flush()

    def finish(self) -> Mapping[str, int]:
        self._collect()
        self._flush()
        self._writer.close()
        return {}

    def _collect(self) -> None:
        if self._rows:
            self._batches.append(self._arrow.RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._n_bytes += self._batches[-1].nbytes
            self._rows = []

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
            **dict.fromkeys([f"episode_tokens_{kind}" for kind in _TOKENS], whole),
            **dict.fromkeys(["step", *(f"tokens_{kind}" for kind in _TOKENS)], whole),
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


def rows_of(episode: EpisodeRecord) -> list[dict[str, Any]]:
    """Return a row per step, or one without the columns of a step; ``prompt`` is what the agent saw last."""
    conversation, unfinished = read_conversation(episode), unfinished_tokens(episode)
    result, prompt = result_fields(episode), text_of(conversation.opening)
    shared = {name: getattr(episode, name) for name in _SHARED}
    shared |= {name: result.get(name) for name in ("outcome", "success")} | {"rated": not episode.unscored}
    shared |= {"episode_reward": episode.reward, "episode_cost": episode.cost}
    shared |= {f"episode_tokens_{kind}": getattr(episode.tokens, kind) for kind in _TOKENS}
    if not conversation.turns:
        return [{**shared, "prompt": prompt, "other_sequences": _others(unfinished)}]
    rows = []
    for number, turn in enumerate(conversation.turns):
        observation = text_of(turn.observation)
        row = {
            **shared,
            "prompt": prompt,
            "observation": observation,
            "reasoning": turn.reply.get("reasoning_content"),
            "reply": turn.reply["content"],
            **_step_columns(turn.step),
        }
        if episode.reward is None:
            del row["reward"]
        if isinstance(episode, TokenizedEpisode):
            is_last = turn is conversation.turns[-1]
            row |= _token_columns(step_tokens(episode, number), unfinished if is_last else [])
        rows.append(row)
        prompt = observation
    return rows


def _step_columns(step: TimeStep) -> dict[str, Any]:
    action = step.action
    return {
        "step": step.index,
        "step_model": step.model,
        "action": action.text,
        "tool_calls": encode(action.tool_calls).decode() if action.tool_calls else None,
        **{name: getattr(step, name) for name in _SAME},
        **{f"tokens_{name}": None if step.tokens is None else getattr(step.tokens, name) for name in _TOKENS},
    }


def _token_columns(tokens: StepTokens, unfinished: list[dict[str, Any]]) -> dict[str, Any]:
    trained = tokens.trained
    return {
        "prompt_token_ids": trained and trained.prompt_ids,
        "completion_token_ids": trained and trained.completion_ids,
        "logprobs": trained and (usable_logprobs(trained) or None),
        "loss_mask": trained and trained.loss_mask,
        "other_sequences": _others([*tokens.others, *unfinished]),
    }


def _others(sequences: list[dict[str, Any]]) -> str | None:
    return encode(sequences).decode() if sequences else None


def episode_items(path: Path, limits: Limits) -> Iterator[Found]:
    """Yield an item per episode: the list of its rows.

    Raises ``StoreError`` if pyarrow is not installed, or the file cannot be read, needs too much, or has other columns.
    """
    start = 0
    for number, (n_rows, data) in enumerate(_lines(path, limits), 1):
        place = Place(path, number, start, n_rows, "episode")
        start += n_rows
        yield Malformed(place, data[1:].decode("utf-8", "replace")) if data.startswith(b"!") else Item(place, data)


def read_rows(place: Place, limits: Limits) -> bytes:
    """Raises like ``episode_items``."""
    with closing(_lines(place.path, limits, place.start, place.size)) as lines:
        n_rows, data = next(lines, (0, b""))
    if n_rows < place.size or not data.startswith(b"["):
        raise StoreError(f"{place.path} is shorter than before; reload it")
    return data


def _lines(path: Path, limits: Limits, start: int = 0, n_rows: int = 0) -> Generator[tuple[int, bytes]]:
    """Yield what the process prints for each episode, see ``parquet_rows``."""
    numbers = map(str, (limits.item_bytes, start, n_rows))
    command = [sys.executable, "-P", "-m", parquet_rows.__name__, *numbers]
    environ = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    with open_regular(path) as file:
        child = ChildProcess(command, environ, stdin=file.fileno(), stdout=subprocess.PIPE)
        stdout = child.stdout
        assert stdout is not None
        try:
            for line in iter(lambda: stdout.readline(limits.item_bytes + 100), b""):
                n, _, data = line.removesuffix(b"\n").partition(b" ")
                if not line.endswith(b"\n"):  # it died, or its line is too long
                    break
                if not n.isdigit():
                    raise StoreError(f"{path}: {line[1:300].decode('utf-8', 'replace').strip()}")
                yield int(n), data
            if code := child.end(_EXIT_S):
                raise StoreError(f"{path} cannot be read: {_end_of(code)}")
        finally:
            child.kill()
            child.wait()
            stdout.close()


def _end_of(code: int) -> str:
    if code == -signal.SIGALRM:
        return f"an episode takes more than {parquet_rows.MAX_WAIT_S} s"
    memory = f"{parquet_rows.MEMORY_BYTES >> 20} MiB of memory"
    return f"it is damaged or needs more than {memory}; its process {describe_end(code)}"


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
    calls = decode_json(as_text(row.get("tool_calls")).encode())
    reply = reply_of(as_text(row.get("reply")), row.get("reasoning"), calls)
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
    transcript.add_ids(step, *(row.get(name) for name in ("prompt_token_ids", "completion_token_ids", "logprobs")))
    if observation := as_text(row.get("observation")):
        transcript.add({"role": "user", "content": observation})


FORMAT = Format(
    name="parquet",
    title="Parquet",
    suffix=".parquet",
    open_writer=ParquetWriter,
    signature="a Parquet table, which begins with `PAR1`, with the columns below",
    matches=lambda head: head.kind == "parquet",  # its columns are checked when it is read
    decode=decode_rows,
    items=episode_items,
    read=read_rows,
)
