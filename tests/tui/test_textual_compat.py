"""Private attributes of Textual are used in one module, and each use does what the console needs."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import io
import pkgutil
import re
import signal
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import count
from types import ModuleType
from typing import Any, ClassVar, cast

import pytest
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

import agentgym_tui
from agentgym_tui.textual_compat import (
    OrderedKeysApp,
    TerminalDriver,
    add_bindings,
    binding_ids,
    bindings_of_key,
    crash_of,
    driver_of,
    never_skip,
    start_in_mode,
    with_known_styles,
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


async def test_the_first_screen_of_a_mode_is_styled_without_parsing_all_styles_again() -> None:
    class Modes(App[None]):
        CSS = "Screen { background: red; }"
        n_refreshes = 0

        def __init__(self) -> None:
            start_in_mode(self, "first")
            super().__init__()
            self.add_mode("first", lambda: with_known_styles(self, Screen[None]()))

        def refresh_css(self, animate: bool = True) -> None:
            self.n_refreshes += 1
            super().refresh_css(animate)

    app = Modes()
    async with app.run_test():
        assert app.n_refreshes == 0
        assert app.screen.styles.background.hex == "#FF0000"


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


@pytest.fixture
def kept_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGCONT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_a_driver_survives_a_terminal_that_takes_no_output(
    kept_signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        n_writes = 0

        def write(self, text: str) -> int:
            self.n_writes += 1
            raise OSError("closed")

        def fileno(self) -> int:
            return 2

    monkeypatch.setattr("sys.__stderr__", output := Closed())
    written = cast("Any", TerminalDriver(App[None]()))._file  # what Textual's writer thread is started with
    written.write("text")
    written.flush()
    assert output.n_writes == 1
