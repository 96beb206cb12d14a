from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Self

import pytest
from textual import events
from textual.geometry import Region

from agentgym_tui.presenters.cells import Tone
from agentgym_tui.widgets.inputs import CheckList
from agentgym_tui.widgets.lists import CursorType, LineList
from tests.support.console.line_views import SIZE, NamedRows, list_pilot, numbered_rows, scroll_top, visible_rows
from tests.support.console.pilot import wait_until


async def test_keys_move_the_cursor_and_keep_it_in_view() -> None:
    view = LineList(numbered_rows(100))
    async with list_pilot(view) as (app, pilot):
        for keys, cursor in (
            (["j"], 1),
            (["down", "down", "k"], 1),
            (["up"], 0),
            (["G"], 99),
            (["end", "home"], 0),
            (["end", "g"], 0),
            (["pagedown"], 10),
            (["ctrl+d", "ctrl+d", "ctrl+u"], 10),
            (["ctrl+d", "pageup"], 0),
            (["end", "j"], 99),
        ):
            view.move_to(0)
            await pilot.press(*keys)
            assert view.cursor == cursor, keys
            assert view.key == f"line {cursor}" and app.moved[-1:] in ([], [view.key])
            assert scroll_top(view) <= cursor < scroll_top(view) + SIZE[1]
            assert visible_rows(view)[cursor - scroll_top(view)].startswith(f"line {cursor}second")
        assert app.moved


async def test_the_list_and_its_scroll_bar_follow_the_size_and_the_number_of_lines() -> None:
    view = LineList(numbered_rows(100))
    async with list_pilot(view) as (_, pilot):
        await wait_until(pilot, lambda: view.show_vertical_scrollbar, "the scroll bar")
        before = visible_rows(view)
        await pilot.resize_terminal(SIZE[0], 1)
        await wait_until(pilot, lambda: view.size.height == 1, "a single line")
        await pilot.press("j", "j")
        await wait_until(pilot, lambda: scroll_top(view) == 2, "the third line alone")
        await pilot.resize_terminal(*SIZE)
        await wait_until(pilot, lambda: scroll_top(view) == 0, "the first line")
        assert (view.cursor, visible_rows(view)[3:]) == (2, before[3:])
        for number in (50, 5, 30):
            view.show(numbered_rows(number))
            await pilot.pause()
            assert view.vertical_scrollbar.window_virtual_size == number
            assert view.vertical_scrollbar.window_size == SIZE[1]
        view.show(numbered_rows(8))
        await pilot.resize_terminal(SIZE[0], 4)
        await wait_until(pilot, lambda: view.show_vertical_scrollbar and view.size.height == 4, "a scroll bar")
        view.show(numbered_rows(9))
        await pilot.resize_terminal(*SIZE)
        await wait_until(pilot, lambda: not view.show_vertical_scrollbar, "no scroll bar")
        await pilot.click(view, offset=(SIZE[0] - 1, 3))
        await wait_until(pilot, lambda: view.cursor == 3, "the cursor on the line")


async def test_enter_and_a_double_click_select_and_a_click_moves_the_cursor() -> None:
    view = LineList(numbered_rows(5))
    async with list_pilot(view) as (app, pilot):
        await pilot.press("j", "enter")
        assert app.chosen == [(1, "line 1")]
        await pilot.click(view, offset=(3, 3))
        assert (view.cursor, app.chosen[1:]) == (3, [])
        await pilot.click(view, offset=(3, 2), times=2)
        assert app.chosen[1:] == [(2, "line 2")]
        await pilot.click(view, offset=(3, 8))  # below the last line
        assert view.cursor == 2
        await pilot.click(view, offset=(SIZE[0] - 1, 3))  # at the right edge
        await wait_until(pilot, lambda: view.cursor == 3, "the cursor on the line")
        assert not view.show_vertical_scrollbar
        await pilot.click(view, offset=(SIZE[0] - 1, 2), times=2)
        await wait_until(pilot, lambda: app.chosen[2:] == [(2, "line 2")], "the selection")
        view.show(numbered_rows(50))
        view.move_to(30)
        await pilot.pause()
        top = scroll_top(view)
        await pilot.click(view, offset=(0, 0))
        assert (view.cursor, scroll_top(view)) == (top, top) and top > 0


async def test_a_click_checks_the_row_under_the_pointer_once_and_never_chooses_it() -> None:
    view = CheckList(["a", "b", "c"], {0}, id="checks")
    async with list_pilot(view) as (app, pilot):
        await pilot.click(view, offset=(3, 2))
        assert (view.chosen, view.cursor) == ({0, 2}, 2)
        await pilot.click(view, offset=(3, 5))
        assert (view.chosen, view.cursor) == ({0, 2}, 2)
        await pilot.click(view, offset=(3, 1), times=2)
        assert (view.chosen, view.cursor, app.chosen) == ({0, 2}, 1, [])


