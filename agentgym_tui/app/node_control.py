"""An app whose keys start, stop and restart the node, and which offers a restart when the node's profile differs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path, PurePath

from agentgym_tui.app.run_starter import RunStartingApp
from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.commands.registry import HELD
from agentgym_tui.config.settings import Settings
from agentgym_tui.presenters.machine_sections import held_text
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.safe_text import masked_line
from agentgym_tui.services.timers import start_worker
from agentgym_tui.services.toast import announce, toast
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.sessions.run_commands import control_error_text, has_unfinished
from agentgym_tui.state.data_model import NodeInfo
from agentgym_tui.state.nodes import ProfileDifference


class NodeControlApp(RunStartingApp, inherit_bindings=False):
    """An app that controls the node of its session."""

    def __init__(
        self, session: Session, settings: Settings, now: Callable[[], float], styles: list[str | PurePath]
    ) -> None:
        super().__init__(session, settings, now, styles)
        self._offered: ProfileDifference | None = None
        self._mentioned: set[tuple[str, str]] = set()

    async def action_start_node(self) -> None:
        """Start the node again."""
        await self.report_failure(self.session.start_node())

    def action_stop_node(self) -> None:
        """Stop the node; first ask if it has unfinished batches."""
        if has_unfinished(self.session):
            from agentgym_tui.screens.dialogs.node import StopNodeDialog

            self.push_screen(StopNodeDialog(self.session.store), self._stop_answered)
        else:
            self._stop_answered("now")

    def action_restart_node(self) -> None:
        """Restart the node; first ask if it has unfinished batches."""
        if has_unfinished(self.session):
            self._offer_restart(None)
        else:
            self._restart_answered("restart")

    def action_model_form(self) -> None:
        """Open the form that tries a model server and writes its profile."""
        if self._may_start():
            from agentgym_tui.screens.dialogs.model_form import ModelForm

            self.push_screen(ModelForm(), self._profile_written)

    def action_send_history(self) -> None:
        """Ask whether the earlier events are sent to the external broker of the node."""
        node = self.session.store.holding_node
        if not self._screen_accepts_keys:
            return
        if node is None or not HELD.is_met(self.session):
            toast(self, HELD.reason(self.session), failed=True)
            return
        from agentgym_tui.screens.dialogs.node import SendHistoryDialog

        self.push_screen(SendHistoryDialog(node), partial(self._send_history_answered, node))

    def after_draw(self) -> None:
        self._mention_held()
        difference = self.session.store.profile_difference
        if difference in (None, self._offered) or not self._screen_accepts_keys or self.screen.is_modal:
            return
        self._offered = difference
        self._offer_restart(difference)

    async def report_failure(self, request: Awaitable[None]) -> bool:
        """Await a request; if it fails, show why and return True."""
        try:
            await request
        except ControlRequestError as exc:
            toast(self, control_error_text(exc), failed=True)
            return True
        return False

    def _offer_restart(self, difference: ProfileDifference | None) -> None:
        from agentgym_tui.screens.dialogs.node import RestartNodeDialog

        self.push_screen(RestartNodeDialog(self.session.store, difference), self._restart_answered)

    def _profile_written(self, path: Path | None) -> None:
        if path is not None:
            start_worker(self, partial(self._use_profile, path), group="node")

    async def _use_profile(self, path: Path) -> None:
        command = f"agentgym-tui launch --config {path.stem}"
        toast(self, f"new profile, also for {command}\n{path!s}")
        await self.report_failure(self.session.use_profile(path))

    def _mention_held(self) -> None:
        node = self.session.store.holding_node
        if node is None or (node.name, node.egress) in self._mentioned or not HELD.is_met(self.session):
            return
        self._mentioned.add((node.name, node.egress))
        if self.settings.notify.toast:
            key = keymap_of(self).key("node.history")
            announce(self, f"{held_text(node)}\npress {key} to send them")

    def _send_history_answered(self, node: NodeInfo, answer: str | None) -> None:
        if answer == "send":
            start_worker(self, partial(self._send_history, node), group="node")

    async def _send_history(self, node: NodeInfo) -> None:
        try:
            n = await self.commands.control.send_history()
        except ControlRequestError as exc:
            toast(self, control_error_text(exc), failed=True)
        else:
            counted = pluralize(n, "earlier event is", "earlier events are")
            toast(self, f"{counted} being sent to {masked_line(node.egress, 80)}")

    def _stop_answered(self, answer: str | None) -> None:
        if answer in ("now", "drain"):
            start_worker(self, partial(self._stop_node, drain=answer == "drain"), group="node")

    async def _stop_node(self, *, drain: bool) -> None:
        if not await self.report_failure(self.session.stop_node(drain=drain)):
            when = "after all its batches" if drain else "after the running steps"
            key = keymap_of(self).key("node.start")
            toast(self, f"the node stops {when}; press {key} to start it again")

    def _restart_answered(self, answer: str | None) -> None:
        if answer == "restart":
            start_worker(self, self._restart_node, group="node")

    async def _restart_node(self) -> None:
        toast(self, "the node restarts after the running steps")
        await self.report_failure(self.session.restart_node())
