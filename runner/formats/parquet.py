"""Parquet: one row per step, in columns with types; needs the extra ``parquet``.

The columns are documented in ``docs/formats.md``. Values that repeat in each step of an episode take little space,
since Parquet stores them once per page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from runner.errors import ConfigError
from runner.formats.conversation import read_conversation, text_of
from runner.formats.format import NOTHING_LEFT_OUT, Format
from runner.formats.output import Output
from runner.formats.parquet_reader import NEEDS_PYARROW, READER
from runner.formats.training import step_tokens, unfinished_tokens, usable_logprobs
from runner.store.episode_file import EpisodeRecord
from runner.store.safe_json import encode

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE: Final = 100
"""Rows that are collected before they become columns, which take less memory."""
GROUP_BYTES: Final = 4 << 20
"""Size of the columns in bytes from which on they are written as a row group, of which pyarrow keeps 90 KB each."""


class ParquetWriter:
    """Writes a row per step, in groups."""

    def __init__(self, output: Output) -> None:
        """Open the table in the main file; raises a ``ConfigError`` if pyarrow is not installed."""
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as exc:
            raise ConfigError(NEEDS_PYARROW) from exc
        self._arrow = pa
        self._schema = table_schema(pa)
        self._writer = parquet.ParquetWriter(output.main, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []
        self._n_bytes = 0

    def write(self, episode: EpisodeRecord) -> None:
        """Add the rows of an episode; one without a step has one row without the columns of a step."""
        self._rows += rows_of(episode)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._collect()
        if self._n_bytes >= GROUP_BYTES:
            self._flush()

    def finish(self) -> Mapping[str, int]:
        """Write the last group and the footer."""
        self._collect()
        self._flush()
        self._writer.close()
        return NOTHING_LEFT_OUT

    def _collect(self) -> None:
        if self._rows:
            batch = self._arrow.RecordBatch.from_pylist(self._rows, schema=self._schema)
            self._batches.append(batch)
            self._n_bytes += batch.nbytes
            self._rows = []

    def _flush(self) -> None:
        """Write a row group, and give the memory of its columns back, which pyarrow would keep."""
        if self._batches:
            self._writer.write_table(self._arrow.Table.from_batches(self._batches))
            self._batches, self._n_bytes = [], 0
            self._arrow.default_memory_pool().release_unused()


def table_schema(pa: Any) -> pa.Schema:  # noqa: ANN401 - the module pyarrow
    """Return the columns and their types."""
    text, real, whole, flag = pa.string(), pa.float64(), pa.int64(), pa.bool_()
    at = pa.timestamp("us", tz="UTC")
    return pa.schema(
        {
            **dict.fromkeys(("episode_id", "batch_id", "battery_id", "node", "env", "data_label", "mode"), text),
            **dict.fromkeys(("agent", "model", "outcome"), text),
            **dict.fromkeys(("task_index", "seed", "attempt", "rounds"), whole),
            **dict.fromkeys(("started_at", "ended_at"), at),
            **dict.fromkeys(("duration_s", "episode_reward", "episode_cost"), real),
            "success": flag,
            **dict.fromkeys(("step", "tokens_prompt", "tokens_completion", "tokens_reasoning", "tokens_cached"), whole),
            **dict.fromkeys(("actor", "prompt", "reasoning", "reply", "action", "tool_calls", "observation"), text),
            **dict.fromkeys(("endpoint", "step_model"), text),
            **dict.fromkeys(("reward", "model_s", "env_s", "ttft_s", "cost"), real),
            **dict.fromkeys(("valid", "done"), flag),
            **dict.fromkeys(("prompt_token_ids", "completion_token_ids"), pa.list_(pa.int32())),
            "logprobs": pa.list_(real),
            "loss_mask": pa.list_(pa.int8()),
            "other_sequences": text,
        }
    )


def rows_of(episode: EpisodeRecord) -> list[dict[str, Any]]:
    """Return one row per step; ``prompt`` is what the agent saw last before its reply."""
    names = (
        *("episode_id", "batch_id", "battery_id", "node", "env", "data_label", "mode", "agent", "model", "task_index"),
        *("seed", "attempt", "rounds", "started_at", "ended_at", "duration_s", "success"),
    )
    shared = {name: getattr(episode, name) for name in names}
    shared |= {"outcome": str(episode.outcome), "episode_reward": episode.reward, "episode_cost": episode.cost}
    conversation = read_conversation(episode)
    prompt = text_of(conversation.opening)
    unfinished = unfinished_tokens(episode)
    if not conversation.turns:
        return [{**shared, "prompt": prompt, **_others(unfinished)}]
    rows = []
    for number, turn in enumerate(conversation.turns):
        step, tokens, observation = turn.step, turn.step.tokens, text_of(turn.observation)
        counts = (
            {} if tokens is None else {f"tokens_{name}": getattr(tokens, name) for name in tokens.__struct_fields__}
        )
        row = {
            "step": step.index,
            "prompt": prompt,
            "reasoning": turn.reply.get("reasoning_content"),
            "reply": turn.reply["content"],
            "action": step.action.text,
            "tool_calls": encode(step.action.tool_calls).decode() if step.action.tool_calls else None,
            "observation": observation,
            "step_model": step.model,
            "valid": step.valid,
        }
        same = ("actor", "endpoint", "reward", "model_s", "env_s", "ttft_s", "cost", "done")
        rows.append(
            {
                **shared,
                **row,
                **counts,
                **{name: getattr(step, name) for name in same},
                **_ids(episode, number, unfinished),
            }
        )
        prompt = observation
    return rows


def _ids(episode: EpisodeRecord, number: int, unfinished: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tokens of a step; the last one has the calls whose step did not end, too."""
    trained, others = step_tokens(episode, number)
    fields = _others([*others, *(unfinished if number == len(episode.timesteps) - 1 else ())])
    if trained is not None:
        fields |= {
            "prompt_token_ids": trained.prompt_ids,
            "completion_token_ids": trained.completion_ids,
            "logprobs": usable_logprobs(trained) or None,
            "loss_mask": trained.loss_mask,
        }
    return fields


def _others(sequences: list[dict[str, Any]]) -> dict[str, Any]:
    return {"other_sequences": encode(sequences).decode()} if sequences else {}


FORMAT = Format(name="parquet", title="Parquet", suffix=".parquet", open_writer=ParquetWriter, reader=READER)