async def test_cursor_and_visible_lines_stay_when_lines_are_inserted_above() -> None:
    view, names = LineList(numbered_rows(100)), [f"line {number}" for number in range(100)]
    async with list_pilot(view) as (app, pilot):
        await pilot.press("pagedown", "pagedown")
        before, moved = visible_rows(view), list(app.moved)
        view.show(NamedRows(["new", "newer", *names]))
        await pilot.pause()
        assert (view.cursor, view.key) == (22, "line 20")
        assert [row.split("second")[0] for row in visible_rows(view)] == [row.split("second")[0] for row in before]
        assert app.moved == moved
        view.show(NamedRows(names))
        await pilot.press("g", "j")  # at the top, the cursor stays in view
        for n_new in (2, 50, 51):
            view.show(NamedRows([*(f"new {number}" for number in range(n_new)), *names]))
            await pilot.pause()
            assert view.key == "line 1"
            assert any(row.startswith("line 1second") for row in visible_rows(view)), visible_rows(view)
        view.show(NamedRows(names))
        await pilot.press("end")
        view.scroll_to(y=0, animate=False)  # away from its cursor, the list stays there
        await pilot.pause()
        view.show(NamedRows([*(f"new {number}" for number in range(50)), *names]))
        await pilot.pause()
        assert (view.key, scroll_top(view)) == ("line 99", 0)


async def test_a_removed_cursor_line_posts_the_new_cursor_key() -> None:
    source = numbered_rows(5)
    view = LineList(source)
    async with list_pilot(view) as (app, pilot):
        await pilot.press("end")
        del source.names[2:]
        view.refresh_lines()
        await pilot.pause()
        assert (view.cursor, app.moved[-1]) == (1, "line 1")
        view.show(NamedRows([]))
        await pilot.pause()
        assert (view.cursor, view.key, app.moved[-1]) == (0, "", "")
        await pilot.press("enter", "j", "k", "G", "g", "ctrl+d", "l", "h")
        assert app.chosen == []


async def test_a_list_shrinks_before_it_is_drawn_and_finds_only_its_current_lines() -> None:
    source = numbered_rows(100)
    view = LineList(source)
    async with list_pilot(view) as (_, pilot):
        assert view.select("line 20") and view.cursor == 20
        assert not view.select("line 100") and view.cursor == 20
        await pilot.press("G")
        del source.names[3:]
        assert not view.select("line 50")
        assert view.select("line 1")
        await wait_until(pilot, lambda: view.cursor == 1 and view.key == "line 1", "the cursor on the line")
        view.show(rows := numbered_rows(100))
        await pilot.pause()
        del rows.names[3:]
        view.refresh()
        await pilot.pause()
        assert visible_rows(view)[2:4] == ["line 2second 2", ""]


async def test_only_a_changed_line_is_redrawn_and_asked_for_once_until_it_is_painted() -> None:
    source, refreshed, asked = numbered_rows(5), set[Region](), list[int]()

    class RecordingList(LineList):
        def refresh(self, *regions: Region, **options: bool) -> Self:
            refreshed.update(regions)
            return super().refresh(*regions, **options)

        def row_cells(self, index: int, width: int) -> Iterable[tuple[str, Tone]]:
            asked.append(index)
            return super().row_cells(index, width)

    view = RecordingList(source)
    async with list_pilot(view):
        view.render_lines(view.size.region)
        refreshed.clear()
        for n in range(500):
            asked.clear()
            source.names[2] = f"line 2, {n}"
            view.refresh_changed()
            assert visible_rows(view)[1:3] == ["line 1second 1", f"line 2, {n}second 2"]
            assert asked == [0, 1, 2, 3, 4]
        assert refreshed == {Region(0, 2, SIZE[0], 1)}


@pytest.mark.parametrize("n_new", [0, 1, 45])
async def test_keys_start_from_the_drawn_cursor_line_after_lines_were_removed(n_new: int) -> None:
    view = LineList()
    async with list_pilot(view) as (_, pilot):
        for key, cursor in (("j", "line 51"), ("k", "line 49"), ("G", ""), ("ctrl+d", "line 60"), ("g", "line 45")):
            names = numbered_rows(61)
            view.show(names)
            assert view.select("line 50")
            await pilot.pause()
            names.names[:45] = []
            names.names += [f"new {n}" for n in range(n_new)]
            await pilot.press(key)
            assert view.key == (cursor or names.names[-1]), key


