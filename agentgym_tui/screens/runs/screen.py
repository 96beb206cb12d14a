"""The Runs screen: batteries, batches and episodes that run, wait or ended lately, and their control."""

from __future__ import annotations

from functools import partial
from typing import Literal

from textual import on
from textual.app import ComposeResult

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.presenters.run_rows import RUN_COLUMNS, RunRows, run_detail, runs_summary
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.control import ControlScreen, needs_node
from agentgym_tui.screens.filtered_screen import FilteredScreen
from agentgym_tui.sessions.run_commands import can_pause, unfinished_batches
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.query import FilteredList
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.run_tree import RunRow, RunTree, waiting_runs
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines
from agentgym_tui.widgets.table import Table


class RunsScreen(FilteredScreen, ControlScreen):
    """A tree of batteries, batches and episodes, and commands for its lines."""

    SCOPE = "runs"
    REQUIRED_WIDGETS = "#summary, #detail, #status, Table"
    AUTO_FOCUS = "#runs"
    FILTER_HINT = "words and fields, such as: maze status:running,queued agent:react errors>0"
    list_key = "runs"

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        self._tree = RunTree()
        self._tree.batches.search(self.kept_filter)
        self._version = -1
        self._table = self.open_from(Table(RUN_COLUMNS, RunRows(self._tree, self.session.store), id="runs"))

    def compose(self) -> ComposeResult:
        yield StaticLines(self.heading_lines, id="summary")
        yield from self.make_filter(self.kept_filter)
        yield self._table
        yield StaticLines(self._detail, id="detail")
        yield StaticLines(self.status_lines, id="status")
        yield KeyBar(self.SCOPE, self.session)

    def draw(self, store: RunStore) -> None:
        super().draw(store)
        if self.is_ready and self._version != store.version:
            self._version = store.version
            self._show()

    @property
    def searchable(self) -> FilteredList[BatchRun]:
        return self._tree.batches

    def show_found(self) -> None:
        self._show()
        self._table.move_to(0)

    def draw_time_left(self) -> None:
        self._table.refresh_lines()

    def selected_run(self) -> str:
        row = self._row
        return "" if row is None else row.run_id

    def selected_env(self) -> str:
        row = self._row
        return "" if row is None or row.battery_id is not None else row.batches[0].env

    def action_open(self) -> None:
        if (row := self._row) is None:
            return
        if row.episode is not None:
            self.post_message(self.OpenEpisode(row.episode.episode_id))
        elif row.battery_id is None and row.batches[0].n_done and not self.session.store.episodes_of(row.run_id):
            self.post_message(self.EpisodesRequested(row.batches[0].batch_id))
        else:
            self._tree.toggle(row.key)
            self._show()
            place = self._tree.place_of(row.key) or 0
            self._table.reveal(place, self._tree.last_place_below(place))

    @needs_node
    def action_cancel(self) -> None:
        """Cancel the selected battery, batch or running episode."""
        row = self._row
        if row is not None and row.episode is not None:
            self.run_command(partial(self.commands.control.command, "cancel", episode_id=row.episode.episode_id))
        elif row is not None:
            self.cancel(row.batches)

    @needs_node
    def action_cancel_all(self) -> None:
        """Cancel everything that runs or waits, after a question."""
        from agentgym_tui.screens.dialogs.confirm import CancelAllDialog

        store = self.session.store
        n_unfinished = max(len(unfinished_batches(store)), store.batch_registry.n_waiting)
        if not n_unfinished:
            self.toast("nothing runs or waits")
            return

        def dialog_closed(answer: str | None) -> None:
            if answer == "all":
                self.run_command(partial(self._send_all, "cancel"))

        self.app.push_screen(CancelAllDialog(n_unfinished), dialog_closed)

    @needs_node
    def action_pause(self) -> None:
        """Pause the selected run or episode, running or waiting; resume it if it is paused or was interrupted."""
        row = self._row
        if row is None:
            return
        if row.episode is not None:
            name: Literal["pause", "resume"] = "resume" if row.episode.paused else "pause"
            self.run_command(partial(self.commands.control.command, name, episode_id=row.episode.episode_id))
        else:
            self.pause_or_resume(row.run_id, row.batches)

    @needs_node
    def action_pause_all(self) -> None:
        """Pause everything that runs or waits at the node; if all of it is paused, resume it."""
        batches = unfinished_batches(self.session.store)
        if not batches:
            self.toast("nothing runs or waits")
        else:
            self.run_command(partial(self._send_all, "pause" if any(map(can_pause, batches)) else "resume"))

    @needs_node
    def action_move(self, by: int) -> None:
        """Move the selected waiting run by a number of places in the queue; a battery moves as a whole."""
        row, waiting = self._row, waiting_runs(self.session.store)
        run_id = "" if row is None else row.batches[0].battery_id or row.batches[0].batch_id
        if run_id not in waiting:
            self.toast("only what waits can be moved")
            return
        others = [each for each in waiting if each != run_id]
        place = max(0, min(waiting.index(run_id) + by, len(others)))
        n_before = sum(
            batch.status == "queued" and (batch.battery_id or batch.batch_id) in others[:place]
            for batch in self.session.store.batches.values()
        )
        self.run_command(partial(self.commands.control.move, run_id, n_before))

    @needs_node
    def action_replay(self, only: Literal["errors", "all"]) -> None:
        """Play the selected run again, or only what ended with an error."""
        if (row := self._row) is not None:
            self.run_command(partial(self._replay, row, only))

    async def _replay(self, row: RunRow, only: Literal["errors", "all"]) -> None:
        n_waiting = await self.commands.replay(row.run_id, only)
        what = "what ended with an error" if only == "errors" else "all episodes"
        self.toast(f"plays again: {what}, {n_waiting:,}")

    async def _send_all(self, command: Literal["cancel", "pause", "resume"]) -> None:
        store = self.session.store
        n_waiting = store.batch_registry.n_waiting
        is_running = any(batch.status == "running" for batch in store.batches.values())
        await self.commands.command_all(command)
        effects = {"cancel": "cancelled", "resume": "resumed", "pause": "paused"}
        later = " after this step" if command == "pause" and is_running else ""
        parts = [f"all {effects[command]}", later]
        if n_waiting and command != "cancel":
            parts += ["; ", pluralize(n_waiting, "batch", "batches"), " waiting"]
        self.toast("".join(parts))

    @on(LineList.CursorMoved, "#runs")
    def _cursor_moved(self) -> None:
        if self.is_ready:
            self.show_lines("detail")

    @property
    def _row(self) -> RunRow | None:
        return self._tree.get(self._table.key)

    def _show(self) -> None:
        self._tree.update(self.session.store)
        self._table.refresh_lines()
        self.show_lines("summary", "detail", "status")

    def heading_lines(self, width: int) -> list[Line]:
        return [runs_summary(self.session.store, self._tree, keymap_of(self.app).key("runs.clear"), width)]

    def _detail(self, width: int) -> list[Line]:
        if not self._tree.rows:
            text = "No run matches the filter." if self._tree.batches.query else "Nothing has run yet."
            return [[Cell(text, "dim")]]
        return [run_detail(self._row, self.session.store, width)]
