"""Sorting of lists by clicks on column titles and by keys."""

from __future__ import annotations

from agentgym_tui.config import UiState
from agentgym_tui.state.query import Sorting
from agentgym_tui.widgets.lists import Table
from tests.support.console.fake_session import busy_session, session_with_messages, sortable_session, watching
from tests.support.console.pilot import (
    SIZE,
    console_app,
    row_keys,
    screen_text,
    wait_for_no_text,
    wait_for_text,
    wait_until,
)
from tests.support.console.samples import episode_id


async def test_clicks_and_keys_sort_reverse_and_restore_the_default_order_and_the_cursor_stays_on_its_row() -> None:
    ui_state = UiState()
    app = console_app(sortable_session(), ui_state=ui_state)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await wait_for_text(pilot, "4 episodes", "started ▼")
        assert row_keys(app, "#episodes") == list(map(episode_id, [4, 3, 2, 1]))
        column = next(line.index("reward") for line in screen_text(app).splitlines() if "started" in line)
        for title, order in (("▼reward", [3, 1, 2, 4]), ("▲reward", [2, 3, 1, 4]), ("started ▼", [4, 3, 2, 1])):
            await pilot.click("#episodes", offset=(column, 0))
            await wait_for_text(pilot, title)
            assert row_keys(app, "#episodes") == list(map(episode_id, order))
        await pilot.click("#episodes", offset=(15, 0))
        await wait_for_text(pilot, "environment", "by environment ▲")
        assert row_keys(app, "#episodes") == list(map(episode_id, [3, 4, 1, 2]))
        assert ui_state.sorting == {"episodes": Sorting("environment")}
        table = app.screen.query_one(Table)
        for _ in range(9):
            await pilot.press("o")
            if table.sorting is None:
                break
        await wait_for_no_text(pilot, "by ")
        await pilot.press("g", "j", "j")
        await wait_until(pilot, lambda: table.key == episode_id(2), "the third row")
        await pilot.press("O")
        await wait_for_text(pilot, "started ▲")
        assert row_keys(app, "#episodes") == list(map(episode_id, [1, 2, 3, 4]))
        assert table.key == episode_id(2)
        await pilot.press("o")
        await wait_for_text(pilot, "by environment ▲")


async def test_environments_are_sorted() -> None:
    ui_state = UiState()
    app = console_app(busy_session(), ui_state=ui_state)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        table = app.screen.query_one("#environments", Table)
        default_order = [table.source.key(n) for n in range(len(table.source))]
        await pilot.click("#environments", offset=(3, 0))
        await wait_for_text(pilot, "environment▲")
        assert [table.source.key(n) for n in range(len(table.source))] == sorted(default_order, key=str.casefold)
        await pilot.press("O")
        await wait_for_text(pilot, "environment▼")
        assert ui_state.sorting == {"environments": Sorting("environment", True)}
        for _ in range(9):
            await pilot.press("o")
            if table.sorting is None:
                break
        assert [table.source.key(n) for n in range(len(table.source))] == default_order


SUBJECTS = ["orders.eu", "orders.us", "orders.us", "bills", "bills", "bills", "bills", "zoo"]
BY_SUBJECT = ["bills", "orders", "orders.eu", "orders.us", "zoo"]
BY_COUNT = ["bills", "orders", "orders.us", "orders.eu", "zoo"]
BY_COUNT_ASCENDING = ["zoo", "orders", "orders.eu", "orders.us", "bills"]


async def test_subjects_are_sorted_within_their_branches() -> None:
    ui_state = UiState()
    app = console_app(session_with_messages(*SUBJECTS), ui_state=ui_state)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("3")
        await wait_for_text(pilot, "subject ▲", "zoo")
        assert row_keys(app, "#subjects") == BY_SUBJECT
        tree = app.screen.query_one("#subjects", Table)
        column = screen_text(app).splitlines()[2].index("count")
        for title, keys in (("▼count", BY_COUNT), ("▲count", BY_COUNT_ASCENDING), ("subject ▲", BY_SUBJECT)):
            await pilot.click("#subjects", offset=(column, 0))
            await wait_for_text(pilot, title)
            await wait_until(pilot, lambda: row_keys(app, "#subjects") == keys, title)  # noqa: B023
        assert ui_state.sorting == {}
        await pilot.press("g", "O")
        await wait_for_text(pilot, "subject ▼")
        await wait_until(
            pilot, lambda: row_keys(app, "#subjects")[0] == "zoo" and tree.key == "bills", "the descending order"
        )
        await pilot.press("o")
        await wait_for_text(pilot, "▼count")
        await pilot.press("o")
        await wait_for_text(pilot, "rate ▼")
        await wait_until(pilot, lambda: ui_state.sorting == {"subjects": Sorting("rate", True)}, "the saved order")


async def test_the_tree_restores_its_saved_order_and_ignores_an_unknown_one() -> None:
    for sorting, keys in ((Sorting("count"), BY_COUNT_ASCENDING), (Sorting("\x1b[2J", True), BY_SUBJECT)):
        app = console_app(
            watching(session_with_messages(*SUBJECTS)), ui_state=UiState("events", sorting={"subjects": sorting})
        )
        async with app.run_test(size=SIZE) as pilot:
            await wait_for_text(pilot, "zoo")
            await wait_until(pilot, lambda: row_keys(app, "#subjects") == keys, "the order")  # noqa: B023
