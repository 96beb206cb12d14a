"""Screens that are laid out once look as Textual's own."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import Static

from agentgym_tui.textual_compat import LaidOutOnceScreen, OrderedKeysApp
from tests.support.console.pilot import SIZE, SMALL, wait_until


class Layouts(LaidOutOnceScreen[None]):
    """Notes the size at each of its layouts."""

    DEFAULT_CSS = "Layouts Static { height: 3; }"

    def compose(self) -> ComposeResult:
        yield Static("text")

    def on_mount(self) -> None:
        self.sizes: list[Size] = []
        self.screen_layout_refresh_signal.subscribe(self, lambda _: self.sizes.append(self.size))


class Dialog(ModalScreen[None], Layouts):
    """A dialog that notes its layouts."""


class Screens(OrderedKeysApp[None]):
    MODES: ClassVar = {"first": Layouts}
    DEFAULT_MODE = "first"


async def test_only_a_new_size_lays_out_the_screen_and_the_one_below_it() -> None:
    async with Screens().run_test(size=SIZE) as pilot:
        below, dialog = pilot.app.screen, Dialog()
        await pilot.app.push_screen(dialog)
        assert isinstance(below, Layouts)
        await wait_until(pilot, lambda: bool(dialog.sizes) and not dialog._layout_required, "the layout")
        below.sizes.clear()
        dialog.sizes.clear()
        dialog.post_message(events.Resize(Size(*SIZE), Size(*SIZE)))
        await pilot.pause()
        assert (below.sizes, dialog.sizes) == ([], [])
        await pilot.resize_terminal(*SMALL)
        await pilot.pause()
        assert below.sizes[-1] == dialog.sizes[-1] == SMALL


async def test_what_changed_just_before_a_dialog_opened_is_laid_out_below_it() -> None:
    async with Screens().run_test(size=SIZE) as pilot:
        text = pilot.app.screen.query_one(Static)
        text.styles.height = 7
        await pilot.app.push_screen(Dialog())
        await pilot.pause()
        assert text.size.height == 7
