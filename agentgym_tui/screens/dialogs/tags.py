"""The dialog in which the tags and notes of an episode or a step are edited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from agentgym_tui.commands.registry import NODE
from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.presenters.episode_facts import note_line
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import masked_rows, sanitize_line
from agentgym_tui.screens.base import ConsoleScreen, DialogFrame, DialogScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.control_client import ControlRequestError
from agentgym_tui.sessions.run_commands import annotate, split_tags
from agentgym_tui.sessions.session import Session, load_notes
from agentgym_tui.state.episode_list import ListEntry, UnreadableFile
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines
from runner.events.control import AnnotateArgs
from runner.types.notes import MAX_NOTE_CHARS
from runner.util.clock import new_ulid

if TYPE_CHECKING:
    from runner.types.notes import Note

MAX_ROWS: Final = 2
"""Rows for the reason why a change was refused."""


class TagDialog(DialogScreen[None]):
    """A dialog with the tags of an episode or a step, a new note, and its notes; it closes when a change is stored.

    Args:
        session: sends the change.
        episode_id: id of the episode.
        title: title of the dialog.
        notes: the tags and notes of the episode and its steps.
        step: index of the step; None: the episode.
        on_change: called with all tags and notes after a change.
    """

    SCOPE = "tags"
    AUTO_FOCUS = ""

    def __init__(
        self,
        session: Session,
        episode_id: str,
        title: str,
        notes: Sequence[Note],
        step: int | None,
        on_change: Callable[[Sequence[Note]], None],
    ) -> None:
        super().__init__()
        self._session, self._episode_id, self._title, self._step = session, episode_id, title, step
        self._on_change = on_change
        # a tag that is not shown as it is stored cannot be edited, and stays
        own = [note for note in notes if note.step == step]
        self._before = [each.text for each in own if each.kind == "tag" and sanitize_line(each.text, 100) == each.text]
        self._notes = [note for note in own if note.kind == "note"]
        self._note_id = new_ulid()  # so that a repeated request adds no second note
        self._refusal = ""
        self._is_sending = False

    def compose(self) -> ComposeResult:
        keys = "{tags.save} saves · {tags.remove} removes a note · {tags.close} closes"
        with DialogFrame(self._title, keys=keys):
            tags = " ".join([*self._before, ""]).lstrip()
            yield SearchInput(tags, placeholder="tags", id="words", compact=True, select_on_focus=False)
            yield SearchInput(placeholder="a new note", id="remark", compact=True, max_length=MAX_NOTE_CHARS)
            yield StaticLines(self._hint, id="note")
            yield LineList(self._lines(), id="notes")

    def on_mount(self) -> None:
        """Begin with the tags of an episode, or with a note on a step."""
        self.set_focus(self.query_one("#words" if self._step is None else "#remark"))

    def action_save(self) -> None:
        """Send what was added and removed; the dialog stays open if the node refuses it."""
        after, note = split_tags(self.query_one("#words", Input).value), self.query_one("#remark", Input).value.strip()
        if set(after) == set(self._before) and not note:
            self.leave()
            return
        change = AnnotateArgs(
            episode_id=self._episode_id,
            step=self._step,
            add=[tag for tag in after if tag not in self._before],
            remove=[tag for tag in self._before if tag not in after],
            note=note or None,
            note_id=self._note_id if note else None,
        )
        self._start(change, self.leave)

    def action_remove(self) -> None:
        """Remove the selected note if the list of notes has the focus."""
        notes = self.query_one("#notes", LineList)
        if self.focused is notes and notes.cursor < len(self._notes):
            removed = self._notes[notes.cursor]
            change = AnnotateArgs(episode_id=self._episode_id, step=self._step, note_id=removed.id)
            self._start(change, partial(self._show_removed, removed))

    def _show_removed(self, note: Note) -> None:
        self._notes.remove(note)
        self.query_one("#notes", LineList).show(self._lines())
        self.show_lines("note")

    @on(Input.Submitted)
    def _submitted(self) -> None:
        if self.accepts_keys:
            self.action_save()

    def _start(self, change: AnnotateArgs, on_stored: Callable[[], None]) -> None:
        if not self._is_sending:
            self._is_sending, self._refusal = True, ""
            start_worker(self, partial(self._send, change, on_stored), group="tags")

    async def _send(self, change: AnnotateArgs, on_stored: Callable[[], None]) -> None:
        try:
            self._on_change(await annotate(self._session, change))
        except ControlRequestError as exc:
            self._refusal = exc.text
            self.show_lines("note")
        else:
            on_stored()
        finally:
            self._is_sending = False

    def _lines(self) -> FixedLines:
        return FixedLines([note_line(note) for note in self._notes])

    def _hint(self, width: int) -> list[Line]:
        if not self._refusal:
            about = "tags with spaces between; those that you delete are removed"
            return [[Cell(row, "dim")] for row in wrap_text(about, width, MAX_ROWS)]
        text = f"✗ {masked_rows(self._refusal)}"
        return [[Cell(row, "bad")] for row in wrap_text(text, width, MAX_ROWS)]


def edit_tags(
    screen: ConsoleScreen[Any],
    session: Session,
    entry: ListEntry | None,
    step: int | None = None,
    on_change: Callable[[Sequence[Note]], None] = lambda notes: None,
) -> None:
    """Open the dialog for an episode or a step, or show why the session cannot change its tags and notes.

    Args:
        screen: the screen below the dialog.
        session: sends the changes.
        entry: the episode.
        step: index of the step; None: the episode.
        on_change: called with all tags and notes of the episode after each change.
    """
    if not NODE.is_met(session):
        screen.toast(NODE.reason(session), failed=True)
    elif entry is not None and not isinstance(entry, UnreadableFile):
        env, episode_id = entry.env, entry.episode_id
        where = env if step is None else f"step {step:,} of {env}"
        title = f"Tags and notes of {where}"

        async def open_dialog() -> None:
            notes = await load_notes(session, episode_id)
            if screen.is_current:
                screen.app.push_screen(TagDialog(session, episode_id, title, notes, step, on_change))

        start_worker(screen, open_dialog, group="tags", exclusive=True)
