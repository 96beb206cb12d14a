"""Screens that take keys only while they are whole, and those that give a result and go."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widget import Widget

from agentgym_tui.services.timers import SureTimers

WIDTHS: Final = [(0, "-narrow"), (110, "-wide")]
"""Columns from which on what has much to say is wider."""


class Whole(Screen[ScreenResultType], SureTimers):
    """A screen whose parts come after it and go before it: keys that are faster find nothing to act on."""

    PARTS: ClassVar[str] = ""
    """Selectors of all that has to be there, with commas."""

    _parts: tuple[Widget, ...] = ()

    def on_compose(self) -> None:
        """Have the classes of this size before there is anything that would be drawn without, and styled anew."""
        width, height = self.app.size
        for size, classes in ((width, self.HORIZONTAL_BREAKPOINTS), (height, self.VERTICAL_BREAKPOINTS)):
            self.add_class(*[name for least, name in classes or () if size >= least][-1:])

    @property
    def is_there(self) -> bool:
        """Whether all parts are there."""
        if self.PARTS and not self._parts:
            found = tuple(self.query(self.PARTS))
            self._parts = found if len(found) == self.PARTS.count(",") + 1 else ()
        return not self.PARTS or (bool(self._parts) and all(part.is_attached for part in self._parts))

    @property
    def whole(self) -> bool:
        """Whether keys may do something."""
        return self.is_mounted and self.is_current and self.is_attached and self.is_there

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key may do something here."""
        return self.whole


class Leaving(Whole[ScreenResultType]):
    """A screen that is left once, however fast keys come: a second answer may be on its way when the first is taken."""

    def leave(self, result: ScreenResultType | None = None) -> None:
        """Go, with a result; nothing happens where it has gone already."""
        if self.is_current:
            self.dismiss(result)


class DialogScreen(ModalScreen[ScreenResultType], Leaving[ScreenResultType]):
    """A question or a view above the screen it is about; modal first: styles follow the first base alone."""

    HORIZONTAL_BREAKPOINTS = WIDTHS
