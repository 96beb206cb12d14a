"""An episode file, read as a whole, as a row of the console's list, and as an episode of the console."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from agentgym_tui.sessions.episode_files import episode_from_record, record_from_bytes
from agentgym_tui.state.episode import Episode
from runner.errors import StoreError
from runner.store.episode_file import EpisodeRecord, decode_episode
from runner.store.index_schema import EpisodeRow, episode_row
from runner.util.safe_values import encode
from tests.fuzz.oracles import outcome

BATCH = "01J0000000AAAAAAAAAAAAAAAA"
EPISODE = "01J0000000EEEEEEEEEEEEEEEE"
PATH = Path(f"/data/runs/{BATCH}/{EPISODE}.json")
TOKENS = (f'"batch_id":"{BATCH}"'.encode(), f'"episode_id":"{EPISODE}"'.encode(), b'"schema":1', b'"timesteps":[')


def check(data: bytes) -> None:
    record = outcome(lambda: decode_episode(data, PATH), StoreError)
    moved = outcome(lambda: record_from_bytes(data, PATH), StoreError)
    if isinstance(record, EpisodeRecord):
        assert moved == record
        check_record(record)


def check_record(record: EpisodeRecord) -> None:
    """Check a record that was read: it can be stored and read again, and the console can show it."""
    encoded = encode(record)
    assert decode_episode(encoded, PATH) == record
    check_row(episode_row(record), msgspec.json.decode(encoded))
    episode = episode_from_record(record)
    assert isinstance(episode, Episode) and len(episode.steps) == len(record.timesteps)


def check_row(row: EpisodeRow, document: dict[str, Any]) -> None:
    """Check that the row has what the stored document has, whose steps are added up here."""
    assert all(getattr(row, name) == document[name] for name in ("episode_id", "env", "agent", "task_index", "rounds"))
    steps, tokens = document["timesteps"], document["tokens"]
    assert (row.tokens_prompt, row.tokens_completion) == (tokens["prompt"], tokens["completion"])
    answers = [step["model_s"] for step in steps if step["endpoint"] is not None]
    assert row.model_s == (min(sum(answers), sys.float_info.max) if answers else None)
