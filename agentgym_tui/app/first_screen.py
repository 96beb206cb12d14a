"""Consoles that begin with another screen than the live one: a screen before that would take its time."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.types import CSSPathType

from agentgym_tui.app.console import STYLES, Console
from agentgym_tui.sessions.protocols import Session


class EpisodesConsole(Console, inherit_bindings=False):
    """Begins with what is stored."""

    CSS_PATH: ClassVar[CSSPathType | None] = [*STYLES, "../styles/episodes.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = Console.BINDINGS
    DEFAULT_MODE = "episodes"


class LogsConsole(Console, inherit_bindings=False):
    """Begins with the logs that were opened."""

    CSS_PATH: ClassVar[CSSPathType | None] = [*STYLES, "../styles/log.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = Console.BINDINGS
    DEFAULT_MODE = "logs"


def console_of(session: Session) -> type[Console]:
    """The one that begins with what a session has."""
    if session.logs:
        return LogsConsole
    return EpisodesConsole if session.control is None else Console
