"""Resizing panes by keys and mouse."""

from __future__ import annotations

from itertools import product

import pytest
from textual.geometry import Region
from textual.pilot import Pilot
from textual.widget import Widget

from agentgym_tui.config import UiState
from agentgym_tui.screens.episode import SHARES as EPISODE_SHARES
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.screens.line_browser import EVENT_SHARES, LOG_SHARES
from agentgym_tui.screens.live import LivePane, live_shares
from agentgym_tui.widgets.split import RESIZE_STEPS
from tests.support.console.fake_session import busy_session, files_session, session_with_messages, watching
from tests.support.console.pilot import SIZE, SMALL, console_app, wait_for_text, wait_until
from tests.support.console.samples import episode_id

WIDGETS = {"subjects": "#subjects", "messages": "#messages", "payload": "#message"}
"""Of the events: the focused list and the widget that is resized."""


def visible_panes(pilot: Pilot[None]) -> list[LivePane]:
    return [pane for pane in pilot.app.screen.query(LivePane) if pane.display and pane.size]


def regions(pilot: Pilot[None]) -> list[Region]:
    return [pilot.app.screen.query_one(widget_id).region for widget_id in WIDGETS.values()]


async def grow_and_shrink(pilot: Pilot[None], widget: Widget, axis: str, n_shrink: int) -> None:
    """Make a focused pane larger and then smaller than it was."""
    grow, shrink = ("greater_than_sign", "less_than_sign") if axis == "width" else ("plus", "minus")
    size = getattr(widget.size, axis)
    await pilot.press(grow)
    await wait_until(pilot, lambda: getattr(widget.size, axis) > size, "a larger pane")
    await pilot.press(*[shrink] * n_shrink)
    await wait_until(pilot, lambda: getattr(widget.size, axis) < size, "a smaller pane")


@pytest.mark.parametrize("bound", ["minimum", "maximum"])
async def test_every_pane_is_visible_at_its_size_limits(bound: str) -> None:
    sizes = {each.key: getattr(each, bound) for each in (*live_shares(), *EVENT_SHARES)}
    app = console_app(session_with_messages("orders.eu"), ui_state=UiState(sizes=sizes))
    async with app.run_test(size=SIZE) as pilot:
        for size in (SIZE, (60, 20)):
            await pilot.resize_terminal(*size)
            await wait_until(pilot, lambda: len(visible_panes(pilot)) > 2, "an episode")
            await pilot.pause()
            assert all(pane.region.height > 1 and pane.region.width > 9 for pane in visible_panes(pilot))
        await pilot.press("3")
        await wait_for_text(pilot, "● Formatted", "orders")
        await pilot.press("t")
        for size in ((60, 20), SIZE):
            await pilot.resize_terminal(*size)
            await wait_until(
                pilot, lambda: all(region.height > 3 and region.width > 9 for region in regions(pilot)), "all panes"
            )


async def test_each_pane_grows_shrinks_is_reset_and_dragged() -> None:
    ui_state = UiState()
    app = console_app(busy_session(), ui_state=ui_state)
    async with app.run_test(size=SIZE) as pilot:
        await wait_for_text(pilot, "task 3")
        await pilot.pause()
        before = [pane.region for pane in visible_panes(pilot)]
        for pane in visible_panes(pilot):
            pane.query_one("LineList").focus()
            await pilot.pause()
            for axis in ("width", "height"):
                await grow_and_shrink(pilot, pane, axis, 2)
            await pilot.press("equals_sign")
            await wait_until(
                pilot, lambda: [pane.region for pane in visible_panes(pilot)] == before, "the original sizes"
            )
        assert ui_state.sizes == {}
        right = app.screen.query_one("#right")
        x = right.region.x
        await pilot.mouse_down(offset=(x, 20))
        await pilot.hover(offset=(x - 20, 20))
        await wait_until(pilot, lambda: right.region.x < x - 15, "the border further left")
        await pilot.mouse_up(offset=(x - 20, 20))
        await pilot.hover(offset=(x, 20))
        await pilot.pause()
        assert right.region.x < x - 15
        assert ui_state.sizes == {"live.wide.left": round(100 * (x - 20) / 120)}
        await pilot.mouse_down(offset=(x + 5, 20))
        await pilot.hover(offset=(x, 20))
        await pilot.pause()
        assert right.region.x < x - 15


