"""Dialogs with a few answers, each with a key and a button."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Button

from agentgym_tui.commands.keymap import commands_of, keymap_of
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.sinks import as_label
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.widgets.static_lines import StaticLines


class ConfirmDialog(DialogScreen[str]):
    """A dialog with a question; its result is the name of the chosen answer.

    The commands of its scope are the answers; their actions have the form ``answer('…')``.

    Args:
        title: title of the dialog.
        default: the answer whose button has the focus.
    """

    AUTO_FOCUS = ""

    def __init__(self, title: str, *, default: str) -> None:
        super().__init__()
        self._title = title
        self._answers = commands_of(self.SCOPE)
        self._default = default

    def question(self) -> Sequence[Line]:
        """Return the lines of the question."""
        raise NotImplementedError

    def ask(self) -> None:
        """Show the question; called again when the state that the question describes has changed."""
        heading, lines = self.query_one("#question", StaticLines), self.question()
        heading.styles.height = len(lines) + 2
        heading.show(lambda _: lines)

    def compose(self) -> ComposeResult:
        with DialogFrame(self._title, keys="{focus.next} and {field.submit} choose"):
            yield StaticLines(id="question")
            for command in self._answers:
                with Horizontal(classes="answer"):
                    label = f"{command.title} ({keymap_of(self.app).display(command)[0]})"
                    yield Button(as_label(label), id=command.action.split("'")[1], compact=True)
                    about = command.help
                    yield StaticLines(lambda _, about=about: [[Cell(about, "dim")]])  # type: ignore[misc]

    def on_mount(self) -> None:
        """Show the question and focus the default answer, which does the least harm."""
        self.ask()
        self.query_one(f"#{self._default}").focus()

    def action_answer(self, answer: str) -> None:
        """Close the dialog with ``answer`` as its result."""
        self.leave(answer)

    @on(Button.Pressed)
    def _pressed(self, pressed: Button.Pressed) -> None:
        self.leave(pressed.button.id or "")


class CancelAllDialog(ConfirmDialog):
    """A dialog before everything that runs or waits is cancelled.

    Args:
        n_batches: number of batches that run or wait.
    """

    SCOPE = "cancel_all"

    def __init__(self, n_batches: int) -> None:
        super().__init__("Cancel everything?", default="nothing")
        self._n_batches = n_batches

    def question(self) -> Sequence[Line]:
        n_batches = pluralize(self._n_batches, "batch", "batches")
        return [[Cell(n_batches, "head"), Cell(" that run or wait")]]


class CancelDialog(ConfirmDialog):
    """A dialog that lets the user cancel one batch or its whole battery.

    Args:
        batch: the running batch.
        n_more: number of waiting batches of the same battery.
    """

    SCOPE = "cancel"

    def __init__(self, batch: BatchRun, n_more: int) -> None:
        super().__init__("Cancel what?", default="nothing")
        self._batch = batch
        self._n_more = n_more

    def question(self) -> Sequence[Line]:
        env = Cell(self._batch.env, "head")
        return [[env, Cell(f" is running; {self._n_more} more in this battery")]]
