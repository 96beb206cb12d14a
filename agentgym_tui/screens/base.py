"""Screens that take keys only while they are whole, and those that give a result and go."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol, runtime_checkable

from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widget import Widget

from agentgym_tui.services.timers import ReliableTimers
from agentgym_tui.state.run_store import RunStore

WIDTH_BREAKPOINTS: Final = [(0, "-narrow"), (110, "-wide")]
"""Columns from which on what has much to say is wider."""


class ConsoleScreen(Screen[ScreenResultType], ReliableTimers):
    """A screen whose parts come after it and go before it: keys that are faster find nothing to act on."""

    REQUIRED_WIDGETS: ClassVar[str] = ""
    """Selectors of all that has to be there, with commas."""

    _required: tuple[Widget, ...] = ()

    def on_compose(self) -> None:
        """Have the classes of this size before there is anything that would be drawn without, and styled anew."""
        width, height = self.app.size
        for size, classes in ((width, self.HORIZONTAL_BREAKPOINTS), (height, self.VERTICAL_BREAKPOINTS)):
            self.add_class(*[name for minimum, name in classes or () if size >= minimum][-1:])

    @property
    def is_ready(self) -> bool:
        """Whether all parts are there."""
        if self.REQUIRED_WIDGETS and not self._required:
            widgets = tuple(self.query(self.REQUIRED_WIDGETS))
            self._required = widgets if len(widgets) == self.REQUIRED_WIDGETS.count(",") + 1 else ()
        return not self.REQUIRED_WIDGETS or (bool(self._required) and all(widget.is_attached for widget in self._required))

    @property
    def accepts_keys(self) -> bool:
        """Whether keys may do something."""
        return self.is_mounted and self.is_current and self.is_attached and self.is_ready

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key may do something here."""
        return self.accepts_keys


class ResultScreen(ConsoleScreen[ScreenResultType]):
    """A screen that is left once, however fast keys come: a second answer may be on its way when the first is taken."""

    def leave(self, result: ScreenResultType | None = None) -> None:
        """Go, with a result; nothing happens where it has gone already."""
        if self.is_current:
            self.dismiss(result)


class DialogScreen(ModalScreen[ScreenResultType], ResultScreen[ScreenResultType]):
    """A question or a view above the screen it is about; modal first: styles follow the first base alone."""

    HORIZONTAL_BREAKPOINTS = WIDTH_BREAKPOINTS


@runtime_checkable
class Redrawable(Protocol):
    """A screen that shows what the store holds."""

    def draw(self, store: RunStore) -> None:
        """The store changed."""
        ...


@runtime_checkable
class Zoomable(Protocol):
    """A screen that can show one of its parts alone."""

    def zoom(self) -> None:
        """Show the focused part alone, or all of them again."""
        ...


@runtime_checkable
class HasHostileText(Protocol):
    """A screen or widget that shows outside text."""

    def hostile_text(self) -> str | None:
        """The selected text as it came, where cleaning changed it."""
        ...


@runtime_checkable
class Resizable(Protocol):
    """A screen whose panes can be made larger and smaller."""

    def resize(self, direction: str) -> bool:
        """Change the size of the focused pane, or ``reset`` all; False where that cannot be."""
        ...
