"""Errors of the command line before the console starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tui import cli
from agentgym_tui import terminal as terminal_run


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("launch", ["--config", "nope"], "There is no profile named nope"),
        ("watch", ["--config", "\x1b[2J"], "'␛[2J' is not a valid profile name"),
        ("launch", ["--node", "a b"], "--node: expected a name of 1 to 64 letters"),
    ],
)
def test_an_invalid_profile_or_node_name_is_rejected_before_the_console_starts(
    command: str, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal_run, "unsupported_reason", lambda _: None)
    assert cli.main([command, *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"agentgym-tui: {message}")
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_no_profile_is_read_without_the_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "field-runner-4090.yaml").write_text("no: [profile")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal_run, "unsupported_reason", lambda _: None)
    monkeypatch.setattr(cli, "_run_console", lambda args: len(cli._session(args, "N").store.nodes))
    assert cli.main(["launch", "--data-dir", str(tmp_path)]) == 0


def test_a_missing_path_and_a_wrong_subcommand_end_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["open", str(tmp_path / "n\x1bope")]) == 2
    error = capsys.readouterr().err
    assert f"there is no file or folder {tmp_path}/n" in error
    assert "\x1b" not in error
    for command in (["open", "x" * 300], ["watch", "--data-dir", "x" * 300]):
        assert cli.main(command) == 2
        assert capsys.readouterr().err.startswith("agentgym-tui: ")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["lunch"])
    assert "did you mean 'launch'?" in capsys.readouterr().err
