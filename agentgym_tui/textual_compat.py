"""The only module that uses private attributes of Textual; each docstring gives the reason.

``pyproject.toml`` excludes the next minor version of Textual, and each function and class here has a test.
"""

from __future__ import annotations

import os
import selectors
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, ClassVar, Final, NamedTuple, TextIO, TypeAlias, cast

from textual._xterm_parser import XTermParser
from textual.app import App, ReturnType
from textual.binding import Binding, BindingsMap
from textual.css.model import RuleSet
from textual.css.styles import RulesMap, Styles
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.timer import Timer
from textual.widget import Widget

KEY_CHECK_S: Final = 0.1
"""Seconds between two checks whether the key sequence that was begun is complete."""


MAX_PARSED: Final = 1_000
"""Largest number of parsed style sources that are kept; the console has about 90 per theme."""
MAX_COMPUTED: Final = 10_000
"""Largest number of nodes whose styles are kept."""
MAX_VERSIONS: Final = 1_000
"""Largest number of sets of style sources whose numbers are kept."""

_RulesByKey: TypeAlias = dict[tuple[Any, ...], RulesMap]


class _ComputedRules(NamedTuple):
    """The rules of a node as they were parsed and as its ``Styles`` hold them."""

    parsed: RulesMap
    held: RulesMap
    has_hover: bool


class ParsedOnceStylesheet(Stylesheet):
    """A stylesheet that parses each source once per theme, and finds the rules of equal nodes once.

    Textual parses all sources again when it opens a screen with styles of its own, and at each start of an app; that
    takes a third of the time until the screen is painted. It finds the rules of all nodes again when a dialog opens
    once more or a class changes; that takes a seventh.
    """

    _parsed: ClassVar[dict[tuple[object, ...], list[RuleSet]]] = {}
    _computed: ClassVar[dict[tuple[object, ...], _ComputedRules]] = {}
    _versions: ClassVar[dict[tuple[object, ...], int]] = {}
    _new_versions: ClassVar[Iterator[int]] = count()
    _theme: tuple[tuple[str, str], ...] = ()
    _version = -1

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._variables or not self._theme:
            super().set_variables(variables)
            self._theme = tuple(variables.items())

    def reparse(self) -> None:
        self.parse()

    def _parse_rules(self, css: str, *args: Any, **kwargs: Any) -> list[RuleSet]:  # noqa: ANN401 - Textual's arguments
        key = (css, self._theme or tuple(self._variables.items()), args, tuple(kwargs.items()))
        if (rules := self._parsed.get(key)) is None:
            rules = super()._parse_rules(css, *args, **kwargs)
            _make_room(self._parsed, MAX_PARSED)
            self._parsed[key] = rules
        return rules

    def parse(self) -> None:
        super().parse()
        valid = (source for source in self.source.items() if source[1].content not in self._invalid_css)
        key = (self._theme or tuple(self._variables.items()), *valid)
        if key not in self._versions:
            _make_room(self._versions, MAX_VERSIONS)
            self._versions[key] = next(self._new_versions)
        self._version = self._versions[key]

    def apply(self, node: DOMNode, *, animate: bool = False, cache: _RulesByKey | None = None) -> None:
        if self._require_parse:
            self.parse()
        key = (self._version, *map(_style_state, node.css_path_nodes))
        if (computed := self._computed.get(key)) is None:
            self._apply_new(key, node, animate)
            return
        node._has_hover_style = computed.has_hover
        node._has_focus_within = node._has_order_style = node._has_odd_or_even = False
        base = node.styles.base
        if base._rules == computed.held:
            node.notify_style_update()
        elif base._rules or animate or node._is_mounted:
            self.replace_rules(node, computed.parsed, animate=animate)
        else:  # no setter has an effect besides the value
            base.merge_rules(computed.held)
            node.notify_style_update()
        self._process_component_classes(node)

    def _apply_new(self, key: tuple[object, ...], node: DOMNode, animate: bool) -> None:
        found: _RulesByKey = {}  # stays empty if the rules depend on the siblings or children of the node
        super().apply(node, animate=animate, cache=found)
        _make_room(self._computed, MAX_COMPUTED)
        for rules in found.values():
            held = Styles()
            for name, value in rules.items():
                setattr(held, name, value)
            self._computed[key] = _ComputedRules(rules, held.get_rules(), node._has_hover_style)


def _make_room(cache: dict[Any, Any], limit: int) -> None:
    if len(cache) >= limit:
        cache.clear()


def _style_state(node: DOMNode) -> tuple[object, ...]:
    """Return what selectors can match on a node, except its siblings and children."""
    kind = type(node), node._id, node.classes
    if isinstance(node, Widget):
        return *kind, *node._pseudo_classes_cache_key, node.allow_focus()
    if isinstance(node, App):
        return *kind, node.app_focus, node.current_theme.dark, node.is_inline, node.native_ansi_color, node.no_color
    return kind


