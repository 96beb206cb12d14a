"""Styles that are found once, and what is below a dialog, look as Textual's own."""

from __future__ import annotations

from typing import ClassVar

import pytest
from textual.app import App, ComposeResult
from textual.css.styles import RulesMap
from textual.dom import DOMNode
from textual.widgets import Static

from agentgym_tui.app.console import Console
from agentgym_tui.screens.base import ConsoleScreen, DialogScreen
from agentgym_tui.textual_compat import OrderedKeysApp, ParsedOnceStylesheet
from tests.support.console.fake_session import busy_session
from tests.support.console.pilot import SIZE, SMALL, wait_for_text, wait_until


def rules_of(node: DOMNode) -> tuple[RulesMap, dict[str, RulesMap], bool]:
    parts = {name: styles.base.get_rules() for name, styles in node._component_styles.items()}
    return node.styles.base.get_rules(), parts, node._has_hover_style


def assert_rules_are_those_of_textual(app: App[None], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: list[DOMNode] = [app, *app.screen.walk_children(with_self=True)]
    rules = [rules_of(node) for node in nodes]
    with monkeypatch.context() as patch:
        patch.delattr(ParsedOnceStylesheet, "apply")
        for node in nodes:
            app.stylesheet.apply(node)
    for node, before in zip(nodes, rules, strict=True):
        assert rules_of(node) == before, node


async def test_each_node_has_the_rules_that_textual_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParsedOnceStylesheet, "_computed", {})
    for _ in range(2):
        app = Console(busy_session())
        async with app.run_test(size=SIZE) as pilot:
            await wait_for_text(pilot, "task 3")
            for keys in ("tab", "R", "tab", "escape 2", "/ x", "escape 1 ?"):
                await pilot.press(*keys.split())
                await pilot.pause()
                assert_rules_are_those_of_textual(app, monkeypatch)
            await pilot.resize_terminal(*SMALL)
            app.theme = "textual-light"
            await pilot.pause()
            assert_rules_are_those_of_textual(app, monkeypatch)


class Text(ConsoleScreen[None]):
    DEFAULT_CSS = "Text Static { height: 3; }"

    def compose(self) -> ComposeResult:
        yield Static("text")


class Dialog(DialogScreen[None]):
    pass


class Screens(OrderedKeysApp[None]):
    MODES: ClassVar = {"first": Text}
    DEFAULT_MODE = "first"


async def test_the_rules_of_equal_nodes_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParsedOnceStylesheet, "_computed", {})
    counts = []
    for _ in range(2):
        async with Screens().run_test():
            counts.append(len(ParsedOnceStylesheet._computed))
    assert counts[0] == counts[1] > 0


async def test_what_changed_just_before_a_dialog_opened_is_laid_out_below_it() -> None:
    async with Screens().run_test(size=SIZE) as pilot:
        text = pilot.app.screen.query_one(Static)
        text.styles.height = 7
        await pilot.app.push_screen(Dialog())
        await wait_until(pilot, lambda: text.size.height == 7, "the layout of the screen below")
