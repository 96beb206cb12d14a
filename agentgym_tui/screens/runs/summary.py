"""The summary of a run that has ended: a table from which the episodes behind each row are one key away."""

from __future__ import annotations

from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.message import Message

from agentgym_tui.commands.registry import RESULTS
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.run_rows import run_detail
from agentgym_tui.presenters.run_summary import SUMMARY_COLUMNS, SummaryRows, summary_heading
from agentgym_tui.presenters.status_line import status_line
from agentgym_tui.screens.base import ResultScreen
from agentgym_tui.sessions.session import Session
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.run_tree import RunRow
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines
from agentgym_tui.widgets.table import Table


class RunSummaryScreen(ResultScreen[None]):
    """Environment, agent and model of each batch of a run, with its results so far.

    Args:
        session: provides the run.
        run_id: id of the battery or batch.
    """

    SCOPE = "summary"
    REQUIRED_WIDGETS = "#summary, #detail, #status, Table"
    AUTO_FOCUS = "#batches"

    @dataclass
    class ResultsRequested(Message):
        """The user has requested the results of a battery or batch."""

        run_id: str

    def __init__(self, session: Session, run_id: str) -> None:
        super().__init__()
        self._session, self._run_id = session, run_id
        self._rows = SummaryRows(session.store, run_id)
        self._table = self.open_from(Table(SUMMARY_COLUMNS, self._rows, id="batches"))

    def compose(self) -> ComposeResult:
        yield StaticLines(self._heading, id="summary")
        yield self._table
        yield StaticLines(self._detail, id="detail")
        yield StaticLines(self._status_lines, id="status")
        yield KeyBar(self.SCOPE, self._session)

    def draw(self, store: RunStore) -> None:
        if self.is_ready:
            self._rows.update()
            self._table.refresh_lines()
            self.show_lines("summary", "detail", "status")

    def selected_run(self) -> str:
        return self._run_id

    def selected_env(self) -> str:
        batch = self._rows.get(self._table.key)
        return "" if batch is None else batch.env

    def action_open(self) -> None:
        if (batch := self._rows.get(self._table.key)) is not None:
            self.post_message(self.EpisodesRequested(batch.batch_id))

    def action_results(self) -> None:
        """Show the run on the Results screen."""
        if RESULTS.is_met(self._session):
            self.post_message(self.ResultsRequested(self._run_id))
        else:
            self.toast(RESULTS.reason(self._session))

    def action_back(self) -> None:
        """Go back to the previous screen."""
        self.leave()

    @on(LineList.CursorMoved, "#batches")
    def _cursor_moved(self) -> None:
        if self.is_ready:
            self.show_lines("detail")

    def _heading(self, width: int) -> list[Line]:
        return [summary_heading(self._rows.batches, self._session.store, width)]

    def _detail(self, width: int) -> list[Line]:
        batch = self._rows.get(self._table.key)
        return [] if batch is None else [run_detail(RunRow("", 0, [batch]), self._session.store, width)]

    def _status_lines(self, width: int) -> list[Line]:
        return [status_line(self._session.store, self._session.title, width)]
