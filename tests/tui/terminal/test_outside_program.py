"""The command of the pager and the editor, and why it cannot be used."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.terminal import Program, ProgramError, program_command, safe_copy
from tests.support.console.fake_session import files_session
from tests.support.console.live_items import ESCAPES, HOSTILE
from tests.support.console.pilot import console_pilot, wait_for_text


@pytest.mark.parametrize(
    ("program", "environ", "command"),
    [
        ("pager", {"PAGER": "cat -A \"a b\" '$HOME;ls'"}, ["cat", "-A", "a b", "$HOME;ls"]),
        ("editor", {"EDITOR": "cat"}, ["cat"]),
        ("editor", {"EDITOR": "cat", "VISUAL": "ls -l"}, ["ls", "-l"]),
        ("editor", {"EDITOR": "cat", "VISUAL": " "}, ["cat"]),
    ],
)
def test_a_command_is_split_without_a_shell(program: Program, environ: Mapping[str, str], command: list[str]) -> None:
    assert program_command(program, environ) == command


@pytest.mark.parametrize(
    ("text", "reason"),
    [("less 'a", "is not a valid command"), ("no-such-pager -x", "names no installed program"), ("''", "names no")],
)
def test_a_command_that_cannot_run_is_refused_with_the_variable(text: str, reason: str) -> None:
    with pytest.raises(ProgramError, match=f"PAGER=.*{reason}"):
        program_command("pager", {"PAGER": text})


def test_without_a_variable_an_installed_program_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProgramError, match="no pager is installed; set PAGER"):
        program_command("pager", {})


async def test_without_a_terminal_the_reason_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "cat")
    async with console_pilot(files_session()) as pilot:
        await wait_for_text(pilot, "3 episodes")
        await pilot.press("P")
        await wait_for_text(pilot, "not opened: cat needs a terminal")


@pytest.mark.parametrize("text", [*ESCAPES, HOSTILE])
def test_a_pager_or_editor_gets_no_control_character(text: str) -> None:
    assert not has_unsafe_chars(safe_copy(text).decode())
