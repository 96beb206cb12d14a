from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentgym_tui.presenters.cells import LIST_MARGIN, Cell, Column, Line, arrange_columns, header_row
from agentgym_tui.presenters.episode_rows import EPISODE_COLUMNS
from agentgym_tui.presenters.events import SUBJECT_COLUMNS
from agentgym_tui.presenters.live import ENV_COLUMNS
from agentgym_tui.presenters.payload import TextRows
from agentgym_tui.state.query import Sorting
from agentgym_tui.widgets.lists import LineList, Table
from agentgym_tui.widgets.payload_view import TextView
from tests.support.console.line_views import NamedRows, list_pilot, numbered_rows, scroll_top, visible_rows

HOSTILE = ["漢字" * 40, "🎲" * 40, "", "\x1b[2J\x9b\u202e\x00", "e\u0301" * 40, "\u0301", "❤\ufe0f" * 30, "x" * 10**6]


@pytest.mark.parametrize("width", [1, 2, 3, 7, 20, 41])
async def test_rows_of_hostile_text_are_exactly_as_wide_as_the_widget(width: int) -> None:
    columns = [Column("a", 9), Column("title that is long", 5, True, 1), Column("rest", None, rank=2)]
    for view in (LineList(NamedRows(HOSTILE)), Table(columns, NamedRows(HOSTILE)), TextView()):
        async with list_pilot(view, (width, 12)) as (_, pilot):
            if isinstance(view, TextView):
                view.show_text(TextRows("\n".join(HOSTILE)))
                await pilot.pause()
            drawn = view.render_lines(view.size.region)
            text = "".join(strip.text for strip in drawn)
            assert {strip.cell_length for strip in drawn} == {width}
            assert all(sum(segment.cell_length for segment in strip) == width for strip in drawn)
            assert not set(text) & set("\x1b\x9b\u202e\x00\n")


async def test_a_click_counts_from_below_the_header() -> None:
    view = Table([Column("name", None), Column("second", 9)], numbered_rows(50))
    async with list_pilot(view) as (_, pilot):
        await pilot.press("end")
        await pilot.click(view, offset=(3, 0))
        assert view.cursor == 49
        await pilot.click(view, offset=(3, 1))
        assert view.cursor == scroll_top(view) == 41


async def test_text_lines_are_numbered_and_unsafe_lines_marked() -> None:
    view = TextView()
    async with list_pilot(view) as (_, pilot):
        view.show_text(TextRows("one\n" * 8 + "t\x1bwo\nend"))
        await pilot.pause()
        assert visible_rows(view)[7:] == [" 8 one", " ⚠ t␛wo", "10 end"]
        assert view.unsafe_text() == "t\x1bwo"
        view.show_text(TextRows("fine"))
        await pilot.pause()
        assert view.unsafe_text() is None


@pytest.mark.parametrize(("width", "shown"), [(60, [0, 1, 2, 3]), (36, [0, 1, 2]), (29, [0, 1]), (4, [0, 1])])
def test_columns_are_dropped_by_rank(width: int, shown: list[int]) -> None:
    columns = [Column("name", None), Column("state", 8), Column("time", 6, True, 1), Column("rate", 5, True, 2)]
    arranged = arrange_columns(columns, width)
    assert [number for number, _, _ in arranged] == shown
    if width > 20:
        assert sum(size for _, size, _ in arranged) + 2 * (len(arranged) - 1) == width


async def test_cells_are_aligned_under_their_titles() -> None:
    view = Table([Column("name", None), Column("second", 9, right=True)], NamedRows(["a", "b" * 50]))
    async with list_pilot(view) as (_, pilot):
        await pilot.press("j")
        assert visible_rows(view)[:3] == [
            "name" + " " * 24 + "   second",
            "a" + " " * 27 + " second 0",
            "b" * 25 + "…" + "   second 1",
        ]