class OrderedKeysApp(App[ReturnType], inherit_bindings=False):
    """An app that runs a screen's binding before it handles the next key.

    Textual runs a binding only after every ancestor of the focus has seen the key; a later key could overtake it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Textual's arguments
        super().__init__(*args, **kwargs)
        self.stylesheet = ParsedOnceStylesheet(variables=self.get_css_variables())

    async def _check_bindings(self, key: str, priority: bool = False) -> bool:
        if await super()._check_bindings(key, priority):
            return True
        typing = self.focused is not None and self.focused.check_consume_key("a", "a")
        return priority and not typing and await super()._check_bindings(key)


class OwnScrollBar(ScrollView, inherit_bindings=False):
    """A view that makes its own vertical scroll bar; Textual has no public way to replace it."""

    def make_scroll_bar(self) -> ScrollBar:
        """Return a new vertical scroll bar."""
        raise NotImplementedError

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = self.make_scroll_bar()
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar


class OwnInputDriver(LinuxDriver):
    """A driver that waits for input; ``LinuxDriver`` looks for input ten times a second, even if nothing is typed."""

    _wake_pipe: tuple[int, ...] = ()

    def start_application_mode(self) -> None:
        self._wake_pipe = self._wake_pipe or os.pipe()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def run_input_thread(self) -> None:
        parser, decode = XTermParser(self._debug), getincrementaldecoder("utf-8")().decode
        with selectors.SelectSelector() as selector:
            for descriptor in (self.fileno, *self._wake_pipe[:1]):
                selector.register(descriptor, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                ready = selector.select(None if parser._timeout_time is None else KEY_CHECK_S)
                if any(key.fd != self.fileno for key, _ in ready):
                    return  # woken by ``disable_input``, which sets the event a moment later
                if ready:
                    if not (data := self._read()):
                        self.end_of_input()
                        self.exit_event.wait()  # the terminal would be readable for ever
                        return
                    if text := decode(data):  # nothing after a part of a character, which the parser takes for the end
                        for event in parser.feed(text):
                            self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, 4096)
        except OSError:
            return b""

    def end_of_input(self) -> None:
        """Act on the end of the terminal, on the input thread."""
        raise NotImplementedError

    def disable_input(self) -> None:
        for writer in self._wake_pipe[1:]:
            os.write(writer, b"!")
        super().disable_input()
        pipe, self._wake_pipe = self._wake_pipe, ()  # only now: the thread may just be starting
        for descriptor in pipe:
            os.close(descriptor)


class OwnOutputDriver(OwnInputDriver):
    """A driver for terminals that replaces the file it writes to; ``LinuxDriver`` always takes standard error.

    Args:
        args: the arguments of Textual's driver.
        kwargs: the keyword arguments of Textual's driver.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Textual's arguments
        super().__init__(*args, **kwargs)
        self._file = cast(Any, self.wrap_output(cast(TextIO, self._file)))

    def wrap_output(self, file: TextIO) -> object:
        """Return what the driver writes to in place of ``file``: an object with ``write``, ``flush`` and ``fileno``."""
        raise NotImplementedError

    @property
    def driven_app(self) -> App[Any]:
        """The app that this driver shows."""
        return self._app


def add_bindings(node: DOMNode, bindings: Iterable[Binding]) -> Callable[[], None]:
    """Bind keys on one app or screen; they replace the bindings of its class with the same key.

    Textual's own way is a class attribute, which is fixed before further commands can be registered.

    Returns:
        A function that restores the bindings as they were before.
    """
    before = node._bindings.copy()
    node._bindings.key_to_bindings.update(BindingsMap(bindings).key_to_bindings)

    def restore() -> None:
        node._bindings = before

    return restore


def binding_ids(node: DOMNode) -> list[str]:
    """Return the ids of all bindings of an app, screen or widget, inherited ones first; no id is returned twice."""
    return list(dict.fromkeys(binding.id for _, binding in node._bindings if binding.id is not None))


def bindings_of_key(node: DOMNode, key: str) -> Sequence[Binding]:
    """Return the bindings of a key on one node, by the user's keymap; Textual has only those of the whole screen."""
    bindings = node._bindings.copy()
    bindings.apply_keymap(node.app._keymap)
    return bindings.key_to_bindings.get(key, ())


def start_in_mode(app: App[Any], mode: str) -> None:
    """Make ``mode`` the app's first mode; called before ``App.__init__``, which reads the class attribute."""
    vars(app)["DEFAULT_MODE"] = mode


def never_skip(timer: Timer) -> Timer:
    """Make a timer run even if it is late: Textual skips a timer whose time has passed at the first check."""
    timer._skip = False
    return timer


def driver_of(app: App[Any]) -> Driver | None:
    """Return the driver of a running app, to write escape sequences that Textual does not know; None without one."""
    return app._driver


def crash_of(app: App[Any]) -> Exception | None:
    """Return the exception that ended an app; Textual's public API prints a traceback with variables instead."""
    return app._exception
