from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.dialogs.texts import HexDumpDialog
from agentgym_tui.screens.episode_lists import EpisodesScreen
from agentgym_tui.screens.line_browser import LogScreen
from agentgym_tui.widgets.payload_view import TextView
from tests.support.console.log_consoles import log_line, log_lines, log_screen, logs_app, logs_pilot, wait_until_read
from tests.support.console.pilot import (
    SIZE,
    toast_text,
    type_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.console.samples import HOSTILE


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a new file under the name of an existing one."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_bytes(log_lines(500))
    return path


class DerivedLogScreen(LogScreen):
    """A log screen that is defined in another folder than its style sheet."""


async def test_a_growing_log_is_read_zoomed_and_followed(log: Path) -> None:
    async with logs_pilot(log) as pilot:
        await wait_until_read(pilot, 500)
        await wait_for_widget_text(
            pilot, "#lines", '"number": 0', "token", "05:06:07.000" if os.environ.get("TZ") else ":07.000"
        )
        await wait_for_widget_text(pilot, "#payload", '"number": 0')
        await pilot.press("j")
        await wait_for_widget_text(pilot, "#payload", '"number": 1')
        assert "G follows the end" in widget_text(pilot, "#summary")
        await pilot.press("enter")
        await wait_until(pilot, lambda: log_screen(pilot).query_one(TextView).has_focus)
        await pilot.press("z")
        await wait_until(pilot, lambda: not log_screen(pilot).table.display)
        await pilot.press("z", "tab")
        await wait_until(pilot, lambda: log_screen(pilot).table.display and log_screen(pilot).table.has_focus)
        await pilot.press("z")
        await wait_until(pilot, lambda: not log_screen(pilot).payload.display)
        await pilot.press("z", "G")
        await wait_for_widget_text(pilot, "#summary", "● following the end")
        append(log, log_lines(1, 500) + b'{"number": 501')
        await wait_for_widget_text(pilot, "#payload", '{"number": 501')
        append(log, b"1}\n")
        await wait_for_widget_text(pilot, "#payload", '"number": 5011')
        await pilot.press("k")
        await wait_for_widget_text(pilot, "#summary", "G follows the end")
        append(log, log_lines(1, 600))
        await wait_until_read(pilot, 503)
        assert '"number": 600' not in widget_text(pilot, "#lines")
        await pilot.press("g")
        await wait_for_widget_text(pilot, "#lines", '"number": 0')
        await pilot.press("2")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, EpisodesScreen))
        append(log, log_lines(1, 700))
        await pilot.press("4")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, LogScreen))
        await wait_until_read(pilot, 504)
        derived = DerivedLogScreen(ScreenContext(log_screen(pilot).session))
        await pilot.app.push_screen(derived)
        await wait_until(pilot, lambda: pilot.app.screen is derived and derived.is_ready)


@pytest.mark.parametrize(("share", "focused"), [(20, "lines"), (80, "payload")])
async def test_panes_have_their_restored_sizes_and_are_resized(log: Path, share: int, focused: str) -> None:
    app = logs_app(log)
    app.ui_state.sizes["log.lines"] = share
    async with app.run_test(size=(60, 20), notifications=True) as pilot:
        await wait_until(pilot, lambda: log_screen(pilot).is_ready)
        lines, message = (log_screen(pilot).query_one(f"#{name}") for name in ("lines", "message"))
        await wait_until(pilot, lambda: message.size.height > 2 and lines.size.height > 2)
        assert (lines.size.height > message.size.height) == (share > 50)
        log_screen(pilot).query_one(f"#{focused}").focus()
        await wait_until(pilot, lambda: pilot.app.focused is not None and pilot.app.focused.id == focused)
        await pilot.press("equals_sign")
        await pilot.resize_terminal(*SIZE)
        await wait_until(pilot, lambda: 0 < message.size.height < lines.size.height and lines.size.height > 15)
        pane = lines if focused == "lines" else message
        before = pane.size.height
        await pilot.press("plus")
        await wait_until(pilot, lambda: pane.size.height > before)
        await pilot.press("minus", "minus", "minus")
        await wait_until(pilot, lambda: pane.size.height < before)
        (kept,) = app.ui_state.sizes.values()
        await pilot.press("z")
        await wait_until(pilot, lambda: pane.size.height > 30)
        await pilot.press("z")
        await wait_until(pilot, lambda: pane.size.height < before)
        await pilot.press("greater_than_sign")
        await wait_until(pilot, lambda: "this pane cannot be made wider" in toast_text(pilot))
        assert list(app.ui_state.sizes.values()) == [kept]
        await pilot.press("equals_sign")
        await wait_until(pilot, lambda: pane.size.height == before and not app.ui_state.sizes)
    for each in app.session.logs:
        each.close()


