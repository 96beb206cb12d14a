"""Machine: nodes, model servers, environment servers, workers, broker, and their problems; and Fleet: all nodes."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from agentgym_tui.commands import keymap_of
from agentgym_tui.presenters.cells import LIST_MARGIN, Line
from agentgym_tui.presenters.fleet import FleetRow, fleet_heading, fleet_listing, fleet_rows, node_detail
from agentgym_tui.presenters.machine import MACHINE_COLUMNS, MachineRows, MachineView, machine_heading
from agentgym_tui.screens.base import ScreenContext, SessionScreen
from agentgym_tui.screens.list_screen import ListScreen, listed
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, StaticLines, Table


class MachineScreen(SessionScreen):
    """A list of what the episodes depend on, with the trend of each value, its problems and the next steps."""

    SCOPE = "machine"
    AUTO_FOCUS = "#machine"

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        self._drawn = (-1, -1, "")  # version of the store, width, and first node
        self._rows: MachineRows | None = None
        self._table = Table(MACHINE_COLUMNS, id="machine")

    def compose(self) -> ComposeResult:
        yield StaticLines(self.status_lines, id="status")
        yield StaticLines(self._heading, id="summary")
        yield self._table
        yield KeyBar(self.SCOPE, self.session)

    def draw(self, store: RunStore) -> None:
        width = self.size.width - LIST_MARGIN
        if (drawn := (store.version, width, store.marked_node)) == self._drawn:
            return
        is_other = self._drawn[2] != store.marked_node
        self._drawn = drawn
        self._rows = MachineRows(MachineView(store, keymap_of(self.app).key, self.session.read_only), width)
        self._table.show(self._rows)
        if is_other:
            self._table.move_to(0)
        self.show_lines("summary", "status")

    def on_resize(self) -> None:
        self.draw(self.session.store)

    def selected_env(self) -> str:
        item = None if self._rows is None else self._rows.item(self._table.cursor)
        return "" if item is None else item.env

    def action_problem(self, by: int) -> None:
        if self._rows is None:
            return
        if (place := self._rows.next_problem(self._table.cursor, by)) is None:
            self.toast("nothing is wrong")
        else:
            self._table.move_to(place)

    @on(LineList.Selected, "#machine")
    def _line_selected(self) -> None:
        if self.accepts_keys and (env := self.selected_env()):
            self.post_message(self.EpisodesRequested(env))

    def _heading(self, width: int) -> list[Line]:
        return [] if self._rows is None else [machine_heading(self._rows.sections, width)]


class FleetScreen(ListScreen[FleetRow]):
    """All nodes of the bus: what each plays and what waits, and whether it is well or lost."""

    SCOPE = "fleet"
    FILTER_HINT = "words and fields, such as: gpu-box status:lost,idle profile:lab problems>0"
    NOTHING = "No node matches the filter.", "No node has been seen yet."

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context, "fleet", *listed(fleet_listing(), id="fleet"))

    def draw(self, store: RunStore) -> None:
        self.rows.set_rows(fleet_rows(store))
        self.show_rows()

    def action_open(self) -> None:
        if (row := self.selected) is not None:
            self.session.store.marked_node = row.node.name
            self.call_later(self.app.run_action, "show_screen('machine')")

    def heading_lines(self, width: int) -> list[Line]:
        return [fleet_heading(self.rows, keymap_of(self.app).key("fleet.clear"), width)]

    def detail_lines(self, width: int) -> list[Line]:
        return [] if self.selected is None else node_detail(self.selected, width)
