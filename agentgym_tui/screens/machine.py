"""The Machine screen: nodes, model servers, environment servers, workers and broker, and what is wrong with them."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from agentgym_tui.commands import keymap_of
from agentgym_tui.presenters.cells import LIST_MARGIN, Line
from agentgym_tui.presenters.machine import MACHINE_COLUMNS, MachineRows, MachineView, machine_heading
from agentgym_tui.screens.base import ScreenContext, SessionScreen
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.key_bar import KeyBar
from agentgym_tui.widgets.lists import LineList, StaticLines, Table


class MachineScreen(SessionScreen):
    """A list of what the episodes depend on, with the trend of each value, its problems and the next steps."""

    SCOPE = "machine"
    AUTO_FOCUS = "#machine"

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        self._drawn = (-1, -1)  # version of the store, and width
        self._rows: MachineRows | None = None
        self._first = ""  # the node that was chosen last
        self._table = Table(MACHINE_COLUMNS, id="machine")

    def compose(self) -> ComposeResult:
        yield StaticLines(self.status_lines, id="status")
        yield StaticLines(self._heading, id="summary")
        yield self._table
        yield KeyBar(self.SCOPE, self.session)

    def draw(self, store: RunStore) -> None:
        width = self.size.width - LIST_MARGIN
        if self._drawn == (store.version, width):
            return
        self._drawn = store.version, width
        view = MachineView(store, keymap_of(self.app).key, self.session.read_only, first=self._first)
        self._rows = MachineRows(view, width)
        self._table.show(self._rows)
        self.show_lines("summary", "status")

    def show_node(self, node: str) -> None:
        """Show the machine of a node above the others."""
        self._first, self._drawn = node, (-1, -1)
        self.draw(self.session.store)
        self._table.move_to(0)

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
