"""One version number, and one list of quick checks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import agentgym_tui.cli
import runner.cli
from runner import __version__

ROOT = Path(__file__).parents[2]


def test_the_newest_version_of_the_change_log_is_the_version_of_both_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    versions = re.findall(r"^## (\d\S*) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert versions[0] == __version__ and len(set(versions)) == len(versions)
    for main in (runner.cli.main, agentgym_tui.cli.main):
        with pytest.raises(SystemExit, match="0"):
            main(["--version"])
    assert capsys.readouterr().out.splitlines() == [f"agentgym-runner {__version__}", f"agentgym-tui {__version__}"]


def test_make_check_runs_every_hook() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    recipe = (ROOT / "Makefile").read_text("utf-8").replace("$(BIN)", ".venv/bin")
    assert local["repo"] == "local" and len(local["hooks"]) == 4
    assert [hook["id"] for hook in local["hooks"] if f"\t{hook['entry']}" not in recipe] == []
