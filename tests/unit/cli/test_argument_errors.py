"""Errors of the command line show unsafe characters of the arguments."""

from __future__ import annotations

import pytest

from agentgym_tui.cli import main as main_console
from runner.cli import main as main_runner

HOSTILE = "--\x1b]52;c;QQ==\x07a" + "\u0301" * 5 + "\ue000"
SHOWN = "␛]52;c;QQ==␇a\u0301\u0301(+3 marks)\\u{e000}"


@pytest.mark.parametrize(
    "command", ["--results", "node", "watch", "outbox", "preflight", "nats-info", "serve", "serve-model"]
)
def test_the_runner_shows_an_unknown_argument_safely(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_runner([command, HOSTILE])
    check_safe(capsys.readouterr().err)


@pytest.mark.parametrize("command", [["config"], ["open", "x"], ["watch"]])
def test_the_console_shows_an_unknown_argument_safely(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_console([*command, HOSTILE])
    check_safe(capsys.readouterr().err)


def check_safe(error: str) -> None:
    assert SHOWN in error
    assert "\x1b" not in error


def test_a_wrong_subcommand_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_runner(["wath", "--json"]) == 2
    assert "there is no subcommand 'wath'; did you mean 'watch'?" in capsys.readouterr().err
    assert main_runner(["BabyAI"]) == 2
    assert capsys.readouterr().err == (
        "agentgym-runner: there is no subcommand 'BabyAI'; --help lists all, and runs start with --run\n"
    )
