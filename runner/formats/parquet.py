"""Parquet: one row per step, in columns with types; needs the extra ``parquet``.

The columns are documented in ``docs/formats.md``. Values that repeat in each step of an episode take little space,
since Parquet stores them once per page.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from runner.errors import ConfigError
from runner.formats.conversation import read_conversation, text_of
from runner.formats.drafts import result_fields
from runner.formats.export import Output
from runner.formats.format import NOTHING_LEFT_OUT, Format
from runner.formats.parquet_reader import NEEDS_PYARROW, READER
from runner.formats.training import step_tokens, unfinished_tokens, usable_logprobs
from runner.store.episode_file import EpisodeRecord
from runner.store.safe_json import encode
from runner.store.token_file import TokenizedEpisode
from runner.types import TimeStep, Tokens

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE: Final = 100
"""Rows that are collected before they become columns, which take less memory."""
GROUP_BYTES: Final = 4 << 20
"""Size of the columns in bytes from which on they are written as a row group, of which pyarrow keeps 90 KB each."""


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


_SHARED = (
    *("episode_id", "batch_id", "battery_id", "node", "env", "data_label", "mode", "agent", "model", "task_index"),
    *("seed", "attempt", "rounds", "started_at", "ended_at", "duration_s"),
)
"""Columns with the value of the episode of the same name in each row; ``_SAME`` with that of the step."""
_SAME = ("actor", "endpoint", "reward", "valid", "refused", "model_s", "env_s", "ttft_s", "cost", "done")


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


FORMAT = Format(name="parquet", title="Parquet", suffix=".parquet", open_writer=ParquetWriter, reader=READER)
