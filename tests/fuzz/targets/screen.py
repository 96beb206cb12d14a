"""The console's widgets between guard cells, drawn to a terminal emulator: no text leaves its widget.

The input is a byte that chooses a view, then a bus message: subject, lines ``name: value`` with headers, an empty line,
and the payload, which is also the text of a transcript and of a picture whose runs are cut anywhere.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Final

import msgspec
import pyte
from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from agentgym_tui.presenters.cells import FixedLines, Line
from agentgym_tui.presenters.episode_facts import world_lines
from agentgym_tui.presenters.events import EVENT_COLUMNS, EventRows
from agentgym_tui.presenters.live import ENV_COLUMNS, EnvironmentRows
from agentgym_tui.presenters.payload import VIEWS, payload_rows
from agentgym_tui.presenters.status_line import status_lines
from agentgym_tui.presenters.transcript import Block, step_blocks, text_block
from agentgym_tui.state.event_log import EventLog
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.lists import TONE_CLASSES, LineList, StaticLines, Table
from agentgym_tui.widgets.payload_view import TextView
from agentgym_tui.widgets.transcript import Transcript
from runner.events.codec import decode
from runner.events.subjects import DurableNames
from runner.subscribe.buffer import RawMessage
from runner.subscribe.messages import BusMessage
from tests.fuzz.emulator import GUARD, Emulator, RecordingDriver
from tests.fuzz.oracles import event_loop, split_head
from tests.fuzz.targets.bus_message import TOKENS as MESSAGE_TOKENS
from tests.support.console.line_views import STYLES
from tests.support.console.live_items import START, FakeClock
from tests.support.escapes import foreign_escapes

TOKENS = (
    *MESSAGE_TOKENS,
    b"\xef\xb8\x8f",
    b"\xf0\x9f\x8f\xbd",
    b"\xe6\xbc\xa2",
    b"\xf0\x9f\x87\xa9",
    b"\xcc\x81",
    b"\x1b[",
)
SHARE = 4
MAX_LEN = 2048
SIZE: Final = (72, 24)
IDLE_TURNS: Final = 4
_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")
REGIONS: Final = {
    "events": Region(2, 1, 31, 6),
    "environments": Region(37, 1, 30, 6),
    "transcript": Region(2, 9, 30, 4),
    "world": Region(2, 14, 30, 4),
    "payload": Region(37, 9, 31, 8),
    "status": Region(3, 19, 61, 3),
}


class Guard(Widget):
    """Fills the screen behind all widgets."""

    def render_line(self, y: int) -> Strip:
        return Strip([Segment(GUARD * self.size.width)], self.size.width)


class WidgetApp(App[None]):
    CSS_PATH = STYLES
    CSS = "Screen { layers: back front; } Guard { width: 100%; height: 100%; layer: back; }" + "".join(
        f"#{name} {{ layer: front; position: absolute; offset: {at.x} {at.y};"
        f" width: {at.width}; height: {at.height}; }}"
        for name, at in REGIONS.items()
    )
    COMPONENT_CLASSES = TONE_CLASSES

    def __init__(self) -> None:
        super().__init__(driver_class=RecordingDriver)
        self.animation_level = "none"
        self.events_table = Table(EVENT_COLUMNS, id="events")
        self.environments = Table(ENV_COLUMNS, id="environments")
        self.transcript = Transcript(id="transcript")
        self.world = LineList(id="world")
        self.payload = TextView(id="payload")
        self.status = StaticLines(id="status")

    def compose(self) -> ComposeResult:
        yield Guard()
        yield from (self.events_table, self.environments, self.transcript, self.world, self.payload, self.status)

    def show(self, data: bytes) -> None:
        view, scroll = VIEWS[data[0] % len(VIEWS)] if data else VIEWS[0], data[:1] >= b"\x80"
        head, payload = split_head(data[1:])
        subject, headers = head[0], dict(line.partition(": ")[::2] for line in head[1:])
        log, store = EventLog(), RunStore(now=FakeClock())
        log.append([RawMessage(subject, headers, payload)], START)
        row = decode(subject, headers, payload, DurableNames())
        store.apply_events([BusMessage(subject=subject, headers=headers, decoded=row)])
        rows = EventRows(log)
        self.events_table.show(rows)
        self.environments.show(EnvironmentRows(store))
        self.transcript.show_blocks(_blocks(store, payload))
        self.world.show(FixedLines(_world(payload)))
        self.payload.show(payload_rows(rows.entry(0), view))
        self.status.show(_status_lines(store, subject))
        self.status.refresh()  # draw every row, also those that are equal to the last ones
        for widget in (self.events_table, self.world, self.payload) if scroll else ():
            widget.action_right()

    def clear(self) -> None:
        """Show an empty input."""
        for widget in (self.events_table, self.world, self.payload):
            widget.action_left()
        self.show(b"\x00")

    async def paint(self) -> str:
        """Draw what has changed, and return what the terminal receives."""
        pumps = [self, self.screen, *self.screen.query("*")]
        n_idle = 0
        while n_idle < IDLE_TURNS:  # widgets report their changes in messages
            await asyncio.sleep(0)
            n_idle = n_idle + 1 if all(pump._message_queue.empty() for pump in pumps) else 0
        self.screen._on_timer_update()  # Textual calls it up to 60 times a second
        assert isinstance(self._driver, RecordingDriver)
        return self._driver.take()


def _blocks(store: RunStore, payload: bytes) -> list[Block]:
    blocks = [block for each in store.episodes.values() for block in step_blocks(each, 0)]
    return [*blocks, text_block("observation", "Observation", payload.decode("utf-8", "replace"))]


def _world(payload: bytes) -> list[Line]:
    lines = payload.decode("utf-8", "replace").split("\n")
    rows = [[[line[at : at + 2], "red", "solid"] for at in range(0, len(line), 2)] for line in lines]
    return world_lines(msgspec.json.encode(rows))


def _status_lines(store: RunStore, title: str) -> Callable[[int], list[Line]]:
    return lambda width: list(status_lines(store, title, width, max_cause_lines=2))


def check(data: bytes) -> None:
    event_loop().run_until_complete(_check(_app(), data))


@cache
def _app() -> WidgetApp:
    app = WidgetApp()

    async def start() -> None:
        task = asyncio.create_task(app.run_async(size=SIZE, mouse=False))
        async with asyncio.timeout(30):
            while not app.screen_stack or not app.status.is_mounted or app.screen.size != SIZE:
                assert not task.done(), task.result()
                await asyncio.sleep(0.01)
        _TASKS.add(task)

    streams = sys.stdout, sys.stderr
    event_loop().run_until_complete(start())
    sys.stdout, sys.stderr = streams  # a running app redirects them
    return app


_TASKS: set[asyncio.Task[None]] = set()


async def _check(app: WidgetApp, data: bytes) -> None:
    emulator = Emulator(*SIZE)
    stream = pyte.Stream(emulator)
    with app._context():
        app.clear()
        app.screen.refresh(layout=True)
        stream.feed(await _drawn(app))
        app.show(data)
        stream.feed(await _drawn(app))
        _check_cells(app, emulator)


async def _drawn(app: WidgetApp) -> str:
    output = await app.paint()
    assert foreign_escapes(output.encode("utf-8", "surrogateescape")) == [], ascii(output)
    return _COLORS.sub("", output)


def _check_cells(app: WidgetApp, emulator: Emulator) -> None:
    emulator.check_cells()
    regions = list(REGIONS.values())
    for y, strip in enumerate(app.screen._compositor.render_strips()):
        row = emulator.row(y)
        assert row == "".join(segment.text for segment in strip), (y, row, strip)
        inside = {x for region in regions if region.y <= y < region.bottom for x in range(region.x, region.right)}
        changed = [x for x in range(SIZE[0]) if x not in inside and emulator.cell(x, y) != GUARD]
        assert not changed, (y, changed, row)
