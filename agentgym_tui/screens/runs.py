"""Runs: what runs, waits or ended lately in a tree of batteries, batches and episodes, its control, and summaries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from textual.message import Message

from agentgym_tui.commands import RESULTS, keymap_of
from agentgym_tui.presenters import run_rows
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.screens.base import RunControl, ScreenContext, needs_node
from agentgym_tui.screens.list_screen import ListScreen, listed
from agentgym_tui.sessions.run_commands import can_pause, unfinished_batches
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.run_tree import RunRow, RunTree, waiting_runs
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import Table


class RunsScreen(ListScreen[BatchRun]):
    SCOPE = "runs"
    FILTER_HINT = "words and fields, such as: maze status:running,queued agent:react errors>0"
    NOTHING = "No run matches the filter.", "Nothing has run yet."

    def __init__(self, context: ScreenContext) -> None:
        self._tree = RunTree()
        table = Table(run_rows.RUN_COLUMNS, run_rows.RunRows(self._tree, context.session.store), id="runs")
        super().__init__(context, "runs", self._tree.batches, table)
        self.control = RunControl(self, context.commands)
        self._version = -1

    def on_mount(self) -> None:
        self.control.draw_time_left(self.table.refresh_lines)

    def draw(self, store: RunStore) -> None:
        if self._version != store.version:
            self._version = store.version
            self.show_rows()

    def show_rows(self) -> None:
        self._tree.update(self.session.store)
        super().show_rows()
        self._show_keys()

    def cursor_moved(self) -> None:
        super().cursor_moved()
        self._show_keys()

    def _show_keys(self) -> None:
        self.query_one(KeyBar).hide("runs.replay" if self._is_foreign else "")

    @property
    def _is_foreign(self) -> bool:
        """Whether the node does not know the selected run, as one that the command line plays."""
        row, registry = self._row, self.session.store.batch_registry
        return row is not None and not all(map(registry.is_listed, row.batches))

    def selected_run(self) -> str:
        return "" if self._row is None else self._row.run_id

    def selected_env(self) -> str:
        row = self._row
        return "" if row is None or row.battery_id is not None else row.batches[0].env

    def action_open(self) -> None:
        if (row := self._row) is None:
            return
        if row.episode is not None:
            self.post_message(self.OpenEpisode(row.episode.episode_id))
        elif row.battery_id is None and not self.session.store.episodes_of(row.run_id):
            if row.batches[0].n_done:
                self.post_message(self.EpisodesRequested(row.batches[0].batch_id))
            else:
                self.toast("this run has no episode yet")
        else:
            self._tree.toggle(row.key)
            self.show_rows()
            place = self._tree.place_of(row.key) or 0
            self.table.reveal(place, self._tree.last_place_below(place))

    @needs_node
    def action_cancel(self) -> None:
        if (row := self._row) is not None and row.episode is not None:
            self._command_episode("cancel", row.episode.episode_id)
        elif row is not None:
            self.control.cancel(row.batches)

    def _command_episode(self, command: Literal["cancel", "pause", "resume"], episode_id: str) -> None:
        self.control.send(partial(self.control.commands.control.command, command, episode_id=episode_id))

    @needs_node
    def action_cancel_all(self) -> None:
        from agentgym_tui.screens.dialogs.texts import cancel_all_dialog

        store, own = self.session.store, self.session.store.nodes.get(self.session.node)
        n_waiting = store.batch_registry.n_waiting if own is None else own.n_waiting
        n_unfinished = max(len(unfinished_batches(store, self.session.node)), n_waiting)
        if not n_unfinished:
            self.toast("nothing runs or waits")
            return

        def dialog_closed(answer: str | None) -> None:
            if answer == "all":
                self.control.send(partial(self._send_all, "cancel"))

        self.app.push_screen(cancel_all_dialog(n_unfinished, self.session.node), dialog_closed)

    @needs_node
    def action_pause(self) -> None:
        """Pause the selected run or episode, running or waiting; resume it if it is paused or was interrupted."""
        if (row := self._row) is not None and row.episode is not None:
            self._command_episode("resume" if row.episode.paused else "pause", row.episode.episode_id)
        elif row is not None:
            self.control.pause_or_resume(row.run_id, row.batches)

    @needs_node
    def action_pause_all(self) -> None:
        """Pause everything that runs or waits at the node; if all of it is paused, resume it."""
        batches = unfinished_batches(self.session.store, self.session.node)
        if not batches:
            self.toast("nothing runs or waits")
        else:
            self.control.send(partial(self._send_all, "pause" if any(map(can_pause, batches)) else "resume"))

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
        self.control.send(partial(self.control.commands.control.move, run_id, n_before))

    @needs_node
    def action_replay(self) -> None:
        """Play the selected run again; where episodes ended with an error, ask whether only those."""
        from agentgym_tui.screens.dialogs.texts import again_dialog

        if (row := self._row) is None:
            return
        if self._is_foreign:
            reason = "the node has not started this run, as the command line did, and cannot play it again"
            self.toast(f"{reason}; {keymap_of(self.app).key('run.form')} starts one like it", failed=True)
            return
        n_errors, n = sum(b.n_errors for b in row.batches), sum(b.n_done for b in row.batches)

        def dialog_closed(answer: str | None) -> None:
            if answer in ("all", "errors"):
                self.control.send(partial(self._replay, row.run_id, "all" if answer == "all" else "errors"))

        if n_errors:
            self.app.push_screen(again_dialog(row.batches[0].env, n_errors, n), dialog_closed)
        else:
            dialog_closed("all")

    async def _replay(self, run_id: str, only: Literal["errors", "all"]) -> None:
        self.toast(await self.control.commands.replay(run_id, only))

    async def _send_all(self, command: Literal["cancel", "pause", "resume"]) -> None:
        store = self.session.store
        n_waiting = store.batch_registry.n_waiting
        is_running = any(batch.status == "running" for batch in store.batches.values())
        await self.control.commands.command_all(command)
        effect = {"cancel": "cancelled", "resume": "resumed", "pause": "paused"}[command]
        later = " after this step" if command == "pause" and is_running else ""
        waiting = f"; {pluralize(n_waiting, 'batch', 'batches')} waiting" if n_waiting and command != "cancel" else ""
        self.toast(f"all {effect}{later}{waiting}")

    @property
    def _row(self) -> RunRow | None:
        return self._tree.get(self.table.key)

    def heading_lines(self, width: int) -> list[Line]:
        return [run_rows.runs_summary(self.session.store, self._tree, keymap_of(self.app).key("runs.clear"), width)]

    def detail_lines(self, width: int) -> list[Line]:
        return [run_rows.run_detail(self._row, self.session.store, width)]


class RunSummaryScreen(ListScreen[BatchRun]):
    """Environment, agent and model of each batch of a run, a battery or batch, with its results so far."""

    SCOPE = "summary"

    @dataclass
    class ResultsRequested(Message):
        run_id: str

    def __init__(self, context: ScreenContext, run_id: str) -> None:
        listing = run_rows.summary_listing(context.session.store)
        super().__init__(context, "summary", *listed(listing, id="batches", can_sort=False))
        self._run_id = run_id

    def draw(self, store: RunStore) -> None:
        self.rows.set_rows(store.run(self._run_id))
        self.show_rows()

    def selected_run(self) -> str:
        return self._run_id

    def action_open(self) -> None:
        if (batch := self.selected) is not None:
            self.post_message(self.EpisodesRequested(batch.batch_id))

    def action_results(self) -> None:
        if RESULTS.is_met(self.session):
            self.post_message(self.ResultsRequested(self._run_id))
        else:
            self.toast(RESULTS.reason(self.session))

    def heading_lines(self, width: int) -> list[Line]:
        return [run_rows.summary_heading(self.rows.all_rows, self.session.store, width)]

    def detail_lines(self, width: int) -> list[Line]:
        batch = self.selected
        return [] if batch is None else [run_rows.run_detail(RunRow("", 0, [batch]), self.session.store, width)]