async def test_the_focused_pane_grows_at_the_cost_of_its_neighbor_and_zoom_overrides_sizes() -> None:
    app = console_app(busy_session())
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_for_text(pilot, "task 3")
        left = app.screen.query_one("#left")
        width = left.size.width
        await pilot.press("greater_than_sign")
        await wait_until(pilot, lambda: left.size.width > width, "a wider left side")
        await pilot.press("tab", "tab", "tab", "greater_than_sign", "greater_than_sign")
        await wait_until(pilot, lambda: left.size.width < width, "a wider right side")
        await pilot.press("z")
        await wait_until(pilot, lambda: app.screen.query_one("#transcript").size.width > 110, "the zoomed pane")
        await pilot.press("plus")
        await wait_for_text(pilot, "this pane cannot be made taller")
        await pilot.press("z")
        await wait_until(pilot, lambda: left.size.width < width, "the sizes before the zoom")
        await pilot.press("2", "plus")
        await wait_for_text(pilot, "this pane cannot be made taller")


async def test_the_steps_of_an_episode_are_resized() -> None:
    ui_state = UiState()
    session = files_session()
    app = console_app(session, ui_state=ui_state)
    async with app.run_test(size=SIZE) as pilot:
        app.push_screen(EpisodeScreen(session, episode_id(1), ui_state=ui_state))
        await wait_until(pilot, lambda: bool(app.screen.query("#steps")) and app.focused is not None, "steps")
        steps = app.screen.query_one("#steps")
        for size, key, axis in ((SIZE, "greater_than_sign", "width"), (SMALL, "plus", "height")):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            before = getattr(steps.size, axis)
            await pilot.press(key)
            await wait_until(pilot, lambda: getattr(steps.size, axis) > before, "a larger pane")  # noqa: B023
            await pilot.press("z", "z", "equals_sign")
            await wait_until(pilot, lambda: getattr(steps.size, axis) == before, "the original sizes")  # noqa: B023


def test_size_limits_leave_room_for_the_neighbors() -> None:
    for shares, screen_class in product(
        (live_shares(), EPISODE_SHARES, EVENT_SHARES, LOG_SHARES), ("-wide", "-narrow")
    ):
        current = [each for each in shares if each.screen_class in ("", screen_class)]
        assert current and all(0 < each.minimum < each.maximum < 100 for each in current)
        stacked = [each.maximum for each in current if each.part in ("environments-pane", "trace-pane")]
        assert sum(stacked) <= 90
        assert {each.axis for each in current} <= {axis for axis, _ in RESIZE_STEPS.values()}
        assert len({each.key for each in shares}) == len(shares)


async def test_each_pane_of_the_events_grows_shrinks_and_is_reset() -> None:
    ui_state = UiState("events")
    app = console_app(watching(session_with_messages("orders.eu")), ui_state=ui_state)
    async with app.run_test(size=SMALL, notifications=True) as pilot:
        await wait_for_text(pilot, "● Formatted")
        await pilot.press("greater_than_sign")  # the width of a hidden tree cannot change
        await wait_for_text(pilot, "this pane cannot be made wider")
        assert ui_state.sizes == {}
        await pilot.press("t")
        for size in (SMALL, SIZE):
            await pilot.resize_terminal(*size)
            await wait_until(pilot, lambda: all(regions(pilot)), "the tree")
            for focused, widget_id in WIDGETS.items():
                app.screen.query_one(f"#{focused}").focus()
                await wait_until(pilot, lambda: app.focused is not None and app.focused.id == focused, "the focus")  # noqa: B023
                before, widget = regions(pilot), app.screen.query_one(widget_id)
                await grow_and_shrink(pilot, widget, "width", 3)
                if focused == "subjects":
                    app.clear_notifications()
                    await pilot.press("plus")
                    await wait_for_text(pilot, "this pane cannot be made taller")
                else:
                    await grow_and_shrink(pilot, widget, "height", 3)
                assert ui_state.sizes
                await pilot.press("equals_sign")
                await wait_until(pilot, lambda: regions(pilot) == before, "the original sizes")  # noqa: B023
                assert ui_state.sizes == {}
