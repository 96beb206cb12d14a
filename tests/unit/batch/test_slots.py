"""The concurrency that fits the limit of open files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.batch import slots
from runner.batch.slots import NODE_FILES, RUN_FILES, fit_concurrency, slot_files
from runner.batch.spec import BatchSpec
from runner.errors import ConfigError


def spec(concurrency: int, *, repeat: int = 256, env: str = "Maze", model: str | None = None) -> BatchSpec:
    return BatchSpec(env=env, agent="oracle", repeat=repeat, concurrency=concurrency, model=model)


@given(limit=st.integers(64, 30_000), concurrency=st.integers(1, 256), repeat=st.integers(1, 300), model=st.booleans())
def test_all_episodes_fit_and_no_more_is_lowered_than_necessary(
    limit: int, concurrency: int, repeat: int, model: bool
) -> None:
    requested = spec(concurrency, repeat=repeat, model="m" if model else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "open_file_limit", lambda: limit)
        fitting, note = fit_concurrency(requested, RUN_FILES)
    needed = RUN_FILES + slot_files(requested) * min(fitting.concurrency, repeat)
    assert needed <= limit
    assert (note is None) == (fitting == requested)
    if note is not None:
        assert fitting.concurrency < concurrency
        assert needed + slot_files(requested) > limit


def test_the_note_has_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "open_file_limit", lambda: 256)
    _, note = fit_concurrency(spec(256), RUN_FILES)
    assert note == (
        "concurrency lowered from 256 to 37: the limit of open files is 256, the process needs 32 and each episode 6; "
        "raise it with ulimit -n"
    )
    assert slot_files(spec(1, env="SQLGym")) == 14
    assert slot_files(spec(1, env="not installed")) == 6


def test_a_limit_without_room_for_one_episode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "open_file_limit", lambda: NODE_FILES + 5)
    with pytest.raises(ConfigError, match="No episode of Maze fits the limit of 69 open files"):
        fit_concurrency(spec(1), NODE_FILES)