async def test_a_filter_shows_matching_lines_and_escape_shows_all_around_the_same_line(log: Path) -> None:
    async with logs_pilot(log) as pilot:
        await pilot.press("slash")
        await type_text(pilot, "TOKEN 42}")
        await wait_for_widget_text(pilot, "#summary", "matches TOKEN 42} (esc clears)", "5 match")
        await wait_for_widget_text(pilot, "#lines", '"number": 42', '"number": 142')
        append(log, log_lines(1, 4_242))
        await wait_for_widget_text(pilot, "#summary", "6 match")
        await pilot.press("enter", "j")
        await wait_for_widget_text(pilot, "#payload", '"number": 142')
        await pilot.press("J")
        await type_text(pilot, "200", "enter")  # the next match after this line is selected
        await wait_for_widget_text(pilot, "#payload", '"number": 242')
        await pilot.press("escape")
        await wait_for_widget_text(pilot, "#lines", '"number": 241', '"number": 242')
        await wait_for_widget_text(pilot, "#payload", '"number": 242')
        assert not log_screen(pilot).query_one("#filter").display
        await pilot.press("slash")
        await type_text(pilot, "none")
        await wait_for_widget_text(pilot, "#nothing", "No line matches none")
        append(log, b"none such\n")
        await wait_for_widget_text(pilot, "#lines", "none such")


async def test_jumps_to_a_line_number_a_time_and_the_end_and_rejected_ones(log: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.log").write_bytes(b"a\nb\n")
    times = {"2026-03-04T05:10:00+00:00": 233, "2026-03-04T09:10:00+00:00": 499}
    async with logs_pilot(log, tmp_path / "plain.log") as pilot:
        await wait_until_read(pilot, 500)
        table = log_screen(pilot).table
        for text, number in {"300": 299, "2m": 379, "all": 0, **times}.items():
            await pilot.press("g", "j", "J")
            await type_text(pilot, text, "enter")
            await wait_for_widget_text(pilot, "#payload", f'"number": {number}')
            await wait_until(pilot, lambda: table.cursor == number and table.has_focus)  # noqa: B023
        await pilot.press("J")
        await type_text(pilot, "now", "enter")
        await wait_for_widget_text(pilot, "#summary", "● following the end")
        for text, problem in {"900": "the log has 500 lines", "x.y": "not a line number"}.items():
            await pilot.press("J")
            await type_text(pilot, text, "enter")
            await wait_until(pilot, lambda: problem in toast_text(pilot))  # noqa: B023
        await pilot.press("J", "x", "escape", "n", "J")
        await type_text(pilot, "14:30", "enter")
        await wait_until(pilot, lambda: "no timestamps found" in toast_text(pilot))


async def test_lines_of_any_bytes_and_size_are_shown_in_each_format_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats, path, wide = tmp_path / "formats", tmp_path / "any", tmp_path / "wide.log"
    replace_file(formats, log_line(0, text="\\u001b[2J").encode() + b"no json \x1b[2J\n")
    lines = [b"", b"\xff\xfe\x00 no text", b"x" * 3_000_000, b'{"level": "ERROR", "msg": "[/]"}\r', b"\x9b" * 50]
    replace_file(path, b"\n".join([*lines, HOSTILE.encode("utf-8", "replace"), b"end"]))
    replace_file(wide, b"x" * 57)
    async with logs_pilot(formats, path, wide) as pilot:
        copied: list[str] = []
        monkeypatch.setattr(pilot.app, "copy_to_clipboard", copied.append)
        await wait_for_widget_text(pilot, "#payload", '  "kind": "token"')
        await pilot.press("v")
        await wait_for_widget_text(pilot, "#payload", '", "kind": "token"')
        await pilot.press("v")
        await wait_for_widget_text(pilot, "#payload", "0000  7b 22 61 74")
        await pilot.press("v", "j")
        await wait_for_widget_text(pilot, "#payload", "no json ␛[2J")
        await pilot.press("y", "Y")
        await wait_until(pilot, lambda: copied == ["no json ␛[2J", "no json \x1b[2J"])
        await pilot.press("X")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, HexDumpDialog))
        await pilot.press("escape", "n")
        await wait_until_read(pilot, len(lines) + len(HOSTILE.split("\n")) + 1)
        await wait_for_widget_text(pilot, "#lines", "␀ no text", "xxxx…", "ERROR", "⚠", "end")
        await pilot.press("j", "j")
        await wait_for_widget_text(pilot, "#tabs", "3,000,000 B, first 1,048,576 shown")
        await pilot.press("j")
        await wait_for_widget_text(pilot, "#payload", '"msg": "[/]"')
        await pilot.press("n")
        await pilot.resize_terminal(80, 24)  # where the message has most of the line
        await wait_for_widget_text(pilot, "#lines", "x" * 57)
        await wait_for_widget_text(pilot, "#tabs", "line 1 · 57 B")


