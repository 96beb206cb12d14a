"""Questions with a few answers, each with a key and a button."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Button

from agentgym_tui.commands.keymap import COMMANDS, Scope, bindings, keymap_of
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.safe_text import SafeText, sanitize_line, trusted
from agentgym_tui.screens.base import DialogScreen
from agentgym_tui.state.models import BatchRun
from agentgym_tui.widgets.pane import DialogFrame
from agentgym_tui.widgets.static_lines import StaticLines


class ConfirmDialog(DialogScreen[str]):
    """A question; the result is the answer's name.

    Args:
        title: what it is about.
        place: the answers are its commands, ``answer('…')``.
        default: the answer of the button that has the focus.
    """

    AUTO_FOCUS = ""

    def __init__(self, title: SafeText, *, place: Scope, default: str) -> None:
        super().__init__()
        self._title = title
        self._answers = [command for command in COMMANDS if command.scope == place]
        self._default = default

    def question(self) -> Sequence[Line]:
        """In a line or a few."""
        raise NotImplementedError

    def ask(self) -> None:
        """Ask, or ask again when what it is about has changed."""
        heading, lines = self.query_one("#question", StaticLines), self.question()
        heading.styles.height = len(lines) + 2
        heading.show(lambda _: lines)

    def compose(self) -> ComposeResult:
        """The question and a button for each answer."""
        with DialogFrame(self._title, keys="tab and enter choose"):
            yield StaticLines(id="question")
            for command in self._answers:
                with Horizontal(classes="answer"):
                    label = f"{command.title} ({keymap_of(self.app).display(command)[0]})"
                    yield Button(Content(label), id=_name(command.action), compact=True)
                    about = command.help
                    yield StaticLines(lambda _, about=about: [[Cell(trusted(about), "dim")]])  # type: ignore[misc]

    def on_mount(self) -> None:
        """Ask; enter gives the answer that harms least."""
        self.ask()
        self.query_one(f"#{self._default}").focus()

    def action_answer(self, answer: str) -> None:
        """This one."""
        self.leave(answer)

    @on(Button.Pressed)
    def _pressed(self, pressed: Button.Pressed) -> None:
        self.leave(pressed.button.id or "")


class CancelDialog(ConfirmDialog):
    """Asks how much of a battery is to be cancelled.

    Args:
        batch: what is played.
        n_more: batches that wait.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("cancel")]

    def __init__(self, batch: BatchRun, n_more: int) -> None:
        super().__init__(trusted("Cancel what?"), place="cancel", default="nothing")
        self._batch = batch
        self._n_more = n_more

    def question(self) -> Sequence[Line]:
        """What is played, and how much waits."""
        waits = "1 environment waits" if self._n_more == 1 else f"{self._n_more} environments wait"
        return [
            [Cell(sanitize_line(self._batch.env, 40), "head"), Cell(trusted(f" is played, {waits} in its battery."))]
        ]


def _name(action: str) -> str:
    return action.split("'")[1]
