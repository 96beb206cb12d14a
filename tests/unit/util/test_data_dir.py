from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.util.files import default_data_dir
from tests.support.command import REPOSITORY


def test_state_lies_in_the_platforms_folder_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_data_dir({"XDG_DATA_HOME": "/xdg"}, tmp_path) == (Path("/xdg/agentgym-console"), "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    for environ in ({}, {"XDG_DATA_HOME": "relative"}):
        found = default_data_dir(environ, tmp_path)
        assert found.path.is_absolute() and found.path.is_relative_to(tmp_path / "home") and not found.notice
        assert found.path.name == "agentgym-console"


def test_linux_keeps_state_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for base in ("", "relative"):
        path = default_data_dir({"HOME": "/home/me", "XDG_DATA_HOME": base}, tmp_path).path
        assert path == Path("/home/me/.local/share/agentgym-console")


def test_a_folder_of_another_project_named_data_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data" / "runs" / "experiment").mkdir(parents=True)
    assert default_data_dir({"XDG_DATA_HOME": "/xdg"}, tmp_path).path == Path("/xdg/agentgym-console")


@pytest.mark.parametrize(
    "content", ["node.lock", "index.sqlite", "outbox.sqlite", "runs/01JZ0000000000000000000000/x.json"]
)
def test_a_folder_that_holds_state_goes_on_being_used(tmp_path: Path, content: str) -> None:
    file = tmp_path / "data" / content
    file.parent.mkdir(parents=True)
    file.touch()
    path, notice = default_data_dir({"XDG_DATA_HOME": "/xdg"}, tmp_path)
    assert path == tmp_path / "data"
    assert str(path) in notice and "/xdg/agentgym-console" in notice and "--data-dir" in notice


def test_a_checkout_keeps_its_state_in_its_own_folder(tmp_path: Path) -> None:
    for cwd in (REPOSITORY, REPOSITORY / "docs"):
        assert default_data_dir({"XDG_DATA_HOME": str(tmp_path)}, cwd) == (REPOSITORY / "data", "")
