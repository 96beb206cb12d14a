"""The tables of a run and of all stored episodes, and ``--results`` as a gate of a script."""

from __future__ import annotations

import io
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from runner.batch.result import BatchStats
from runner.batch.spec import BatchSpec
from runner.cli import main
from runner.cli.results import print_results
from runner.cli.run import print_summary, report_errors
from runner.cli.terminal import print_table
from runner.results.summary import summarize_results
from runner.store import EpisodeIndex, EpisodeStore, open_index
from runner.types import Outcome, Tokens
from tests.support.are_episodes import DETAILS, IDLE, are_record, store_records
from tests.support.episodes import RecordedEpisode, make_step, record_episodes

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


OLD, NEW, TEXT = "01J00000000000000000000001", "01J00000000000000000000002", "01J00000000000000000000003"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Six tasks, all won in the old batch and all lost in the new one."""
    store = EpisodeStore(tmp_path / "data")
    index = open_index(store)
    for batch, outcome in ((OLD, Outcome.SUCCESS), (NEW, Outcome.FAILURE)):
        for task in range(6):
            recording = RecordedEpisode(store, index, batch_id=batch, task_index=task, agent="react", model="small")
            recording.record_episode(1, outcome=outcome, success=outcome is Outcome.SUCCESS)
    index.close()
    return store.data_dir


def results(data_dir: Path, *options: str) -> int:
    return main(["--results", "--data-dir", str(data_dir), *options])


CONDITIONS = [
    (["--fail-below", "0.5"], 0),
    (["--fail-below", "0.6"], 3),
    (["--fail-below", "1", "--batch", OLD], 0),
    (["--against", OLD], 3),
    (["--against", NEW, "--batch", OLD], 0),
    (["--fail-below", "0", "--agent", "oracle"], 3),
    (["--fail-below", "0.6", "--against", OLD, "--batch", NEW], 3),
]


def test_a_condition_that_is_not_met_is_exit_code_3_and_a_sentence_with_rate_and_bound(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, code in CONDITIONS:
        assert results(data_dir, *options) == code, options
        errors = capsys.readouterr().err
        assert ("Not met: " in errors) is (code == 3), options
    assert "react small in Maze: success rate 0.0% is below 60.0%" in errors
    assert f"6 tasks lost and 0 won against {OLD}, p = 0.0312" in errors


def test_models_and_baselines_are_rows_of_one_table_in_a_pipe_of_any_width(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    record_episodes(data_dir, batch_id=TEXT, agent="oracle", model=None)
    assert results(data_dir) == 0
    _, _, header, _, *rows = capsys.readouterr().out.splitlines()
    names = [name.strip() for name in header.strip("┃").split("┃")]
    assert (names[:4], names[-3:]) == (["environment", "agent", "model", "n"], ["tokens", "latency", "cost"])
    players = [[cell.strip() for cell in row.strip("│").split("│")] for row in rows[:2]]
    assert [cells[1:3] for cells in players] == [["react", "small"], ["oracle", "baseline"]]
    assert {len(cells) for cells in players} == {len(names)}


def test_an_unknown_batch_is_invalid_usage_and_a_matrix_is_printed_or_json(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert results(data_dir, "--batch", "nope") == 2
    assert "--batch nope: no batch or battery with this id has an episode" in capsys.readouterr().err
    results(data_dir, "--json", "--matrix", "--against", OLD)
    document = json.loads(capsys.readouterr().out)
    (matrix,) = document["matrices"]
    assert [task["task_index"] for task in matrix["tasks"]] == list(range(6))
    assert len(document["comparison"]["lost"]) == 6
    assert results(data_dir, "--matrix") == 0
    output = capsys.readouterr().out
    assert "+ -" in output
    assert "pass^k" in output


def test_results_show_the_shape_of_requests_and_a_comparison_names_it(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    store = EpisodeStore(data_dir)
    with closing(open_index(store)) as index:
        for task in range(6):
            recording = RecordedEpisode(store, index, batch_id=TEXT, task_index=task, agent="react", model="small")
            recording.record_episode(1, shape="tools as text", outcome=Outcome.FAILURE, success=False)
    assert results(data_dir, "--matrix", "--batch", TEXT, "--against", OLD, "--fail-below", "0.1") == 3
    output, errors = capsys.readouterr()
    assert output.count("Maze · tools as text") == 3
    assert "p = 0.0312 (sign test); requests differ: selection tools as text, the other as usual" in errors
    assert "react small in Maze · tools as text: success rate 0.0%" in errors
    assert results(data_dir, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [(row["shape"], row["n"]) for row in rows] == [("", 12), ("tools as text", 6)]


@pytest.mark.parametrize("option", [["--matrix"], ["--fail-below", "0.5"], ["--against", OLD], ["--batch", OLD]])
def test_options_of_results_need_results(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--list-envs", *option])
    assert "only valid with --results" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("agent", "currency", "expected"),
    [("{}", "EUR", "EUR"), ("{}", None, "USD"), ("{price: {small: {prompt_per_mtok: 1}}}", "EUR", "USD")],
)
def test_costs_have_the_currency_of_the_prices_else_that_of_the_stored_episodes(
    tmp_path: Path, agent: str, currency: str | None, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record_episodes(tmp_path, 2, currency=currency, agent="react", model="small")
    profile = tmp_path / "profile.yaml"
    profile.write_text(f"id: p\nagent: {agent}\n")
    assert results(tmp_path, "--json", "--config", str(profile)) == 0
    assert json.loads(capsys.readouterr().out)["currency"] == expected
    assert main(["episodes", "--data-dir", str(tmp_path), "--config", str(profile)]) == 0
    assert capsys.readouterr().out.count(f"1.00 {expected}") == 2
