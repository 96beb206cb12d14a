"""Private attributes of Textual are used in one module, and each use does what the console needs."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import io
import os
import pkgutil
import queue
import re
import selectors
import signal
import sys
import threading
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, TextIO, cast

import pytest
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.css.stylesheet import StylesheetParseError
from textual.message import Message
from textual.scrollbar import ScrollBar
from textual.widget import Widget

import agentgym_tui
from agentgym_tui.textual_compat import (
    KEY_CHECK_S,
    OrderedKeysApp,
    OwnInputDriver,
    OwnOutputDriver,
    OwnScrollBar,
    ParsedOnceStylesheet,
    add_bindings,
    binding_ids,
    bindings_of_key,
    crash_of,
    driver_of,
    never_skip,
    start_in_mode,
)
from tests.support.command import REPOSITORY

COMPAT = "agentgym_tui.textual_compat"
PRIVATE = re.compile(r"_[a-z]\w*")
NOT_FRAMEWORK = {("argparse", "_SubParsersAction"), ("os", "_exit")}


# Where private attributes are used.


def console_modules() -> Iterator[ModuleType]:
    for module in pkgutil.walk_packages(agentgym_tui.__path__, "agentgym_tui."):
        if module.name != COMPAT:
            yield importlib.import_module(module.name)


def names_in(node: ast.AST) -> set[str]:
    """Return the attributes of ``self`` and ``cls`` that a class uses, and the methods that it defines."""
    used = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id in ("self", "cls")
    }
    return used | {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


@cache
def classes_of(module: str) -> dict[str, ast.ClassDef]:
    found = dict[str, ast.ClassDef]()
    for node in ast.walk(tree_of(module)):  # outer nodes before inner ones
        if isinstance(node, ast.ClassDef):
            found.setdefault(node.name, node)
    return found


def private_names(cls: type) -> set[str]:
    node = classes_of(cls.__module__)[cls.__name__]
    return {name for name in names_in(node) if PRIVATE.fullmatch(name)}


def test_no_other_class_uses_or_overrides_a_private_attribute_of_its_framework_bases() -> None:
    found, framework_names = [], dict[type, set[str]]()
    for module in console_modules():
        for cls in vars(module).values():
            if not inspect.isclass(cls) or cls.__module__ != module.__name__:
                continue
            own_names = private_names(cls)
            for base in cls.__mro__:
                if base.__module__.split(".")[0] in ("textual", "rich"):
                    if base not in framework_names:
                        framework_names[base] = private_names(base)
                    found += [f"{cls.__qualname__}.{name}" for name in own_names & framework_names[base]]
    assert found == []


def test_no_other_module_reads_a_private_attribute_of_another_object() -> None:
    found = []
    for module in console_modules():
        tree = tree_of(module.__name__)
        own = names_in(tree) | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            owner, name = node.value.id if isinstance(node.value, ast.Name) else "", node.attr
            is_own = owner in ("self", "cls") or name in own or (owner, name) in NOT_FRAMEWORK
            if PRIVATE.fullmatch(name) and not is_own and not name.startswith(("_replace", "_asdict", "_fields")):
                found.append(f"{module.__name__}: {owner}.{name}")
    assert found == []


def test_the_next_minor_version_of_textual_is_excluded() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = next(each for each in project["dependencies"] if each.startswith("textual"))
    assert re.fullmatch(r"textual>=8\.(\d+),<8\.(\d+)", bounds)
    lower, upper = map(int, re.findall(r"8\.(\d+)", bounds))
    assert upper == lower + 1


# What each use does.


class Recorder(Widget, can_focus=True):
    """Records the keys that it sees, and the actions that ran before."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []
        self.n_actions = 0

    def on_key(self, event: events.Key) -> None:
        self.seen.append((event.key, self.n_actions))

    def action_count(self) -> None:
        self.n_actions += 1


class Colored(OrderedKeysApp[None]):
    """An app whose screen has a style that depends on the theme."""

    CSS = "Screen { background: $background; }"


