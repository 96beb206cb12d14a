"""The tables of a run and of all stored episodes: success rate of the scored episodes, errors apart."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from runner.batch.result import BatchStats
from runner.batch.spec import BatchSpec
from runner.cli.results import print_results
from runner.cli.run import print_summary, report_errors
from runner.cli.terminal import print_table
from runner.results.summary import summarize_results
from runner.store import EpisodeIndex
from runner.types import Outcome, Tokens
from tests.support.are_episodes import DETAILS, IDLE, are_record, store_records
from tests.support.episodes import RecordedEpisode, make_step

SIX_AND_SIX = [Outcome.SUCCESS, Outcome.ERROR] * 6


def record_outcomes(index: EpisodeIndex, outcomes: list[Outcome]) -> BatchStats:
    stats = BatchStats()
    for outcome in outcomes:
        recording = RecordedEpisode(index._store, index, agent="react", model="small")
        stats.add(recording.record_episode(outcome=outcome, success=outcome is Outcome.SUCCESS))
    return stats


def cells_by_column(table: str) -> dict[str, str]:
    """Return the cells of the only row, by column; the table may be printed as lines."""
    header, row = (line for line in table.splitlines() if line.startswith(("┃", "│")))
    return dict(zip(*([cell.strip() for cell in line[1:-1].split(line[0])] for line in (header, row)), strict=True))


@pytest.fixture(autouse=True)
def wide_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")


def test_a_batch_names_the_shapes_of_its_requests(
    index: EpisodeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = BatchStats()
    for shape in ("tools as text", "", "tools as text"):
        stats.add(RecordedEpisode(index._store, index, model="small").record_episode(shape=shape))
    spec = BatchSpec(env="Maze", agent="react", model="small", repeat=3)
    result = stats.result(spec, batch_id="b", battery_id=None, status="completed", data_label="", duration_s=1.0)
    assert result.shapes == {"tools as text": 2}
    print_summary([result], tmp_path / "data")
    assert cells_by_column(capsys.readouterr().out)["environment"] == "Maze · tools as text in 2"


@pytest.mark.parametrize(
    ("outcomes", "errors", "success", "interval"),
    [
        (SIX_AND_SIX, "6", "100.0% of 6", "61.0% to 100.0%"),
        ([Outcome.SUCCESS, Outcome.FAILURE], "0", "50.0%", "9.5% to 90.5%"),
        ([Outcome.ERROR] * 2, "2", "-", "-"),
    ],
)
def test_errors_have_a_column_of_their_own(
    outcomes: list[Outcome],
    errors: str,
    success: str,
    interval: str,
    index: EpisodeIndex,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stats = record_outcomes(index, outcomes)
    print_results(summarize_results(index), ["success_rate", "score"])
    stored = cells_by_column(capsys.readouterr().out)
    assert (stored["n"], stored["errors"], stored["success_rate"]) == (str(len(outcomes)), errors, success)
    assert stored["95% interval"] == interval
    ids: dict[str, Any] = {"batch_id": "b", "battery_id": None}
    spec = BatchSpec(env="Maze", agent="react", model="small", repeat=len(outcomes))
    result = stats.result(spec, **ids, status="completed", data_label="", duration_s=1.0)
    print_summary([result], tmp_path / "data")
    summary = cells_by_column(capsys.readouterr().out)
    assert (summary["episodes"], summary["errors"]) == (f"{len(outcomes)}/{len(outcomes)}", errors)
    assert (summary["success"], summary["95% interval"]) == (success, interval)


def test_unscored_episodes_are_marked_and_count_in_no_rate(
    index: EpisodeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = BatchStats()
    for evaluation in (DETAILS, IDLE):
        record = are_record(evaluation)
        index._store.create_batch_folder(record.batch_id)
        store_records(index, index._store, record)
        stats.add(record)
    print_results(summarize_results(index), ["success_rate"])
    stored = cells_by_column(capsys.readouterr().out)
    ids: dict[str, Any] = {"batch_id": "b", "battery_id": None}
    spec = BatchSpec(env="are:scenario_tutorial", agent="react", model="small", repeat=2)
    result = stats.result(spec, **ids, status="completed", data_label="", duration_s=1.0)
    print_summary([result], tmp_path / "data")
    summary = cells_by_column(capsys.readouterr().out)
    assert stored["success_rate"] == summary["success"] == "100.0% of 1"
    assert "2 success, 1 unscored: idle play can succeed, or an import has no result" in stored["outcomes"]
    assert "1 unscored: idle play can succeed" in summary["outcomes"]
    assert (result.n_rated, result.n_unscored) == (1, 1)


def test_costs_have_their_currency_and_no_exponent(capsys: pytest.CaptureFixture[str], index: EpisodeIndex) -> None:
    recording = RecordedEpisode(index._store, index, agent="react", model="small")
    recording.start()
    recording.reset()
    recording.play(make_step(0, tokens=Tokens(10, 2), cost=0.0000123))
    recording.end()
    print_results(summarize_results(index), ["success_rate"], "EUR")
    assert cells_by_column(capsys.readouterr().out)["cost"] == "0.0000123 EUR"


def test_wide_characters_keep_the_columns_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Table", ("name", "state"), [("日本語", "up"), ("one", "·")])
    assert {cell_len(line) for line in capsys.readouterr().out.splitlines()[1:]} == {len("| 日本語 | state |") + 3}


def test_a_table_for_an_encoding_without_its_lines_is_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", stream := io.TextIOWrapper(output, encoding="ascii"))
    print_table("Table", ("name", "state"), [("one", "up")])
    stream.flush()
    assert output.getvalue().decode("ascii").splitlines() == [
        "     Table",
        "+------+-------+",
        "| name | state |",
        "+------+-------+",
        "| one  | up    |",
        "+------+-------+",
    ]


def test_lines_of_several_batches_name_the_model(index: EpisodeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    stats = record_outcomes(index, [Outcome.SUCCESS, Outcome.ERROR])
    results = [
        stats.result(
            BatchSpec(env="Maze", agent="react", model=model, repeat=2),
            batch_id=batch_id,
            battery_id=None,
            status="completed",
            data_label="",
            duration_s=0.0,
        )
        for batch_id, model in (("A", "small"), ("B", "large"))
    ]
    report_errors(results, index.data_dir)
    lines = capsys.readouterr().err.splitlines()
    folders = [line for line in lines if "episodes in" in line]
    assert [line.partition(": ")[0] for line in folders] == ["Maze small", "Maze large"]
    assert {line.partition(": ")[0] for line in lines} == {"Maze small", "Maze large"}
    report_errors(results[:1], index.data_dir)
    assert f"Maze: episodes in {index.data_dir / 'runs' / 'A'}" in capsys.readouterr().err.splitlines()
