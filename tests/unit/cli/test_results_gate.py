"""``--results`` as a gate of a script: the exit code, and the sentence that names what is not met."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from runner.cli import main
from runner.store import EpisodeStore, open_index
from runner.types import Outcome
from tests.support.episodes import RecordedEpisode, record_episodes

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
