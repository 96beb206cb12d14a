"""Dialogs before the console, the node or one of its environment servers is left or stopped while it is in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.presenters.text_width import cut_start
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.dialogs.confirm import ConfirmDialog
from agentgym_tui.sessions.run_commands import reachable_batches
from agentgym_tui.state.nodes import NodeInfo, ProfileDifference, VariableChange
from agentgym_tui.state.run_store import RunStore

_PATH_WIDTH: Final = 68
"""Columns for a path; the width of the dialog without its frame and an indent."""
_MAX_BATCHES: Final = 4
_MAX_VARIABLES: Final = 4
_VARIABLE_CHANGES: Final[dict[VariableChange, str]] = {
    "changed": " has another value than when the node started",
    "set": " is set now; it was not when the node started",
    "missing": " is not set here; a restart from here loses it",
}


class _NodeDialog(ConfirmDialog):
    """A dialog that shows what runs on the node, and keeps showing it while it changes."""

    def __init__(self, store: RunStore, title: str, *, default: str) -> None:
        super().__init__(title, default=default)
        self._store = store

    def question(self) -> Sequence[Line]:
        return unfinished_lines(self._store)

    def draw(self, store: RunStore) -> None:
        if self.query("#question"):
            self.ask()


class QuitDialog(_NodeDialog):
    """A dialog for quitting while episodes run; its result is ``stop``, ``leave`` or ``stay``."""

    SCOPE = "quit"

    def __init__(self, store: RunStore) -> None:
        super().__init__(store, "Leave the console?", default="leave")


class StopNodeDialog(_NodeDialog):
    """A dialog for stopping a node that has unfinished batches; its result is ``now``, ``drain`` or ``nothing``."""

    SCOPE = "stop_node"

    def __init__(self, store: RunStore) -> None:
        super().__init__(store, "Stop the node?", default="nothing")


class RestartNodeDialog(_NodeDialog):
    """A dialog for restarting the node; its result is ``restart`` or ``nothing``.

    Args:
        store: the run state.
        difference: why the console offers the restart; None if the user requested it. The dialog closes by itself when
            the profiles no longer differ.
    """

    SCOPE = "restart_node"

    def __init__(self, store: RunStore, difference: ProfileDifference | None = None) -> None:
        super().__init__(store, "Restart the node?", default="nothing")
        self._difference = difference

    def question(self) -> Sequence[Line]:
        lines = [*(difference_lines(self._difference) if self._difference else ()), *super().question()]
        if any(batch.status == "paused" for batch in reachable_batches(self._store)):
            lines.append([Cell("A batch is paused: resume it and the others on Runs after the restart.", "warn")])
        return lines

    def draw(self, store: RunStore) -> None:
        if self._difference is not None and store.profile_difference is None:
            self.leave("nothing")
        else:
            super().draw(store)


class SendHistoryDialog(ConfirmDialog):
    """A dialog for sending the earlier events of a node to its broker; its result is ``send`` or ``nothing``."""

    SCOPE = "send_history"

    def __init__(self, node: NodeInfo) -> None:
        super().__init__("Send the earlier events?", default="nothing")
        self._node = node

    def question(self) -> Sequence[Line]:
        counted = Cell(pluralize(self._node.n_held, "event"), "head")
        return [
            [counted, Cell(" ended before the node first used this broker:")],
            [Cell("  "), Cell(cut_start(masked_line(self._node.egress, 4_096), _PATH_WIDTH))],
        ]


class StopServerDialog(_NodeDialog):
    """A dialog for stopping an environment server while episodes use it; its result is ``stop`` or ``nothing``.

    Args:
        store: the run state.
        env: name of the environment.
    """

    SCOPE = "stop_server"

    def __init__(self, store: RunStore, env: str) -> None:
        super().__init__(store, "Stop the server?", default="nothing")
        self._env = env

    def question(self) -> Sequence[Line]:
        n_running = len(running_in(self._store, self._env))
        env = Cell(self._env, "head")
        return [
            [env, Cell(f": {pluralize(n_running, 'episode')} running")],
            [Cell("A batch waits for its server a while, then it is interrupted.", "dim")],
        ]


def unfinished_lines(store: RunStore) -> list[Line]:
    """Return lines that describe the running and the waiting batches."""
    batches = reachable_batches(store)
    if not batches:
        return [[Cell("Nothing is running.")]]
    n_running = sum(episode.is_active for episode in store.running_episodes())
    n_left = sum(max(batch.n_planned - batch.n_done, 0) for batch in batches)
    lines: list[Line] = [[Cell(f"{pluralize(n_running, 'episode')} running, {n_left} remaining")]]
    for batch in batches[:_MAX_BATCHES]:
        done = Cell(f"  {batch.n_done}/{batch.n_planned} ", "accent")
        lines.append([done, Cell(batch.env), Cell(f" {batch.status}", "dim")])
    if len(batches) > _MAX_BATCHES:
        lines.append([Cell(f"  and {len(batches) - _MAX_BATCHES} more", "dim")])
    return lines


def running_in(store: RunStore, env: str) -> list[str]:
    """Return the ids of the episodes that run in an environment, on nodes that are not lost."""
    return [each.episode_id for each in store.running_episodes() if each.is_active and each.env == env]


def difference_lines(difference: ProfileDifference) -> list[Line]:
    """Describe how the profile that the node has loaded differs from the one that it would load now."""
    (running_id, running_path), (wanted_id, wanted_path) = difference.running, difference.wanted
    running, wanted = running_id or "?", wanted_id or "?"
    if not difference.is_other:
        first = f"The profile {running} has changed since the node loaded it:"
        profile = [[Cell(first, "warn")], _path_line(running_path)] if difference.is_changed else []
        return [*profile, *(_variable_line(*each) for each in difference.variables[:_MAX_VARIABLES]), []]
    return [
        [Cell(f"The node runs the profile {running}:", "warn")],
        _path_line(running_path),
        [Cell(f"This console uses the profile {wanted}:", "warn")],
        _path_line(wanted_path),
        [],
    ]


def _variable_line(name: str, change: VariableChange) -> Line:
    return [Cell(f"{name}{_VARIABLE_CHANGES[change]}", "warn")]


def _path_line(path: str) -> Line:
    return [Cell("  "), Cell(cut_start(masked_line(path, 4_096), _PATH_WIDTH), "dim")]