async def test_each_style_is_parsed_once_per_theme_and_has_the_colors_of_the_theme(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ParsedOnceStylesheet, "_parsed", {})
    colors, counts = [], []
    for _ in range(2):
        app = Colored()
        async with app.run_test():
            for theme in ("textual-light", "textual-dark"):
                app.theme = theme
                app.refresh_css()
                colors.append(app.screen.styles.background.hex)
        counts.append(len(ParsedOnceStylesheet._parsed))
    assert colors[0] != colors[1]
    assert colors[:2] == colors[2:]
    assert counts[0] == counts[1] == 2 * len({key[0] for key in ParsedOnceStylesheet._parsed})


def test_an_invalid_style_leaves_the_rules_as_they_are() -> None:
    stylesheet = ParsedOnceStylesheet()
    stylesheet.add_source("Screen { color: red; }", ("a", ""))
    n_rules = len(stylesheet.rules)
    stylesheet.add_source("Screen { color: nothing at all; }", ("b", ""))
    with pytest.raises(StylesheetParseError):
        stylesheet.reparse()
    assert len(stylesheet._rules) == n_rules


def test_numbers_of_sets_of_sources_are_forgotten_at_a_limit_and_never_given_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentgym_tui.textual_compat.MAX_VERSIONS", 3)
    monkeypatch.setattr(ParsedOnceStylesheet, "_versions", {})
    stylesheet, numbers = ParsedOnceStylesheet(), []
    for number in range(10):
        stylesheet.add_source(f"Screen {{ padding: {number}; }}", ("a", ""))
        stylesheet.parse()
        numbers.append(stylesheet._version)
        assert len(stylesheet._versions) <= 3
    assert len(set(numbers)) == 10


class Recording(OrderedKeysApp[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("a", "count", id="test.count")]

    def compose(self) -> ComposeResult:
        self.recorder = Recorder()
        yield self.recorder

    def action_count(self) -> None:
        self.recorder.action_count()


async def test_a_binding_runs_before_the_next_key_is_handled() -> None:
    app = Recording()
    async with app.run_test() as pilot:
        app.recorder.focus()
        await pilot.pause()
        for key in "ab":
            app.post_message(events.Key(key, key))
        await pilot.pause()
        assert app.recorder.seen == [("b", 1)]


async def test_bindings_are_added_to_one_object_and_follow_the_keymap_of_the_user() -> None:
    app, other = Recording(), Recording()
    add_bindings(app, [Binding("b,c", "count", id="test.more"), Binding("a", "bell", id="test.bell")])
    assert binding_ids(app) == ["test.bell", "test.more"]
    assert binding_ids(other) == ["test.count"]
    async with app.run_test() as pilot:
        await pilot.press("b", "c")
        assert app.recorder.n_actions == 2
        assert {each.id for each in bindings_of_key(app, "b")} == {"test.more"}
        app.set_keymap({"test.more": "x"})
        assert list(bindings_of_key(app, "b")) == []
        assert {each.id for each in bindings_of_key(app, "x")} == {"test.more"}


async def test_an_app_starts_in_the_given_mode() -> None:
    class Modes(App[None]):
        def __init__(self) -> None:
            start_in_mode(self, "first")
            super().__init__()

    async with Modes().run_test() as pilot:
        assert pilot.app.current_mode == "first"


async def test_a_late_timer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    app, ran, seconds = App[None](), asyncio.Event(), count()
    async with app.run_test():
        monkeypatch.setattr("textual._time.get_time", lambda: float(next(seconds)))  # a second passes at each reading
        never_skip(app.set_timer(0.01, ran.set))
        async with asyncio.timeout(5):
            await ran.wait()


async def test_the_driver_is_that_of_the_running_app() -> None:
    app = App[None]()
    assert driver_of(app) is None
    async with app.run_test():
        driver = driver_of(app)
        assert driver is not None
        driver.write("\x1b]9;text\x07")


async def test_the_exception_that_ended_an_app_is_known() -> None:
    app = App[None]()
    assert crash_of(app) is None
    failure = ZeroDivisionError("a defect")

    def fail() -> None:
        raise failure

    with pytest.raises(ZeroDivisionError):
        async with app.run_test() as pilot:
            app.call_later(fail)
            await pilot.pause()
    assert crash_of(app) is failure


class WideBar(ScrollBar):
    """The scroll bar that a list makes itself."""


class Scrolled(OwnScrollBar):
    DEFAULT_CSS = "Scrolled { overflow-y: scroll; height: 5; }"

    def make_scroll_bar(self) -> ScrollBar:
        return WideBar(thickness=self.scrollbar_size_vertical)


async def test_a_view_shows_its_own_scroll_bar() -> None:
    class Scrolling(App[None]):
        def compose(self) -> ComposeResult:
            yield Container(Scrolled(id="view"))

    async with Scrolling().run_test() as pilot:
        view = pilot.app.query_one("#view", Scrolled)
        assert isinstance(view.vertical_scrollbar, WideBar)
        assert view.vertical_scrollbar is view.vertical_scrollbar
        await pilot.pause()
        assert view.vertical_scrollbar.display and view.vertical_scrollbar.size.height == 5


class PipeDriver(OwnInputDriver):
    """Reads keys from a pipe in a thread."""

    def __init__(self, app: App[None]) -> None:
        super().__init__(app)
        self.fileno, self._writer = os.pipe()
        self._wake_pipe = os.pipe()
        self.keys: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run_input_thread)

    def process_message(self, message: Message) -> None:
        if isinstance(message, events.Key):
            self.keys.put(message.key)

    def write(self, data: str) -> None:
        pass

    def type(self, text: bytes) -> None:
        os.write(self._writer, text)

    def end(self) -> None:
        self._key_thread = self.thread
        self.disable_input()
        os.close(self.fileno)
        os.close(self._writer)


