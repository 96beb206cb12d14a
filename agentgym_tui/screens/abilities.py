"""What screens and widgets can do when the app asks, as protocols."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from agentgym_tui.state.run_store import RunStore


@runtime_checkable
class Drawing(Protocol):
    """A screen that shows what the store holds."""

    def draw(self, store: RunStore) -> None:
        """The store changed."""
        ...


@runtime_checkable
class Zooming(Protocol):
    """A screen that can show one of its parts alone."""

    def zoom(self) -> None:
        """Show the focused part alone, or all of them again."""
        ...


@runtime_checkable
class Revealing(Protocol):
    """A screen or widget that shows outside text."""

    def hostile_text(self) -> str | None:
        """The selected text as it came, where cleaning changed it."""
        ...


@runtime_checkable
class Resizable(Protocol):
    """A screen whose panes can be made larger and smaller."""

    def resize(self, how: str) -> bool:
        """Change the size of the focused pane, or ``reset`` all; False where that cannot be."""
        ...
