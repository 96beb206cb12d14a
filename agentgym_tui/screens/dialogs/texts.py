"""Dialogs with a text: questions with a few answers, the newest messages, an evaluation report, and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Button

from agentgym_tui.commands import Command, bindings, commands_of, keymap_of
from agentgym_tui.presenters.cells import Cell, Line, Tone, cut_start, wrap_text
from agentgym_tui.presenters.number_format import format_size, format_time, pluralize
from agentgym_tui.presenters.payload import HexRows
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.services import Message, copy_to_clipboard
from agentgym_tui.sessions.run_commands import reachable_batches
from agentgym_tui.sinks import as_label
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.nodes import NodeInfo, ProfileDifference, VariableChange
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.lists import LineList, StaticLines, WrappedText

if TYPE_CHECKING:
    from runner.node.retention import CleanUpAction, PruneReport
    from runner.results.evaluation import EvalRow


_PATH_WIDTH: Final = 68
_MAX_BATCHES: Final = 4
_MAX_VARIABLES: Final = 4
_VARIABLE_CHANGES: Final[dict[VariableChange, str]] = {
    "changed": " has another value than when the node started",
    "set": " is set now; it was not when the node started",
    "missing": " is not set here; a restart from here loses it",
}


class ConfirmDialog(DialogScreen[str]):
    """A dialog with a question; its result is the name of the chosen answer.

    The commands of the scope are the answers; their actions have the form ``answer('…')``. The first one is harmless,
    and has the focus at the beginning. ``question`` is called again whenever the store has changed, and returns None
    once it need not be answered, which gives the first answer. Where the console asks by itself (``is_offer``), the key
    of an answer marks its button first, because it may have been meant for the screen below.
    """

    AUTO_FOCUS = ""

    def __init__(
        self, scope: str, title: str, question: Callable[[], Sequence[Line] | None], *, is_offer: bool = False
    ) -> None:
        self.SCOPE = scope
        super().__init__()
        add_bindings(self, bindings("fields"))
        self._title, self._question, self._answers, self._is_offer = title, question, commands_of(scope), is_offer

    def compose(self) -> ComposeResult:
        move = "{fields.previous} {fields.next} {focus.next} choose · {field.submit} answers"
        with DialogFrame(self._title, keys=move):
            yield StaticLines(id="question")
            for command in self._answers:
                with Horizontal(classes="answer"):
                    keys = " ".join(keymap_of(self.app).display(command))
                    label = f"{command.title} ({keys})" if keys else command.title
                    yield Button(as_label(label), id=_answer_of(command), compact=True)
                    yield StaticLines(lambda _, about=command.help: [[Cell(about, "dim")]])  # type: ignore[misc]

    def on_mount(self) -> None:
        self._show_question()
        self.query_one(f"#{_answer_of(self._answers[0])}").focus()

    def draw(self, store: RunStore) -> None:
        self._show_question()

    def _show_question(self) -> None:
        if (lines := self._question()) is None:
            self.leave(_answer_of(self._answers[0]))
            return
        heading = self.query_one("#question", StaticLines)
        heading.styles.height = len(lines) + 2
        heading.show(lambda _: lines)

    def action_answer(self, answer: str) -> None:
        button = self.query_one(f"#{answer}")
        if self._is_offer and not button.has_focus and answer != _answer_of(self._answers[0]):
            button.focus()
        else:
            self.leave(answer)

    @on(Button.Pressed)
    def _pressed(self, pressed: Button.Pressed) -> None:
        self.leave(pressed.button.id or "")


def _answer_of(command: Command) -> str:
    return command.action.split("'")[1]


def quit_dialog(store: RunStore, node: str = "") -> ConfirmDialog:
    """The result is ``stop``, ``leave`` or ``stay``; ``node`` is the one whose batches would stop."""
    return ConfirmDialog("quit", "Leave the console?", partial(_unfinished_lines, store, node))


def stop_node_dialog(store: RunStore, node: str = "") -> ConfirmDialog:
    """The result is ``now``, ``drain`` or ``nothing``; ``node`` is the name of the one that would stop."""
    return ConfirmDialog("stop_node", f"{f'Stop the node {node}'.rstrip()}?", partial(_unfinished_lines, store, node))


def restart_node_dialog(store: RunStore, difference: ProfileDifference | None = None, node: str = "") -> ConfirmDialog:
    """The result is ``restart`` or ``nothing``; ``node`` is the name of the one that would restart.

    ``difference`` is why the console offers the restart; the dialog closes when the profiles no longer differ.
    """

    def question() -> Sequence[Line] | None:
        if difference is not None and store.profile_difference is None:
            return None
        lines = [*(_difference_lines(difference) if difference else ()), *_unfinished_lines(store, node)]
        if any(batch.status == "paused" for batch in reachable_batches(store, node)):
            lines.append([Cell("A batch is paused: resume it and the others on Runs after the restart.", "warn")])
        return lines

    title = f"{f'Restart the node {node}'.rstrip()}?"
    return ConfirmDialog("restart_node", title, question, is_offer=difference is not None)


def send_history_dialog(node: NodeInfo) -> ConfirmDialog:
    """Asks before a node's earlier events go to its broker; the result is ``send`` or ``nothing``."""
    counted = Cell(pluralize(node.n_held, "event"), "head")
    lines: list[Line] = [[counted, Cell(" ended before the node first used this broker:")], _path_line(node.egress)]
    return ConfirmDialog("send_history", "Send the earlier events?", lambda: lines)


