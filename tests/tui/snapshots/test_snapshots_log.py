from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.console.log_consoles import log_line, logs_app
from tests.support.console.pilot import wait_for_widget_text, wait_until
from tests.support.console.samples import HOSTILE
from tests.support.console.snapshots import SIZES, RunBefore, SnapCompare, stop_cursor_blink

pytestmark = pytest.mark.usefixtures("utc")


@pytest.fixture(autouse=True)
def in_tmp_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Open logs by relative names, so that the screen shows no temporary folder."""
    monkeypatch.chdir(tmp_path)


def log_data() -> bytes:
    kinds = ("episode.started", "timestep", "token", "token", "span", "token")
    json_lines = [
        log_line(n, kinds[n % 6], episode_id=f"01KA{n // 50:022}", text="word " * (n % 17)) for n in range(400)
    ]
    return "".join(json_lines).encode() + b"2026-03-04 05:20:00,123 ERROR runner.node the broker is gone\n{}\n"


def when_read(*texts: str, keys: tuple[str, ...] = (), then: str = "", more: tuple[str, ...] = ()) -> RunBefore:
    """Wait for texts of the summary, press keys, wait for another text and press more keys."""

    async def run_before(pilot: Pilot[None]) -> None:
        await wait_for_widget_text(pilot, "#summary", *texts)
        await wait_until(pilot, lambda: len(pilot.app.screen.query("#filter, #entry, #nothing")) == 3)
        stop_cursor_blink(pilot)
        await pilot.press(*keys)
        await wait_for_widget_text(pilot, "#summary", then)
        await pilot.press(*more)
        await pilot.pause(0.25)

    return run_before


def test_end_of_a_log(snap_compare: SnapCompare) -> None:
    Path("events.jsonl").write_bytes(log_data())
    app = logs_app(Path("events.jsonl"), Path("other.log"))
    assert snap_compare(app, run_before=when_read("402 lines", keys=("G", "k", "k")))


def test_filtered_lines_of_a_log(snap_compare: SnapCompare) -> None:
    Path("events.jsonl").write_bytes(log_data())
    before = when_read("402 lines", keys=("slash", *"timestep", "enter"), then="67 match", more=("j", "v", "J"))
    assert snap_compare(logs_app(Path("events.jsonl")), run_before=before)


@SIZES
def test_hostile_lines_of_a_log(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    text = HOSTILE.replace("\n", " ").encode("utf-8", "replace")
    Path("hostile.log").write_bytes(
        b"\n".join([text, b"x" * 3_000_000, b"", b'{"kind": "' + text + b'"}', b"\xff\x9b"])
    )
    app = logs_app(Path("hostile.log"))
    assert snap_compare(app, terminal_size=size, run_before=when_read("5 lines", keys=("v", "v")))


def test_a_log_that_cannot_be_read(snap_compare: SnapCompare) -> None:
    app = logs_app(Path("none.jsonl"))
    assert snap_compare(app, run_before=when_read("cannot be read"))
