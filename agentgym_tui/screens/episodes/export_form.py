"""The form that writes chosen episodes in a format of trainers or other tools."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import format_size, pluralize
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import masked_line, masked_rows
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.curation import Exporter, ExportJob
from agentgym_tui.widgets.form_controls import CheckList, OptionStepper
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.static_lines import StaticLines
from runner.errors import RunnerError

if TYPE_CHECKING:
    from runner.formats.export import Manifest
    from runner.formats.format import Format
    from runner.formats.training import Audit

FILTERS: Final = {
    "first_success": "only the first success of each task",
    "drop_flat": "no tasks whose attempts all have the same reward",
    "balanced": "the same number per environment",
}
"""Filters of an export, by the name of their field."""
N_REPORT: Final = 8
"""Rows for the progress, the report, or what went wrong."""
PROGRESS_S: Final = 0.2
MAX_PATH: Final = 1_000
STEM: Final = "episodes"


class ExportForm(DialogScreen[None]):
    """A form with format, output and filters; it shows progress, and what was written and left out.

    Args:
        exporter: writes the episodes.
        episode_ids: the chosen episodes.
        formats: the formats that can be written.
        query: the query of the list, for the manifest; untrusted text.
    """

    SCOPE = "export"
    AUTO_FOCUS = "#format"

    def __init__(self, exporter: Exporter, episode_ids: Sequence[str], formats: Sequence[Format], query: str) -> None:
        super().__init__()
        self._exporter, self._ids, self._formats, self._query = exporter, list(episode_ids), formats, query
        self._format = OptionStepper([each.title for each in formats], id="format")
        self._filters = CheckList([*FILTERS.values()], set(), id="filters")
        self._filters.handles_enter = False  # so that it starts the export
        self._job: ExportJob | None = None
        self._manifest: Manifest | None = None
        self._audit: Audit | None = None
        self._is_audit = False
        self._failure = ""

    def compose(self) -> ComposeResult:
        title = f"Export {pluralize(len(self._ids), 'episode')}"
        with DialogFrame(title, keys="{export.start} writes · {export.audit} audits · {export.close} stops or closes"):
            with Horizontal(classes="row"):
                yield StaticLines(lambda _: [[Cell("format", "dim")]], classes="name")
                yield self._format
            with Horizontal(classes="row"):
                yield StaticLines(lambda _: [[Cell("output", "dim")]], classes="name")
                yield SearchInput(self._default_path, id="output", compact=True, max_length=MAX_PATH)
            yield self._filters
            yield StaticLines(self._report, id="report")

    def on_mount(self) -> None:
        """Show the progress while episodes are written."""
        self.set_interval(PROGRESS_S, self._show_progress)

    def action_start(self) -> None:
        """Write the episodes in the background."""
        self._start(is_audit=False)

    def action_audit(self) -> None:
        """Read the episodes in the background, and show what a trainer could use of them."""
        self._start(is_audit=True)

    def _start(self, *, is_audit: bool) -> None:
        if self._job is not None:
            return
        output = Path(os.path.expanduser(self.query_one("#output", Input).value.strip()))  # noqa: PTH111 - any user
        names = [name for number, name in enumerate(FILTERS) if number in self._filters.chosen]
        self._job = ExportJob(self._ids, self._formats[self._format.index], Path.cwd() / output, names, self._query)
        self._manifest, self._audit, self._failure, self._is_audit = None, None, "", is_audit
        start_worker(self, partial(self._write, self._job), group="export")

    def action_close(self) -> None:
        if self._job is None:
            self.leave()
        else:
            self._job.stop()

    def on_unmount(self) -> None:
        """Stop writing when the form goes."""
        if self._job is not None:
            self._job.stop()

    @on(Input.Submitted)
    def _submitted(self) -> None:
        if self.accepts_keys:
            self.action_start()

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
                self._audit = await self._exporter.audit(job)
            else:
                self._manifest = await self._exporter.export(job)
        except RunnerError as exc:
            self._failure = str(exc)
        finally:
            self._job = None
            self.show_lines("report")

    def _show_progress(self) -> None:
        if self._job is not None:
            self.show_lines("report")

    def _report(self, width: int) -> list[Line]:
        if self._job is not None:
            verb = "reading" if self._is_audit else "writing"
            done = f"{verb} {self._job.n_done:,} of {pluralize(len(self._ids), 'episode')} …"
            return [[Cell(done, "accent")]]
        if self._failure:
            rows = wrap_text(f"✗ {masked_rows(self._failure)}", width, N_REPORT)
            return [[Cell(row, "bad")] for row in rows]
        if self._audit is not None:
            return _audit_lines(self._audit)
        return [] if self._manifest is None else _manifest_lines(self._manifest, self._output_path(), width)

    def _output_path(self) -> str:
        return masked_line(self.query_one("#output", Input).value, MAX_PATH)


def _audit_lines(audit: Audit) -> list[Line]:
    first, *others = list(audit.brief_lines())
    return [[Cell(first, "good" if audit.n_trainable else "warn")], *([Cell(text)] for text in others)]


def _manifest_lines(manifest: Manifest, path: str, width: int) -> list[Line]:
    size = format_size(sum(file.bytes for file in manifest.files))
    written = f"✓ {path}: {pluralize(manifest.n_written, 'episode')} as {manifest.format_version}, {size}"
    left_out = [f"{n:,} left out: {reason}" for reason, n in manifest.left_out.items()]
    lines: list[Line] = [[Cell(row, "good")] for row in wrap_text(written, width, 2)]
    return [*lines, *([Cell(text, "warn")] for text in left_out)][:N_REPORT]
