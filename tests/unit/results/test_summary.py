from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from runner.errors import StoreError
from runner.results.statistics import wilson_interval
from runner.results.summary import _QUERY, Selection, summarize_results
from runner.store import EpisodeIndex, open_index
from runner.store.index_schema import TIME_COLUMNS
from runner.types import UNRATED, Outcome, Phases, Tokens
from tests.support.are_episodes import DETAILS, IDLE, JUDGE_FAILED, MISSED, are_record, store_records
from tests.support.episodes import FixedMeter, RecordedEpisode, make_step, newest_rows


def record_episode(
    index: EpisodeIndex,
    outcome: Outcome,
    rounds: int = 2,
    duration_s: float = 1.0,
    **fields: Any,  # noqa: ANN401
) -> None:
    recording = RecordedEpisode(index._store, index, **fields)
    recording.record_episode(rounds, outcome=outcome, success=outcome is Outcome.SUCCESS, duration_s=duration_s)


def test_model_usage_is_summed_and_zero_for_baselines(index: EpisodeIndex) -> None:
    for model_s in (0.5, 1.5):
        recording = RecordedEpisode(index._store, index, model="small", agent="react")
        recording.start()
        recording.play(make_step(0, endpoint="gateway", model_s=model_s, tokens=Tokens(10, 5, 2, 1)))
        recording.end()
    record_episode(index, Outcome.SUCCESS)
    by_model = {row.model: row for row in summarize_results(index)}
    assert (by_model["small"].tokens, by_model["small"].latency_s) == (Tokens(20, 10, 4, 2), 1.0)
    assert by_model[None].latency_s is None


def test_the_metrics_of_a_profile_are_computed(index: EpisodeIndex) -> None:
    record_episode(index, Outcome.SUCCESS, rounds=2, duration_s=1.0, model="small", agent="react")
    record_episode(index, Outcome.FAILURE, rounds=4, duration_s=4.0, model="small", agent="react")
    (row,) = summarize_results(index)
    assert (row.env, row.agent, row.model, row.baseline) == ("Maze", "react", "small", False)
    assert (row.n, row.n_rated, row.n_success, row.success_rate) == (2, 2, 1, 0.5)
    assert row.success_interval == wilson_interval(1, 2)
    assert (row.score, row.avg_rounds, row.completion_time_sec) == (0.75, 3.0, 2.5)
    assert row.token_count == 36.0
    assert row.cost == 3.0
    assert row.outcomes == {"success": 1, "failure": 1}


def test_stopped_episodes_and_errors_are_counted_but_not_rated(index: EpisodeIndex) -> None:
    for outcome in Outcome:
        record_episode(index, outcome, rounds=9 if outcome in UNRATED else 3)
    (row,) = summarize_results(index)
    assert (row.n, row.n_rated, row.n_success, row.n_errors) == (7, 4, 1, 1)
    assert row.success_rate == 0.25
    assert row.avg_rounds == 3.0
    assert row.outcomes == dict.fromkeys(Outcome, 1)


@pytest.mark.parametrize("outcome", sorted(UNRATED))
def test_without_rated_episodes_there_is_no_rate(index: EpisodeIndex, outcome: Outcome) -> None:
    record_episode(index, outcome)
    (row,) = summarize_results(index)
    assert (row.n, row.n_rated) == (1, 0)
    assert (row.success_rate, row.success_interval, row.score, row.token_count) == (None, None, None, None)


def test_baselines_follow_the_models_of_their_environment(index: EpisodeIndex) -> None:
    for env, agent, model in [("Maze", "oracle", None), ("Wordle", "random", None), ("Maze", "react", "small")]:
        record_episode(index, Outcome.SUCCESS, env=env, agent=agent, model=model)
    rows = [(row.env, row.agent, row.baseline) for row in summarize_results(index)]
    assert rows == [("Maze", "react", False), ("Maze", "oracle", True), ("Wordle", "random", True)]


def test_data_labels_and_modes_have_separate_rows(index: EpisodeIndex) -> None:
    variants: list[dict[str, Any]] = [{}, {"mode": "compat"}, {"data_label": "local scenes"}, {}]
    for fields in variants:
        record_episode(index, Outcome.SUCCESS, **fields)
    rows = [(row.data_label, row.mode, row.n) for row in summarize_results(index)]
    assert rows == [("", "compat", 1), ("", "strict", 2), ("local scenes", "strict", 1)]


def test_environment_names_are_case_insensitive(index: EpisodeIndex) -> None:
    record_episode(index, Outcome.SUCCESS, env="Maze")
    record_episode(index, Outcome.SUCCESS, env="Wordle")
    assert [row.env for row in summarize_results(index, Selection(env="wORDLE"))] == ["Wordle"]
    assert summarize_results(index, Selection(env="'; DROP TABLE episodes --")) == []