async def test_the_input_thread_sleeps_until_a_key_is_pressed(
    kept_signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []

    class Selector(selectors.SelectSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            limits.append(timeout)
            return super().select(timeout)

    own = SimpleNamespace(SelectSelector=Selector, EVENT_READ=selectors.EVENT_READ)
    monkeypatch.setattr(f"{COMPAT}.selectors", own)  # not the class that the whole process uses
    driver = PipeDriver(App[None]())
    driver.thread.start()
    try:
        for text, key in ((b"a", "a"), (b"\x1b[A", "up"), (b"\x1b", "escape")):
            driver.type(text)
            assert await asyncio.to_thread(driver.keys.get, timeout=10) == key
    finally:
        driver.end()
    assert not driver.thread.is_alive()
    assert limits[:3] == [None] * 3
    assert KEY_CHECK_S in limits  # while an escape might begin a longer sequence
    assert len(limits) < 20


class LateSelector(selectors.SelectSelector):
    """Is created when the end of the input thread has been requested."""

    ending: ClassVar[threading.Event]
    waiting: ClassVar[threading.Event]

    def __init__(self) -> None:
        super().__init__()
        assert self.ending.wait(10)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.waiting.set()
        return super().select(timeout)


async def test_an_input_thread_that_ends_while_it_starts_waits_for_no_key(
    kept_signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    LateSelector.ending, LateSelector.waiting = threading.Event(), threading.Event()
    own = SimpleNamespace(SelectSelector=LateSelector, EVENT_READ=selectors.EVENT_READ)
    monkeypatch.setattr(f"{COMPAT}.selectors", own)

    def let_the_thread_wait() -> None:
        LateSelector.ending.set()
        assert LateSelector.waiting.wait(10)

    driver = PipeDriver(App[None]())
    monkeypatch.setattr(driver, "_disable_mouse_support", let_the_thread_wait)
    driver.thread.start()
    (rescue := threading.Timer(5, driver.type, (b"a",))).start()
    driver.end()
    rescue.cancel()
    assert not driver.thread.is_alive() and driver.keys.empty()


class RecordingDriver(OwnOutputDriver):
    """Keeps the file that Textual would write to, and takes a text instead."""

    original: TextIO | None = None
    output: io.StringIO

    def wrap_output(self, file: TextIO) -> object:
        self.original, self.output = file, io.StringIO()
        return self.output


@pytest.fixture
def kept_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGCONT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_a_driver_writes_to_its_own_output(kept_signals: None) -> None:
    app = App[None]()
    driver = RecordingDriver(app)
    assert driver.original is not None and driver.original.writable()
    assert cast(Any, driver)._file is driver.output  # what Textual's writer thread is started with
    assert driver.driven_app is app