@pytest.mark.parametrize("columns", [EPISODE_COLUMNS, ENV_COLUMNS, SUBJECT_COLUMNS])
@pytest.mark.parametrize("descending", [False, True])
def test_a_sort_arrow_covers_no_letter_of_a_title(columns: Sequence[Column], descending: bool) -> None:
    for width in range(30, 220):
        layout = arrange_columns(columns, width)
        if sum(size for _, size, _ in layout) + 2 * (len(layout) - 1) != width:
            continue  # too narrow for the columns that are never dropped
        for number, _, _ in layout:
            sorting = Sorting(columns[number].title, descending)
            header = "".join(text for text, _ in header_row(columns, layout, sorting))
            titles = [columns[each].title for each, size, _ in layout if size >= len(columns[each].title)]
            assert len(header) == width == len("".join(text for text, _ in header_row(columns, layout)))
            assert sorting.sign in header and [title for title in titles if title not in header] == []


def test_a_column_is_dropped_before_another_falls_below_its_minimum_width() -> None:
    columns = [Column("name", None, min_width=24), Column("state", 8), Column("time", 6, True, 1)]
    assert arrange_columns(columns, 42) == [(0, 24, False), (1, 8, False), (2, 6, True)]
    assert arrange_columns(columns, 41) == [(0, 31, False), (1, 8, False)]


@pytest.mark.parametrize("width", [12, 30, 50])
async def test_the_last_cell_of_a_short_row_fills_the_line(width: int) -> None:
    columns = [Column("a", 4), Column("b", None, min_width=6), Column("c", 8, True, 1), Column("d", 8, True, 2)]
    view = Table(columns, ShortRow())
    async with list_pilot(view, (width, 5)):
        room = view.scrollable_content_region.width - LIST_MARGIN - len("abcd  ")
        assert visible_rows(view)[1].rstrip() == "abcd  " + TEXT[: room - 1] + "…"


TEXT = "x" * 60


class ShortRow:
    def __len__(self) -> int:
        return 1

    def line(self, index: int, width: int) -> Line:
        return [Cell("abcd"), Cell(TEXT)]

    def key(self, index: int) -> str:
        return ""


def test_content_widens_columns_by_rank_and_an_empty_one_gives_its_room() -> None:
    columns = [
        Column("name", None, min_width=10, most=20),
        Column("outcome", 12, most=30, rank=1),
        Column("node", 8, most=20),
        Column("tags", 6, rank=2, most=9, hides=True),
    ]

    def widths(width: int, *needed: int) -> dict[str, int]:
        return {columns[n].title: size for n, size, _ in arrange_columns(columns, width, needed)}

    assert widths(60) == {"name": 36, "outcome": 12, "node": 8}
    assert widths(60, 14, 25, 3, 0) == {"name": 27, "outcome": 25, "node": 4}  # no narrower than its title
    assert widths(60, 20, 40, 40, 4) == {"name": 20, "outcome": 12, "node": 18, "tags": 4}
    assert widths(39, 10, 12, 8, 4) == {"name": 15, "outcome": 12, "node": 8}  # no room for tags
    assert widths(39, 5, 12, 8, 4) == {"name": 9, "outcome": 12, "node": 8, "tags": 4}  # short names leave room


async def test_columns_follow_the_rows_that_were_shown_and_rest_when_others_are() -> None:
    columns = [Column("name", 6, most=20), Column("rest", None)]
    names = ["short", *["a longer name"] * 30, "b" * 50]
    view = Table(columns, NamedRows(names))
    async with list_pilot(view, (40, 5)) as (_, pilot):
        assert [row.index("second") for row in visible_rows(view)[1:3]] == [15, 15]
        assert visible_rows(view)[0].index("rest") == 15
        await pilot.press("end")
        assert visible_rows(view)[-1].startswith("b" * 19 + "…  second") or visible_rows(view)[0].index("rest") == 22
        await pilot.press("home")
        assert visible_rows(view)[0].index("rest") == visible_rows(view)[1].index("second") == 22
        view.fit_again()
        view.refresh()
        assert visible_rows(view)[0].index("rest") == 15
