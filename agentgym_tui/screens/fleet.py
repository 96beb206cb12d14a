"""The Fleet screen: all nodes of the bus, what each plays and what waits, and whether it is well or lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.message import Message

from agentgym_tui.commands import keymap_of
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.fleet import FleetRow, fleet_heading, fleet_listing, fleet_rows, node_detail
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.list_screen import ListScreen, listed
from agentgym_tui.state.run_store import RunStore


class FleetScreen(ListScreen[FleetRow]):
    SCOPE = "fleet"
    FILTER_HINT = "words and fields, such as: gpu-box status:lost,idle profile:lab problems>0"
    NOTHING = "No node matches the filter.", "No node has been seen yet."

    @dataclass
    class MachineRequested(Message):
        node: str

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context, "fleet", *listed(fleet_listing(), id="fleet"))
        self._version = -1

    def draw(self, store: RunStore) -> None:
        if self._version != store.version:
            self._version = store.version
            self.rows.set_rows(fleet_rows(store))
            self.show_rows()

    def action_open(self) -> None:
        if (row := self.selected) is not None:
            self.post_message(self.MachineRequested(row.node.name))

    def heading_lines(self, width: int) -> Sequence[Line]:
        return [fleet_heading(self.rows, keymap_of(self.app).key("fleet.clear"), width)]

    def detail_lines(self, width: int) -> Sequence[Line]:
        return node_detail(self.selected, width)