@pytest.mark.parametrize(("column", "value"), [("env", 1), ("agent", b"\xff"), ("success", 5), ("success", 1e308)])
def test_values_that_no_episode_has_are_an_error_of_the_index(index: EpisodeIndex, column: str, value: object) -> None:
    for _ in range(2):
        record_episode(index, Outcome.SUCCESS)
    with sqlite3.connect(index._store.data_dir / "index.sqlite") as connection:
        connection.execute(f"UPDATE episodes SET {column} = ?", (value,))
    connection.close()
    with pytest.raises(StoreError, match=r"index\.sqlite cannot be used: .*delete the file"):
        summarize_results(index)


def test_validation_success_counts_and_unscored_episodes_and_judge_errors_do_not(index: EpisodeIndex) -> None:
    records = [are_record(evaluation) for evaluation in (DETAILS, DETAILS, MISSED, JUDGE_FAILED, IDLE, IDLE)]
    for record in records:
        index._store.create_batch_folder(record.batch_id)
    store_records(index, index._store, *records)
    (row,) = summarize_results(index)
    assert (row.n, row.n_rated, row.n_success, row.n_errors, row.n_unscored) == (6, 3, 2, 1, 2)
    assert row.success_rate == pytest.approx(2 / 3)
    assert row.outcomes == {"success": 4, "failure": 1, "error": 1}
    assert [found.unscored for found in newest_rows(index)].count(True) == 2


def test_the_file_of_an_episode_names_the_category_of_a_failed_judge(index: EpisodeIndex) -> None:
    record = are_record(JUDGE_FAILED)
    index._store.create_batch_folder(record.batch_id)
    loaded = index._store.load(index._store.save(record))
    assert loaded.error is not None and loaded.error.category == "evaluation"
    assert (loaded.outcome, loaded.evaluation) == (Outcome.ERROR, JUDGE_FAILED)


def test_results_are_summed_without_sorting(index: EpisodeIndex) -> None:
    query = _QUERY.format(success="success", reward="reward", condition="TRUE")
    plan = [step[-1] for step in index.select(f"EXPLAIN QUERY PLAN {query}")]
    assert plan == ["SCAN episodes USING COVERING INDEX results"]


def play_measured(index: EpisodeIndex, meter: FixedMeter | None, phases: Phases | None, **step: Any) -> None:  # noqa: ANN401
    recording = RecordedEpisode(index._store, index, model="small", agent="react", meter=meter)
    recording.start()
    recording.play(make_step(0, phases=phases, **step))
    recording.end()


def test_gpu_energy_and_seconds_are_means_over_the_measured_episodes(index: EpisodeIndex) -> None:
    play_measured(index, FixedMeter(energy_j=10.0, gpu_s=1.0), None)
    play_measured(index, FixedMeter(energy_j=30.0, energy_shared=True), None)
    play_measured(index, None, None)
    (row,) = summarize_results(index)
    assert (row.n, row.energy_j, row.gpu_s, row.energy_shared) == (3, 20.0, 1.0, True)
    assert (row.time_shares, row.time_text) == (None, "")


def test_time_shares_are_those_of_the_steps_with_a_split(index: EpisodeIndex) -> None:
    play_measured(index, None, Phases(queue=1.0, prefill=0.5, decode=2.0, model=4.0, env=3.0, own=1.0, about=True))
    play_measured(index, None, Phases(model=1.0, own=1.0), endpoint="b", warnings=("a: away",))
    play_measured(index, None, None)
    (row,) = summarize_results(index)
    assert row.time_shares == pytest.approx(
        {"queue": 0.1, "prefill": 0.05, "decode": 0.2, "model": 0.15, "environment": 0.3, "endpoint": 0.1, "own": 0.1}
    )
    assert row.times_about and row.time_text.startswith("environment 30%, decode about 20%, ")
    assert (row.energy_j, row.gpu_s, row.energy_shared) == (None, None, False)


def test_an_index_of_the_version_before_gets_energy_and_times_from_the_files(index: EpisodeIndex) -> None:
    play_measured(index, FixedMeter(energy_j=10.0), Phases(model=1.0, own=3.0))
    index.close()
    with closing(sqlite3.connect(index.data_dir / "index.sqlite", isolation_level=None)) as connection:
        connection.execute("DROP INDEX results")
        for column in ("energy_j", "energy_shared", "gpu_s", *TIME_COLUMNS.values(), "times_about"):
            connection.execute(f"ALTER TABLE episodes DROP COLUMN {column}")
        connection.execute("PRAGMA user_version = 5")
    upgraded = open_index(index._store)
    (row,) = summarize_results(upgraded)
    assert (row.energy_j, row.time_shares) == (10.0, {**dict.fromkeys(TIME_COLUMNS, 0.0), "model": 0.25, "own": 0.75})
    upgraded.close()
