from __future__ import annotations

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Button

from agentgym_tui import cli
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.services import messages, screenshot_svg, toast
from agentgym_tui.sessions.session import FileSession
from agentgym_tui.sinks import as_label
from agentgym_tui.terminal import write_report
from agentgym_tui.widgets.inputs import SearchInput
from tests.support.console.live_items import ESCAPES, HOSTILE
from tests.support.console.pilot import screen_text

pytestmark = pytest.mark.parametrize("text", [*ESCAPES, HOSTILE])


class Exits(App[None]):
    """Shows a text by every exit that a widget has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield SearchInput(self._text, id="value")
        yield SearchInput(placeholder=self._text, id="placeholder")
        yield Button(as_label(self._text))

    def on_mount(self) -> None:
        self.screen.border_title = as_label(self._text)
        toast(self, self._text, failed=True)


async def test_no_exit_passes_a_control_character(text: str) -> None:
    app = Exits(text)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.pause()
        assert not has_unsafe_chars(screen_text(app))
        assert not has_unsafe_chars(messages(app)[0].text)
        assert not has_unsafe_chars(pilot.app.query_one("#value", SearchInput).value)
        assert not has_unsafe_chars(str(pilot.app.query_one("#placeholder", SearchInput).placeholder))


def test_the_command_names_a_missing_path_safely(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = (
        "/missing"
        + text.replace("\0", "").encode("utf-8", "surrogateescape" if "\udc80" in text else "replace").decode()
    )
    assert cli.main(["open", path]) == 2
    error = capsys.readouterr().err
    assert "there is no file or folder" in error and not has_unsafe_chars(error)


def test_a_crash_report_is_safe(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = type(text.replace("\0", "").replace("\ud800", ""), (Exception,), {"__module__": "m"})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = write_report(failing(), FileSession([]))
    assert isinstance(path, Path)
    assert not has_unsafe_chars(path.read_text("utf-8"))


async def test_the_title_of_a_picture_is_safe(text: str) -> None:
    async with Exits("").run_test() as pilot:
        assert not has_unsafe_chars(screenshot_svg(pilot.app, text))


def test_a_label_is_neither_markup_nor_several_lines(text: str) -> None:
    assert not has_unsafe_chars(as_label(text).plain) and "\n" not in as_label(text).plain
    assert as_label(f"[bold]{text}[/bold]").plain.startswith("[bold]")


def test_the_command_prints_no_control_character(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = text.replace("/", "").replace("\0", "").encode("utf-8", "replace").decode()[:60]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / name))
    assert cli.main(["config", "--write"]) == 0
    assert not has_unsafe_chars("".join(capsys.readouterr()))
