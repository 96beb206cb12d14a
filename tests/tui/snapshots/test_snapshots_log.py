from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tests.support.console.log_consoles import log_line, logs_app
from tests.support.console.pilot import wait_for_widget_text, wait_until
from tests.support.console.samples import HOSTILE

pytestmark = pytest.mark.usefixtures("utc")
Compare = Callable[..., bool]
Before = Callable[[Pilot[None]], Awaitable[None]]

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names of files are those of one folder, wherever it is."""
    monkeypatch.chdir(tmp_path)


def lines() -> bytes:
    kinds = ("episode.started", "timestep", "token", "token", "span", "token")
    shown = [log_line(n, kinds[n % 6], episode_id=f"01KA{n // 50:022}", text="word " * (n % 17)) for n in range(400)]
    return "".join(shown).encode() + b"2026-03-04 05:20:00,123 ERROR runner.node the broker is gone\n{}\n"


def after(*texts: str, keys: tuple[str, ...] = (), then: str = "", more: tuple[str, ...] = ()) -> Before:
    async def go(pilot: Pilot[None]) -> None:
        await wait_for_widget_text(pilot, "#summary", *texts)
        await wait_until(pilot, lambda: len(pilot.app.screen.query("#filter, #entry, #nothing")) == 3)
        for blinking in pilot.app.screen.query(Input):
            blinking.cursor_blink = False
        await pilot.press(*keys)
        await wait_for_widget_text(pilot, "#summary", then)
        await pilot.press(*more)
        await pilot.pause(0.25)

    return go


@SIZES
def test_the_end_of_a_log(snap_compare: Compare, size: tuple[int, int]) -> None:
    Path("events.jsonl").write_bytes(lines())
    app = logs_app(Path("events.jsonl"), Path("other.log"))
    assert snap_compare(app, terminal_size=size, run_before=after("402 lines", keys=("G", "k", "k")))


@SIZES
def test_found_lines_of_a_log(snap_compare: Compare, size: tuple[int, int]) -> None:
    Path("events.jsonl").write_bytes(lines())
    found = after("402 lines", keys=("slash", *"timestep", "enter"), then="67 match", more=("j", "v", "J"))
    assert snap_compare(logs_app(Path("events.jsonl")), terminal_size=size, run_before=found)


@SIZES
def test_hostile_lines_of_a_log(snap_compare: Compare, size: tuple[int, int]) -> None:
    text = HOSTILE.replace("\n", " ").encode("utf-8", "replace")
    Path("hostile.log").write_bytes(
        b"\n".join([text, b"x" * 3_000_000, b"", b'{"kind": "' + text + b'"}', b"\xff\x9b"])
    )
    app = logs_app(Path("hostile.log"))
    assert snap_compare(app, terminal_size=size, run_before=after("5 lines", keys=("v", "v")))


@SIZES
def test_a_log_that_cannot_be_read(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = logs_app(Path("none.jsonl"))
    assert snap_compare(app, terminal_size=size, run_before=after("cannot be read"))