async def test_each_of_several_logs_keeps_its_filter_and_cursor(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text("first\nsecond\n")
    async with logs_pilot(log, other) as pilot:
        await wait_for_widget_text(pilot, "#summary", "1 of 2")
        await pilot.press("slash")
        await type_text(pilot, "99", "enter")
        await wait_for_widget_text(pilot, "#summary", "5 match")
        await pilot.press("j", "p")  # n goes to the next match while a filter is on
        await wait_for_widget_text(pilot, "#summary", "2 of 2", "2 lines")
        assert not log_screen(pilot).query_one("#filter").display and "matches" not in widget_text(pilot, "#summary")
        await pilot.press("G")
        await wait_for_widget_text(pilot, "#payload", "second")
        await pilot.press("n")
        await wait_for_widget_text(pilot, "#summary", "1 of 2", "matches 99")
        await wait_for_widget_text(pilot, "#payload", '"number": 199')
        await pilot.press("p")
        await wait_for_widget_text(pilot, "#summary", "2 of 2", "● following the end")
        append(other, b"third\n")
        await wait_for_widget_text(pilot, "#payload", "third")


async def test_a_truncated_replaced_or_unreadable_log_is_reported_and_read_again(log: Path, tmp_path: Path) -> None:
    unreadable = tmp_path / "no\x1bne.jsonl"
    async with logs_pilot(unreadable, log) as pilot:
        await wait_for_widget_text(pilot, "#nothing", "cannot be read", "no␛ne.jsonl", "No such file")
        await wait_for_widget_text(pilot, "#summary", "✗ cannot be read")
        unreadable.write_bytes(b"")
        await wait_for_widget_text(pilot, "#nothing", "Empty so far")
        append(unreadable, b"here\n")
        await wait_for_widget_text(pilot, "#lines", "here")
        await pilot.press("n", "slash")
        await type_text(pilot, "99", "enter")
        await wait_for_widget_text(pilot, "#summary", "5 match")
        os.truncate(log, len(log_lines(150)))
        await wait_for_widget_text(pilot, "#summary", "150 lines", "1 match", "file shrank")
        await pilot.press("escape")
        os.rename(log, log.with_name("old"))  # noqa: PTH104 - an async function
        await wait_for_widget_text(pilot, "#summary", "file was deleted")
        replace_file(log, b"new\n")
        await wait_for_widget_text(pilot, "#summary", "replaced by another file: ^r", "150 lines")
        await pilot.press("ctrl+r")
        await wait_for_widget_text(pilot, "#payload", "new")
        await pilot.press("G")
        await wait_for_widget_text(pilot, "#summary", "● following the end")
        replace_file(log, b"newer\n")
        await wait_for_widget_text(pilot, "#payload", "newer")


async def test_the_console_can_exit_at_its_first_paint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(log_lines(3))
    app = logs_app(path)
    on_mount = LogScreen.on_mount

    def exit_after_refresh(screen: LogScreen) -> None:
        screen.call_after_refresh(app.exit)
        on_mount(screen)

    monkeypatch.setattr(LogScreen, "on_mount", exit_after_refresh)
    async with asyncio.timeout(20):
        await app.run_async(headless=True)
    assert app.return_code == 0


async def test_a_log_is_the_first_screen_where_python_has_eager_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def factory(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(work, loop=loop, context=context)

    if not hasattr(asyncio, "eager_task_factory"):  # before Python 3.12
        monkeypatch.setattr(asyncio, "eager_task_factory", factory, raising=False)
    path = tmp_path / "log.jsonl"
    path.write_bytes(log_lines(3))
    app, seen = logs_app(path), []

    async def leave(pilot: Pilot[Any]) -> None:
        seen.append((isinstance(pilot.app.screen, LogScreen), asyncio.get_running_loop().get_task_factory()))
        pilot.app.exit()

    async with asyncio.timeout(20):
        await app.run_async(headless=True, auto_pilot=leave)
    assert (app.return_code, seen) == (0, [(True, None)])


async def test_n_goes_through_the_lines_with_the_words_among_all_lines(log: Path) -> None:
    async with logs_pilot(log) as pilot:
        await wait_until_read(pilot, 500)
        screen, summary, lines = log_screen(pilot), "#summary", "#lines"
        views = [screen.table, screen.payload.query_one(TextView)]
        await pilot.press("slash", *'"05:14:2"', "enter")
        await wait_for_widget_text(pilot, summary, "7 match", "n N: next, among all lines")
        assert "n Next  N Previous" in widget_text(pilot, "KeyBar")
        assert '"number": 492' not in widget_text(pilot, lines)
        await pilot.press("n")  # from the first match to the second one
        await wait_until(pilot, lambda: screen.table.key == "494")
        await wait_for_widget_text(pilot, lines, '"number": 492', '"number": 494')
        assert all(view.found is not None for view in views)
        await pilot.press("N", "N")
        await wait_until(pilot, lambda: screen.table.key == "499")  # before the first match comes the last one
        await pilot.press("n")
        await wait_until(pilot, lambda: screen.table.key == "493")
        await pilot.press("slash", "enter")
        await wait_until(pilot, lambda: '"number": 492' not in widget_text(pilot, lines))
        await pilot.press("escape")
        await wait_until(pilot, lambda: "match" not in widget_text(pilot, summary))
        assert [view.found for view in views] == [None, None]
        await pilot.press("n")
        await wait_until(pilot, lambda: "no other log is open" in toast_text(pilot))