@pytest.mark.parametrize("cursor_type", ["line", "none"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
async def test_cursor_and_key_agree_after_random_changes_and_keys(seed: int, cursor_type: CursorType) -> None:
    dice, names = random.Random(seed), numbered_rows(50)
    view = LineList(names, cursor_type=cursor_type)
    async with list_pilot(view) as (_, pilot):
        view.follow = seed == 0
        for n in range(80):
            for _ in range(dice.choice([1, 1, 3])):
                del names.names[: dice.choice([0, 1, 5, 100])]
                names.names += [f"new {n} {m}" for m in range(dice.choice([0, 1, 1, 5, 30]))]
                view.post_message(
                    events.Key(dice.choice(["j", "k", "G", "g", "ctrl+d", "ctrl+u", "down", "end"]), None)
                )
            if dice.random() < 0.3:
                view.scroll_to(y=dice.randrange(60), animate=False)
            await pilot.pause()
            view.refresh_lines()
            assert view.key == (names.names[view.cursor] if names.names else "")


async def test_following_stays_at_the_end_until_the_cursor_moves_up() -> None:
    source = numbered_rows(30)
    view = LineList()
    async with list_pilot(view) as (app, pilot):
        view.show(source, follow=True)
        await pilot.pause()
        assert (view.cursor, scroll_top(view), app.followed) == (29, 20, [True])
        source.names.append("line 30")
        view.refresh_lines()
        await pilot.pause()
        assert (view.cursor, scroll_top(view), app.moved[-1]) == (30, 21, "line 30")
        await pilot.press("k")
        source.names.append("line 31")
        view.show(source)
        await pilot.pause()
        assert (view.cursor, view.follow, scroll_top(view), app.followed) == (29, False, 21, [True, False])
        await pilot.press("G")
        assert (view.cursor, view.follow, app.followed) == (31, True, [True, False, True])


def turn_wheel(view: LineList, kind: type[events.MouseEvent], *, shift: bool = False) -> None:
    view.post_message(kind(view, 3, 3, 0, 0, 0, shift, False, False))


async def test_the_wheel_ends_following_without_moving_the_cursor_and_scrolls_sideways_with_shift() -> None:
    view = LineList()
    async with list_pilot(view) as (app, pilot):
        view.show(numbered_rows(30), follow=True)
        await pilot.pause()
        turn_wheel(view, events.MouseScrollUp)
        await pilot.pause()
        await pilot.wait_for_scheduled_animations()
        assert (view.follow, view.cursor, app.followed) == (False, 29, [True, False])
        assert scroll_top(view) < 20
        view.show(NamedRows(["a" * 30 + "b" * 30] * 30))
        view.move_to(0)
        await pilot.pause()
        turn_wheel(view, events.MouseScrollDown, shift=True)
        await pilot.pause()
        assert (visible_rows(view)[0], scroll_top(view)) == ("a" * 22 + "b" * 15, 0)
        turn_wheel(view, events.MouseScrollUp, shift=True)
        await pilot.pause()
        assert visible_rows(view)[0].startswith("a" * 30)


async def test_following_continues_in_a_shorter_list_and_at_another_size() -> None:
    view = LineList()
    async with list_pilot(view) as (app, pilot):
        view.show(numbered_rows(30), follow=True)
        await pilot.pause()
        view.show(numbered_rows(15))
        await pilot.pause()
        assert (view.follow, view.cursor, scroll_top(view)) == (True, 14, 5)
        await pilot.resize_terminal(40, 5)  # Textual lays the screen out again only after a hundredth of a second
        await wait_until(pilot, lambda: scroll_top(view) == 10, "the last line")
        assert view.follow
        assert app.followed == [True]


async def test_the_end_of_a_fixed_list_is_not_followed_and_wide_lines_scroll_sideways_to_their_end() -> None:
    view = LineList(numbered_rows(30))
    async with list_pilot(view) as (app, pilot):
        await pilot.press("G")
        assert (view.cursor, view.follow, app.followed) == (29, False, [])
        view.show(NamedRows(["a" * 30 + "b" * 30, "short"]))
        await pilot.press("l")
        assert visible_rows(view)[0] == "a" * 22 + "b" * 15
        await pilot.press(*["l"] * 8)
        assert visible_rows(view)[0].endswith("second 0")
        await pilot.press(*["h"] * 8)
        assert visible_rows(view)[0].startswith("a" * 30)


async def test_a_list_without_cursor_scrolls_first() -> None:
    view = LineList(numbered_rows(15), cursor_type="none")
    async with list_pilot(view) as (_, pilot):
        await pilot.press("j", "j")
        assert (scroll_top(view), view.cursor) == (2, 2)
        await pilot.press("ctrl+d", "j")
        assert (scroll_top(view), view.cursor) == (5, 6)
        await pilot.press("k")
        assert (scroll_top(view), view.cursor) == (4, 6)
        assert "▸" not in "".join(strip.text for strip in view.render_lines(view.size.region))