def stop_server_dialog(store: RunStore, env: str) -> ConfirmDialog:
    """Asks before an environment server in use stops; the result is ``stop`` or ``nothing``."""

    def question() -> Sequence[Line]:
        n_running = pluralize(len(running_in(store, env)), "episode")
        about = Cell("A batch waits for its server a while, then it is interrupted.", "dim")
        return [[Cell(env, "head"), Cell(f": {n_running} running")], [about]]

    return ConfirmDialog("stop_server", "Stop the server?", question)


def cancel_dialog(batch: BatchRun, n_more: int) -> ConfirmDialog:
    """Asks whether to cancel a running batch, or also the ``n_more`` batches of its battery that wait."""
    line = [Cell(batch.env, "head"), Cell(f" is running; {n_more} more in this battery")]
    return ConfirmDialog("cancel", "Cancel what?", lambda: [line])


def again_dialog(name: str, n_errors: int, n: int) -> ConfirmDialog:
    """The result is ``all``, ``errors`` or ``nothing``."""
    line = [Cell(name, "head"), Cell(f": {n_errors} of {pluralize(n, 'episode')} ended with an error")]
    return ConfirmDialog("again", "Play what again?", lambda: [line])


def cancel_all_dialog(n_batches: int, node: str = "") -> ConfirmDialog:
    """The result is ``all`` or ``nothing``; ``node`` is the name of the one that has them."""
    where = Cell(f" that run or wait on {node}" if node else " that run or wait")
    line = [Cell(pluralize(n_batches, "batch", "batches"), "head"), where]
    return ConfirmDialog("cancel_all", "Cancel everything?", lambda: [line])


def clean_up_dialog(action: CleanUpAction, plan: PruneReport) -> ConfirmDialog:
    """Asks before episodes are archived or deleted; the result is ``action`` or ``nothing``."""
    is_final, episodes = action == "delete", pluralize(plan.n_archived + plan.n_deleted, "episode")
    size = f"{'' if is_final else 'about '}{format_size(plan.n_freed)}"
    lines: list[Line] = [[Cell(episodes, "head"), Cell(f", frees {size}")]]
    lines += ([Cell(text, "warn")] for text in kept_texts(plan.kept))
    lines += [[Cell("this is final: they cannot be brought back", "warn")]] if is_final else []
    return ConfirmDialog(action, f"{action.capitalize()} {episodes}?", lambda: lines)


def kept_texts(kept: Mapping[str, int]) -> list[str]:
    return [f"{n:,} {'stays' if n == 1 else 'stay'}: {reason}" for reason, n in kept.items()]


def running_in(store: RunStore, env: str) -> list[str]:
    """Return the ids of the episodes that run in an environment, without those of lost nodes."""
    return [each.episode_id for each in store.running_episodes() if each.is_active and each.env == env]


def _unfinished_lines(store: RunStore, node: str) -> list[Line]:
    batches = reachable_batches(store, node)
    if not batches:
        return [[Cell("Nothing is running.")]]
    n_running = sum(each.is_active and each.node in (node or each.node, "") for each in store.running_episodes())
    n_left = sum(max(batch.n_planned - batch.n_done, 0) for batch in batches)
    lines: list[Line] = [[Cell(f"{pluralize(n_running, 'episode')} running, {n_left} remaining")]]
    for batch in batches[:_MAX_BATCHES]:
        done = Cell(f"  {batch.n_done}/{batch.n_planned} ", "accent")
        lines.append([done, Cell(batch.env), Cell(f" {batch.status}", "dim")])
    if len(batches) > _MAX_BATCHES:
        lines.append([Cell(f"  and {len(batches) - _MAX_BATCHES} more", "dim")])
    return lines


