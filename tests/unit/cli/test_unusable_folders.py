"""A state directory that cannot be used, or a path that is missing, ends every command with code 2 and its cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tui import terminal as terminal_run
from agentgym_tui.cli import main as main_console
from runner.cli import main as main_runner
from runner.cli import preflight, run
from tests.support.command import run_shell

RUN = ["--run", "Maze", "--agent", "oracle"]
WRITING = [RUN, ["--battery", "lightweight", "--agent", "oracle"], ["node"]]
READING = [["--results"], ["outbox"], ["prune", "--older", "30d"], ["tag", "01"], ["nats-info"], ["watch"]]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the console think that it has a terminal."""
    monkeypatch.setattr(terminal_run, "unsupported_reason", lambda _: None)


def error_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Return what the runner writes to standard error, after it has ended with code 2 and no output."""
    assert main_runner(command) == 2, command
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_a_missing_folder_or_profile_or_a_folder_below_a_file_ends_the_runner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (run, preflight):
        monkeypatch.setattr(module, "reserve_stdout", lambda: None)  # which is never undone
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for command in (*WRITING, *READING):
        assert f"{tmp_path}/file/state" in error_of(capsys, *command, "--data-dir", "file/state")
    for command in READING:
        assert f"{tmp_path}/typo" in error_of(capsys, *command, "--data-dir", "typo")
        assert not (tmp_path / "typo").exists()
    for command in (RUN, ["node"], ["--results"], ["preflight"]):
        assert f"There is no profile {tmp_path}/none.yaml" in error_of(capsys, *command, "--config", "none.yaml")


@pytest.mark.long
@pytest.mark.parametrize("command", ["agentgym-runner --list-envs", "agentgym-runner episodes", "agentgym-tui open x"])
def test_a_deleted_current_folder_is_named(command: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    completed = run_shell(tmp_path, f"cd gone && rmdir ../gone && {command}")
    assert completed.returncode == 2
    assert f"the current folder {tmp_path}/gone has been deleted; change to another" in completed.stderr


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("environ", [False, True])
def test_an_unusable_folder_ends_the_console_before_it_starts(
    environ: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "state"
    if environ:
        monkeypatch.setenv("AGENTGYM_DATA_DIR", str(folder))
    assert main_console(["launch", *([] if environ else ["--data-dir", str(folder)])]) == 2
    error = capsys.readouterr().err
    assert f"the state directory {folder} cannot be used: {tmp_path}/file is not a folder" in error
    assert "--data-dir" in error


@pytest.mark.usefixtures("terminal")
def test_the_folder_of_the_profile_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    profile = tmp_path / "p.yaml"
    profile.write_text(f"id: p\ndata_dir: {tmp_path}/file/state\n")
    assert main_console(["launch", "--config", str(profile)]) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.usefixtures("terminal")
def test_watching_a_folder_without_a_node_ends_the_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_console(["watch", "--data-dir", str(tmp_path / "none")]) == 2
    assert f"no node has run in {tmp_path}/none" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("terminal")
def test_the_home_folder_of_an_unknown_user_is_a_relative_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main_console(["watch", "--data-dir", "~nobody-here/state"]) == 2
    assert f"no node has run in {tmp_path}/~nobody-here/state" in capsys.readouterr().err
