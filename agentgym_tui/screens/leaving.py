"""Screens that give a result and go."""

from __future__ import annotations

from typing import Final

from textual.screen import ModalScreen, Screen, ScreenResultType

WIDTHS: Final = [(0, "-narrow"), (110, "-wide")]
"""Columns from which on what has much to say is wider."""


class Leaving(Screen[ScreenResultType]):
    """A screen that is left once, however fast keys come: a second answer may be on its way when the first is taken."""

    def leave(self, result: ScreenResultType | None = None) -> None:
        """Go, with a result; nothing happens where it has gone already."""
        if self.is_current:
            self.dismiss(result)


class DialogScreen(ModalScreen[ScreenResultType], Leaving[ScreenResultType]):
    """A question or a view above the screen it is about; modal first: styles follow the first base alone."""

    HORIZONTAL_BREAKPOINTS = WIDTHS