def _difference_lines(difference: ProfileDifference) -> list[Line]:
    (running_id, running_path), (wanted_id, wanted_path) = difference.running, difference.wanted
    running, wanted = running_id or "?", wanted_id or "?"
    if difference.is_other:
        return [
            [Cell(f"The node runs the profile {running}:", "warn")],
            _path_line(running_path, "dim"),
            [Cell(f"This console uses the profile {wanted}:", "warn")],
            _path_line(wanted_path, "dim"),
            [],
        ]
    first = [Cell(f"The profile {running} has changed since the node loaded it:", "warn")]
    profile = [first, _path_line(running_path, "dim")] if difference.is_changed else []
    variables = difference.variables[:_MAX_VARIABLES]
    return [*profile, *([Cell(f"{name}{_VARIABLE_CHANGES[change]}", "warn")] for name, change in variables), []]


def _path_line(path: str, tone: Tone = "plain") -> Line:
    return [Cell("  "), Cell(cut_start(masked_line(path, 4_096), _PATH_WIDTH), tone)]


MAX_ROWS: Final = 200
"""Rows of one message."""
MAX_BYTES: Final = 4_096
"""Bytes that a hex dump shows."""


class TextDialog(DialogScreen[None]):
    SCOPE = "dialog"

    def __init__(self, title: str, lines: Callable[[int], Iterable[Line]]) -> None:
        super().__init__()
        self._title, self._lines = title, lines

    def compose(self) -> ComposeResult:
        with DialogFrame(self._title, keys="{dialog.close} closes · {list.down} {list.up} scroll"):
            yield WrappedText(lambda width: list(self._lines(width)), id="help")


def message_lines(shown: Sequence[Message], width: int) -> Iterator[Line]:
    if not shown:
        yield [Cell("No messages yet", "dim")]
    for message in shown:
        yield [Cell(format_time(message.at, "%H:%M:%S"), "bad" if message.failed else "dim")]
        text = message.text.replace("\t", "    ")
        yield from ([Cell(row)] for row in wrap_text(text, width, MAX_ROWS))
        yield ()


class EvalReportDialog(DialogScreen[None]):
    """AgentGym's score and success per environment, and what differs from AgentEval's setting."""

    SCOPE = "report"

    def __init__(self, rows: Sequence[EvalRow]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        keys = "{report.copy} copies as Markdown · {report.close} closes · {list.down} {list.up} scroll"
        with DialogFrame("Score and success as AgentGym computes them", keys=keys):
            yield WrappedText(lambda width: list(report_lines(self._rows, width)), id="report")

    def action_copy(self) -> None:
        from runner.results.evaluation import markdown

        copy_to_clipboard(self.app, "\n".join(markdown(self._rows)), "report", raw=False)


def report_lines(rows: Sequence[EvalRow], width: int) -> Iterator[Line]:
    from runner.results.evaluation import cells

    if not rows:
        yield [Cell("No episodes yet", "dim")]
    for row in rows:
        env, player, n, score, success, interval, rounds, errors, setting = map(masked_line, cells(row))
        yield [Cell(env, "head"), Cell(f" {player}")]
        numbers = f"n {n} · score {score} · success {success} ({interval}) · {rounds} rounds · {errors} errors"
        differences = f"not comparable with AgentEval: {'; '.join(row.differences)}"
        texts = [Cell(numbers), Cell(setting, "dim")]
        texts.append(Cell(differences, "warn") if row.differences else Cell("AgentEval's setting", "good"))
        for text, style in texts:
            yield from ([Cell(line, style)] for line in wrap_text(text, width, MAX_ROWS))
        yield ()


class HexDumpDialog(DialogScreen[None]):
    SCOPE = "dialog"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._data = text.encode("utf-8", "surrogatepass")
        more = f", first {MAX_BYTES:,} shown" if len(self._data) > MAX_BYTES else ""
        self._title = f"{len(self._data):,} bytes of UTF-8{more}"

    def compose(self) -> ComposeResult:
        with DialogFrame(self._title, keys="{dialog.close} closes"):
            yield LineList(HexRows(self._data[:MAX_BYTES]), cursor_type="none", id="hex")
