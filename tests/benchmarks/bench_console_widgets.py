"""CPU of a jump in the console's lists, compared with a bare Line API widget that shows rows of the same size."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.driver import Driver
from textual.drivers.headless_driver import HeadlessDriver
from textual.geometry import Size
from textual.pilot import Pilot
from textual.scroll_view import ScrollView
from textual.strip import Strip

import agentgym_tui
from agentgym_tui.presenters.cells import Cell, Column, Line
from agentgym_tui.widgets.lists import TONE_CLASSES, LineList, Table
from agentgym_tui.widgets.transcript import Waterfall
from runner.types import Span
from tests.benchmarks.measure import PAIRS, Ratio, Row, ratio_of

STYLES = Path(agentgym_tui.__file__).parent / "styles.tcss"
SIZE = (200, 50)
N_ROWS = 100_000
N_SPANS = 10_000
N_JUMPS = 10
STEP = [("timestep", "timestep"), ("agent.act", "agent"), ("env.step", "environment")]
COLUMNS = [Column(f"column {number}", 16, most=20) for number in range(7)] + [Column("rest", None)]
STYLES_OF_CELLS = [
    Style(color=color) for color in ("red", "green", "blue", "yellow", "white", "cyan", "magenta", "red")
]


class Rows:
    """``n`` rows of eight cells."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def line(self, index: int, width: int) -> Line:
        return [Cell(f"cell {index}.{number}", "good") for number in range(8)]

    def key(self, index: int) -> str:
        return str(index)


class BareList(ScrollView):
    """Minimal widget that shows rows of ``n_cells`` cells."""

    def __init__(self, n: int, n_cells: int) -> None:
        super().__init__()
        self.styles.scrollbar_size_vertical = 1
        self._n_cells = n_cells
        self.virtual_size = Size(SIZE[0], n)

    def render_line(self, y: int) -> Strip:
        index = self.scroll_offset.y + y
        size = self.size.width // self._n_cells
        cells = [f"cell {index}.{number}".ljust(size) for number in range(self._n_cells)]
        return Strip(
            [Segment(text, STYLES_OF_CELLS[number]) for number, text in enumerate(cells)], size * self._n_cells
        )


class BenchmarkApp(App[None]):
    """Several full-screen widgets, of which one is shown."""

    COMPONENT_CLASSES = TONE_CLASSES
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, widgets: Sequence[ScrollView], driver_class: type[Driver]) -> None:
        super().__init__(driver_class=driver_class, css_path=STYLES)
        self.widgets = widgets

    def compose(self) -> ComposeResult:
        yield from self.widgets


def span(number: int, name: str, category: str, parent: int | None, start: int, end: int) -> Span:
    return Span(id=number, parent=parent, name=name, category=category, track="", start_ns=start, end_ns=end)


def spans() -> list[Span]:
    """Return the spans of an episode in closing order: many steps with two spans each."""
    opened = [span(0, "episode", "episode", None, 0, N_SPANS * 10**6)]
    for step in range(1, N_SPANS, 3):
        start = step * 10**6
        for number, (name, category) in enumerate(STEP):
            end = start + 10**6 * (3 - number)
            parent = step if number else 0
            opened.append(span(step + number, name, category, parent, start, end))
    return opened[:0:-1] + opened[:1]


def waterfall_of(shown: list[Span]) -> Waterfall:
    waterfall = Waterfall()
    waterfall.show_spans(shown)
    return waterfall


class DiscardingDriver(HeadlessDriver):
    """Makes the app render its output as for a terminal."""

    @property
    def is_headless(self) -> bool:
        return False


async def measure_jumps(pilot: Pilot[object], jump: Callable[[int], None], n: int) -> float:
    """Return the CPU seconds of jumps across a list; each is painted."""
    gc.collect()
    started = time.process_time()
    for number in range(N_JUMPS):
        jump(n * (7 * number % N_JUMPS) // N_JUMPS)
        await pilot.pause()
    return time.process_time() - started


async def compare(line_list: LineList, n_cells: int) -> Ratio:
    """Measure a list and a bare list in interleaved pairs."""
    n = len(line_list.source)
    bare = BareList(n, n_cells)
    times: list[list[float]] = [[], []]

    async def measure(pilot: Pilot[object]) -> None:
        for number in range(PAIRS + 1):
            sides: list[tuple[int, ScrollView, Callable[[int], None]]] = [
                (0, line_list, line_list.move_to),
                (1, bare, lambda y: bare.scroll_to(y=y, animate=False)),
            ]
            for side, widget, jump in sides[:: 1 if number % 2 else -1]:
                line_list.display, bare.display = widget is line_list, widget is bare
                await pilot.pause()
                cpu_s = await measure_jumps(pilot, jump, n)
                if number:
                    times[side].append(cpu_s)
        pilot.app.exit()

    await BenchmarkApp([line_list, bare], driver_class=DiscardingDriver).run_async(size=SIZE, auto_pilot=measure)
    return ratio_of(*times)


def run() -> list[Row]:
    rows = asyncio.run(compare(Table(COLUMNS, Rows(N_ROWS)), 8))
    waterfall = asyncio.run(compare(waterfall_of(spans()), 3))
    return [
        Row.of_ratio(f"a jump in a table of {N_ROWS} rows / in a bare list, CPU", rows, at_most=1.5),
        Row.of_ratio(f"a jump in a waterfall of {N_SPANS} spans / in a bare list, CPU", waterfall, at_most=1.5),
        Row("a jump in the table, CPU", f"{rows.a_median / N_JUMPS * 1e3:.1f} ms"),
        Row("a jump in the waterfall, CPU", f"{waterfall.a_median / N_JUMPS * 1e3:.1f} ms"),
    ]
