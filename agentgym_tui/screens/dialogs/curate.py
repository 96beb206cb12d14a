"""What is done with chosen episodes: archive, delete and export them, and edit their tags and notes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from agentgym_tui.commands import CURATION, EXPORT, NODE
from agentgym_tui.presenters.cells import FixedLines
from agentgym_tui.presenters.episode_facts import note_line
from agentgym_tui.presenters.episode_rows import format_exact
from agentgym_tui.presenters.number_format import format_size, pluralize
from agentgym_tui.safe_text import masked_line, masked_rows, sanitize_line, sanitize_message
from agentgym_tui.screens.base import ConsoleScreen, DialogFrame
from agentgym_tui.screens.dialogs.forms import MOVES, Form, Row, field_row
from agentgym_tui.screens.dialogs.texts import clean_up_dialog, kept_texts
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.library import Exporter, ExportJob
from agentgym_tui.sessions.run_commands import annotate, split_tags
from agentgym_tui.sessions.session import Session, load_notes
from agentgym_tui.state.episode_list import ListEntry, UnreadableFile
from agentgym_tui.widgets.inputs import CheckList, OptionStepper, SearchInput
from agentgym_tui.widgets.lists import LineList, StaticLines
from runner.client.node_client import ControlRequestError
from runner.errors import RunnerError, StoreError
from runner.events.control import AnnotateArgs
from runner.types.notes import MAX_NOTE_CHARS
from runner.util.clock import new_ulid

if TYPE_CHECKING:
    from agentgym_tui.sessions.library import FileExporter
    from runner.formats.format import Format
    from runner.node.retention import CleanUpAction, PruneReport
    from runner.types.notes import Note


def clean_up(
    screen: ConsoleScreen[Any],
    session: Session,
    action: CleanUpAction,
    episode_ids: Sequence[str],
    on_done: Callable[[], None],
) -> None:
    """Archive or delete episodes after a confirmation, and show what was done; call ``on_done`` when they have gone."""
    if action == "archive" and session.archiver is not None and episode_ids:
        start_worker(screen, partial(_copy_to_archive, screen, session.archiver, episode_ids), group="curation")
        return
    if (curation := session.curation) is None:
        screen.toast(CURATION.reason(session), failed=True)
        return
    if not episode_ids:
        screen.toast(f"no episode is selected to {action}", failed=True)
        return

    async def plan() -> None:
        with _failure_shown(screen):
            planned = await curation.clean_up(action, episode_ids, dry_run=True)
            if not planned.n_archived + planned.n_deleted:
                screen.toast("\n".join([f"no episode can be {action}d now", *kept_texts(planned.kept)]), failed=True)
            elif screen.is_current:
                screen.app.push_screen(clean_up_dialog(action, planned), answered)

    def answered(answer: str | None) -> None:
        if answer == action:
            screen.toast(f"{action}: {pluralize(len(episode_ids), 'episode')} …")
            start_worker(screen, apply, group="curation")

    async def apply() -> None:
        with _failure_shown(screen):
            report = await curation.clean_up(action, episode_ids)
            screen.toast(report_text(report, action), failed=bool(report.problems))
            on_done()

    start_worker(screen, plan, group="curation")


def report_text(report: PruneReport, action: CleanUpAction) -> str:
    n_done = report.n_archived + report.n_deleted
    done = f"{pluralize(n_done, 'episode')} {action.removesuffix('e')}ed"
    freed = f", {format_size(max(report.n_freed, 0))} freed" if n_done else ""
    problems = [sanitize_message(f"✗ {problem}", 300) for problem in report.problems[:3]]
    return "\n".join([done + freed, *kept_texts(report.kept), *problems])


async def _copy_to_archive(screen: ConsoleScreen[Any], archiver: FileExporter, episode_ids: Sequence[str]) -> None:
    """Copy episodes of opened files, which stay, into a new archive in the working directory."""
    path = Path.cwd() / f"episodes-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip"
    screen.toast(f"archive: {pluralize(len(episode_ids), 'episode')} …")
    with _failure_shown(screen):
        n_copied, unreadable = await archiver.archive(episode_ids, path)
        shown = sanitize_message(str(path), 300)
        copied = f"{pluralize(n_copied, 'episode')} copied into {shown}; the opened files stay"
        left_out = [sanitize_message(f"✗ {n:,} left out: {reason}", 300) for reason, n in unreadable.most_common(3)]
        screen.toast("\n".join([copied, *left_out]), failed=bool(left_out))


@contextmanager
def _failure_shown(screen: ConsoleScreen[Any]) -> Iterator[None]:
    try:
        yield
    except StoreError as exc:
        screen.toast(sanitize_message(f"✗ {exc}", 400), failed=True)


# Export in a format of trainers or other tools.

FILTERS: Final = {
    "first_success": "only the first success of each task",
    "drop_flat": "no tasks whose attempts all have the same reward",
    "balanced": "the same number per environment",
}
PROGRESS_S: Final = 0.2
MAX_PATH: Final = 1_000
STEM: Final = "episodes"


def export(screen: ConsoleScreen[Any], session: Session, episode_ids: Sequence[str], query: str) -> None:
    """Open the form that writes episodes in a format; ``query`` of the list is for the manifest."""
    from runner.formats.format import writable_formats  # slow to import

    if (exporter := session.exporter) is None:
        screen.toast(EXPORT.reason(session), failed=True)
        return
    if not episode_ids:
        screen.toast("no stored episode is selected to export", failed=True)
        return

    async def open_form() -> None:
        formats = await asyncio.to_thread(writable_formats)
        if screen.is_current:
            screen.app.push_screen(ExportForm(exporter, episode_ids, [*formats.values()], query))

    start_worker(screen, open_form, group="curation")


class ExportForm(Form[None]):
    """A form with format, output and filters; it shows progress, and what was written and left out."""

    SCOPE = "export"
    AUTO_FOCUS = "#format"
    BUTTONS: ClassVar = {"start": "Write", "audit": "Audit", "close": "Close"}
    n_report = 8

    def __init__(self, exporter: Exporter, episode_ids: Sequence[str], formats: Sequence[Format], query: str) -> None:
        super().__init__()
        self._exporter, self._ids, self._formats, self._query = exporter, list(episode_ids), formats, query
        self._format = OptionStepper([each.title for each in formats], id="format")
        self._filters = CheckList([*FILTERS.values()], set(), id="filters")
        self._job: ExportJob | None = None
        self._is_audit = False

    def compose(self) -> ComposeResult:
        title = f"Export {pluralize(len(self._ids), 'episode')}"
        keys = MOVES + " · {checks.toggle} checks · {checks.all} all · {export.start} to Write · {export.close} closes"
        with DialogFrame(title, keys=keys):
            yield field_row("format", self._format)
            output = SearchInput(self._default_path, id="output", compact=True, max_length=MAX_PATH)
            yield field_row("output", output)
            yield self._filters
            yield StaticLines(self.report_lines, id="report")
            yield self.buttons()

    def on_mount(self) -> None:
        self.set_interval(PROGRESS_S, self._show_progress)

    def action_audit(self) -> None:
        self.action_start(is_audit=True)

    def action_start(self, *, is_audit: bool = False) -> None:
        if self._job is not None:
            return
        output = Path(os.path.expanduser(self.text("output")))  # noqa: PTH111 - any user
        names = [name for number, name in enumerate(FILTERS) if number in self._filters.chosen]
        self._job = ExportJob(self._ids, self._formats[self._format.index], Path.cwd() / output, names, self._query)
        self._is_audit = is_audit
        self._show_progress()
        start_worker(self, partial(self._write, self._job), group="export")

    def action_close(self) -> None:
        if self._job is None:
            self.leave()
        else:
            self._job.stop()

    def on_unmount(self) -> None:
        if self._job is not None:
            self._job.stop()

    @on(OptionStepper.Changed)
    def _format_changed(self) -> None:
        field = self.query_one("#output", Input)
        if Path(field.value).stem == STEM:  # not edited
            field.value = self._default_path

    @property
    def _default_path(self) -> str:
        return f"{STEM}{self._formats[self._format.index].suffix}"

    async def _write(self, job: ExportJob) -> None:
        try:
            if self._is_audit:
                audit = await self._exporter.audit(job)
                first, *others = audit.brief_lines()
                self.report((first, "good" if audit.n_trainable else "warn"), *((text, "plain") for text in others))
            else:
                manifest = await self._exporter.export(job)
                size = format_size(sum(file.bytes for file in manifest.files))
                written = f"✓ {pluralize(manifest.n_written, 'episode')} as {manifest.format_version}, {size}"
                left_out: list[Row] = [(f"{n:,} left out: {reason}", "warn") for reason, n in manifest.left_out.items()]
                self.report((f"{written}: {masked_line(str(job.path), MAX_PATH)}", "good"), *left_out)
        except RunnerError as exc:
            self.report((f"✗ {masked_rows(str(exc))}", "bad"))
        finally:
            self._job = None

    def _show_progress(self) -> None:
        if self._job is not None:
            verb = "reading" if self._is_audit else "writing"
            n_all = pluralize(len(self._ids), "episode")
            self.report((f"{verb} {self._job.n_done:,} of {n_all} …", "accent"))


# Tags and notes.

_TAG_HINT: Final[Row] = ("tags with spaces between; those that you delete are removed", "dim")


class TagDialog(Form[None]):
    """A form with tags and notes of episodes or of a ``step``, and a new note; it closes when a change is stored.

    ``on_change`` gets all tags and notes after each change.
    """

    SCOPE = "tags"
    AUTO_FOCUS = ""
    BUTTONS: ClassVar = {"save": "Save", "close": "Close"}
    n_report = 2
    _report = (_TAG_HINT,)
    _is_sending = False

    def __init__(
        self,
        session: Session,
        episode_ids: Sequence[str],
        title: str,
        notes: Sequence[Note],
        step: int | None,
        on_change: Callable[[Sequence[Note]], None],
    ) -> None:
        super().__init__()
        self._session, self._title, self._step = session, title, step
        self._on_change = on_change
        # a tag that is not shown as it is stored cannot be edited, and stays
        own = [note for note in notes if note.step == step]
        self._before = [each.text for each in own if each.kind == "tag" and sanitize_line(each.text, 100) == each.text]
        self._notes = [note for note in own if note.kind == "note"]
        self._note_ids = {id: new_ulid() for id in episode_ids}  # so that a repeated request adds no second note

    def compose(self) -> ComposeResult:
        removes = " · {tags.remove} deletes the note" if self._notes else ""
        keys = MOVES + " · {tags.save} to Save" + removes + " · {tags.close} closes"
        with DialogFrame(self._title, keys=keys):
            tags = " ".join([*self._before, ""]).lstrip()
            yield SearchInput(tags, placeholder="tags", id="words", compact=True, select_on_focus=False)
            yield SearchInput(placeholder="a new note", id="remark", compact=True, max_length=MAX_NOTE_CHARS)
            yield StaticLines(self.report_lines, id="report")
            notes = LineList(self._lines(), id="notes")
            notes.handles_enter = False
            yield notes
            yield self.buttons()

    def on_mount(self) -> None:
        self.set_focus(self.query_one("#words" if self._step is None else "#remark"))

    def action_save(self) -> None:
        after, note = split_tags(self.query_one("#words", Input).value), self.text("remark")
        if set(after) == set(self._before) and not note:
            self.leave()
            return
        add, remove = ([tag for tag in a if tag not in b] for a, b in ((after, self._before), (self._before, after)))
        edit = partial(AnnotateArgs, step=self._step, add=add, remove=remove, note=note or None)
        ids = self._note_ids.items()
        self._start([edit(episode_id=id, note_id=note_id if note else None) for id, note_id in ids], self._saved)

    def _saved(self) -> None:
        self.toast(f"saved: {self._title}")
        self.leave()

    def action_remove(self) -> None:
        notes = self.query_one("#notes", LineList)
        if self.focused is notes and notes.cursor < len(self._notes):
            removed = self._notes[notes.cursor]
            change = AnnotateArgs(episode_id=next(iter(self._note_ids)), step=self._step, note_id=removed.id)
            self._start([change], partial(self._show_removed, removed))

    def _show_removed(self, note: Note) -> None:
        self._notes.remove(note)
        self.query_one("#notes", LineList).show(self._lines())

    def _start(self, changes: Sequence[AnnotateArgs], on_stored: Callable[[], None]) -> None:
        if not self._is_sending:
            self._is_sending = True
            start_worker(self, partial(self._send, changes, on_stored), group="tags")

    async def _send(self, changes: Sequence[AnnotateArgs], on_stored: Callable[[], None]) -> None:
        try:
            for change in changes:
                self._on_change(await annotate(self._session, change))
        except ControlRequestError as exc:
            self.report((f"✗ {masked_rows(exc.text)}", "bad"))
        else:
            self.report(_TAG_HINT)
            on_stored()
        finally:
            self._is_sending = False

    def _lines(self) -> FixedLines:
        return FixedLines([note_line(note) for note in self._notes])


def edit_tags(
    screen: ConsoleScreen[Any],
    session: Session,
    chosen: Sequence[ListEntry | None],
    step: int | None = None,
    on_change: Callable[[Sequence[Note]], None] = lambda notes: None,
) -> None:
    """Open the form of tags for a step or episodes, empty for several; ``on_change`` gets all after each change."""
    entries = [each for each in chosen if each is not None and not isinstance(each, UnreadableFile)]
    if not NODE.is_met(session):
        screen.toast(NODE.reason(session), failed=True)
    elif entries:
        ids, first = [entry.episode_id for entry in entries], entries[0]
        where = f"{first.env} task {format_exact(first.task_index)}" if len(ids) == 1 else f"{len(ids):,} episodes"
        title = f"Tags and notes of {where if step is None else f'step {step:,} of {where}'}"

        async def open_dialog() -> None:
            notes = await load_notes(session, ids[0]) if len(ids) == 1 else []
            if screen.is_current:
                screen.app.push_screen(TagDialog(session, ids, title, notes, step, on_change))

        start_worker(screen, open_dialog, group="tags", exclusive=True)
