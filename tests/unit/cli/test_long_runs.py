"""Options of longer runs: budgets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.cli import main
from runner.cli.arguments import parse_options
from runner.cli.run_session import RunSession
from runner.config import Profile
from runner.types import Budget
from tests.conftest import Install
from tests.unit.batch.test_budget import Flaky

RUN = ["--run", "Maze", "--agent", "oracle"]


def session(*argv: str) -> RunSession:
    return RunSession(options=parse_options(argv), profile=Profile(id="p"), data_dir=Path("data"), node="n")


def test_the_options_of_a_budget_reach_the_batch() -> None:
    options = ["--budget-cost", "2.5", "--budget-tokens", "1000", "--budget-errors", "3"]
    (batch,) = session(*RUN, *options).batches()
    assert batch.spec.budget == Budget(cost=2.5, tokens=1000, errors_in_a_row=3)
    (unlimited,) = session(*RUN).batches()
    assert unlimited.spec.budget is None


@pytest.mark.parametrize(
    ("option", "value"), [("cost", "0"), ("cost", "nan"), ("cost", "inf"), ("tokens", "0"), ("errors", "1.5")]
)
def test_a_budget_is_a_positive_number(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options([*RUN, f"--budget-{option}", value])
    assert f"--budget-{option}" in capsys.readouterr().err


def test_a_run_whose_budget_is_used_up_ends_with_130_and_the_command_for_the_rest(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(envs={"Flaky": "tests.unit.batch.test_budget:Flaky"}, agents={"up": "tests.support.fakes:UpAgent"})
    monkeypatch.setattr(Flaky, "broken", frozenset({1, 2}))
    argv = ["--run", "Flaky", "--agent", "up", "--repeat", "9", "--workers", "0", "--budget-errors", "2"]
    assert main([*argv, "--data-dir", str(tmp_path / "data"), "--json"]) == 130
    output = capsys.readouterr()
    (batch,) = json.loads(output.out)["batches"]
    assert (batch["status"], batch["interrupted_by"], batch["n_episodes"]) == ("interrupted", "budget", 3)
    assert "Flaky: interrupted: 2 episodes in a row ended with an error; the last one: " in output.err
    assert "--budget-errors 2" in output.err
    assert "--task-index 3 --repeat 6" in output.err
    assert "Start the server again" not in output.err
