"""An app whose keys start runs on every screen: the selected environment, a form, a battery, the last run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import PurePath
from typing import Final

from agentgym_tui.app.refresh import RefreshingApp
from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.commands.registry import NODE
from agentgym_tui.config.settings import Settings
from agentgym_tui.presenters.environment_rows import no_environments
from agentgym_tui.presenters.number_format import format_count
from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.services.timers import start_worker
from agentgym_tui.services.toast import toast
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.sessions.run_commands import MAX_TOAST_CHARS, RunCommands, control_error_text
from runner.events.control import StartArgs

START_COMMANDS: Final = ("run.selected", "run.form", "run.battery")
"""Ids of the commands that start a run."""


class RunStartingApp(RefreshingApp, inherit_bindings=False):
    """An app that starts runs; a run belongs to no screen, so its dialogs and replies outlive the screen.

    Attributes:
        commands: sends the commands of all screens, so that each of them repeats the same last run.
    """

    def __init__(
        self, session: Session, settings: Settings, now: Callable[[], float], styles: list[str | PurePath]
    ) -> None:
        super().__init__(session, settings, now, styles)
        self.commands = RunCommands(session)

    def action_run_selected(self) -> None:
        """Run the selected environment once; if the screen has none selected, open the run form."""
        if not self._may_start():
            return
        if not self.session.store.envs:
            toast(self, no_environments(self.session.store), failed=True)
        elif env := self._selected_env():
            self._run_once([env])
        else:
            self.action_run_form()

    def action_run_form(self, *envs: str) -> None:
        """Open the run form with ``envs`` checked, by default the selected environment."""
        if not self._may_start():
            return
        from agentgym_tui.screens.dialogs.run_form import RunForm

        chosen = list(envs) or [env for env in [self._selected_env()] if env]
        self.push_screen(RunForm(self.session, self.commands, chosen, self._start))

    def action_run_battery(self) -> None:
        """Open the battery picker."""
        if not self._may_start():
            return
        from agentgym_tui.screens.dialogs.battery_picker import BatteryPicker

        self.push_screen(BatteryPicker(self.session.store, self.commands.agent_choice()), self._battery_chosen)

    def action_run_again(self) -> None:
        """Repeat the last run."""
        if not self._may_start():
            return
        try:
            args = self.commands.repeat_run([keymap_of(self).key(id) for id in START_COMMANDS])
        except ControlRequestError as exc:
            toast(self, control_error_text(exc), failed=True)
        else:
            self._send(args)

    def action_run_summary(self) -> None:
        """Show the summary of the run that is selected on the screen, by default of the run that ended last."""
        from agentgym_tui.screens.runs.summary import RunSummaryScreen

        if not self._screen_accepts_keys or isinstance(self.screen, RunSummaryScreen):
            return
        run_id = self.screen.selected_run() if isinstance(self.screen, ConsoleScreen) else ""
        if run_id := run_id or self.session.store.newest_ended_run():
            self.push_screen(RunSummaryScreen(self.session, run_id))
        else:
            toast(self, "no run has ended yet")

    def _may_start(self) -> bool:
        """Return whether the screen accepts keys and the session has a node; if it has none, show why."""
        if not self._screen_accepts_keys or NODE.is_met(self.session):
            return self._screen_accepts_keys
        toast(self, NODE.reason(self.session), failed=True)
        return False

    def _selected_env(self) -> str:
        return self.screen.selected_env() if isinstance(self.screen, ConsoleScreen) else ""

    def _battery_chosen(self, envs: Sequence[str] | None) -> None:
        if envs:
            self._run_once(envs)

    def _run_once(self, envs: Sequence[str]) -> None:
        if self.commands.agent_choice().problem:
            self.action_run_form(*envs)
        else:
            self._send(self.commands.single_run(envs))

    def _send(self, args: StartArgs) -> None:
        start_worker(self, partial(self._start_or_report, args), group="commands")

    async def _start_or_report(self, args: StartArgs) -> None:
        try:
            await self._start(args)
        except ControlRequestError as exc:
            toast(self, control_error_text(exc), failed=True)

    async def _start(self, args: StartArgs) -> None:
        warnings = await self.commands.start(args)
        agent = f"{args.agent} {args.model}" if args.model else args.agent or "?"
        n_tasks = sum(map(len, args.tasks.values())) or len(args.envs) * args.repeat
        n_episodes = n_tasks * args.attempts
        count = "" if n_episodes == 1 else f", {format_count(n_episodes)} episodes"
        envs = ", ".join(args.envs[:4]) + ", …" * (len(args.envs) > 4)
        started = f"{agent} started on {envs}{count}"
        toast(self, "\n".join([started, *(sanitize_message(text, MAX_TOAST_CHARS) for text in warnings)]))
