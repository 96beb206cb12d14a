"""The run commands of the live screen: start, cancel, pause and step."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.commands.registry import NODE
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.presenters.number_format import format_count
from agentgym_tui.safe_text import SafeText, join, sanitize_line, sanitize_message, trusted
from agentgym_tui.screens.base import SessionScreen
from agentgym_tui.services.timers import start_worker
from agentgym_tui.services.toast import toast
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.sessions.run_commands import (
    MAX_TOAST_CHARS,
    RunCommands,
    command_targets,
    control_error_text,
    unfinished_batches,
)
from agentgym_tui.state.data_model import BatchRun, Episode
from runner.events.control import StartArgs

START_COMMANDS: Final = ("run.selected", "run.form", "run.battery")
"""Ids of the commands that start a run."""


class RunActionsScreen(SessionScreen):
    """A screen with commands that start and control runs; the arguments are those of ``SessionScreen``."""

    SCOPE = "live"

    def __init__(
        self, session: Session, ui_state: UiState | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(session, ui_state, now=now)
        self.commands = RunCommands(session)

    def selected_env(self) -> str:
        """Return the name of the selected environment, "" if there is none."""
        raise NotImplementedError

    def watched_episode(self) -> Episode | None:
        """Return the episode that the screen shows; None if there is none."""
        raise NotImplementedError

    def started(self, args: StartArgs) -> None:
        """React to a run that was started with ``args``."""
        raise NotImplementedError

    def show_toast(self, text: SafeText, *, failed: bool = False) -> None:
        """Show ``text`` as a toast, styled as an error if ``failed`` is True."""
        toast(self.app, text, failed=failed)

    def action_run_selected(self) -> None:
        """Run the selected environment once."""
        if self._reject_if_read_only():
            return
        if env := self.selected_env():
            self._run_once([env])
        else:
            self.show_toast(trusted("environments not loaded yet"), failed=True)

    def action_run_form(self, *envs: str) -> None:
        """Open the run form with ``envs`` checked."""
        from agentgym_tui.screens.dialogs.run_form import RunForm

        if not self._reject_if_read_only():
            chosen = list(envs) or [env for env in [self.selected_env()] if env]
            self.app.push_screen(RunForm(self.session, self.commands, chosen), self._form_closed)

    def action_run_battery(self) -> None:
        """Open the battery picker."""
        from agentgym_tui.screens.dialogs.battery_picker import BatteryPicker

        if self._reject_if_read_only():
            return
        self.app.push_screen(BatteryPicker(self.session.store, self.commands.agent_choice()), self._battery_chosen)

    def action_run_again(self) -> None:
        """Repeat the last run."""
        if self._reject_if_read_only():
            return
        try:
            self._form_closed(self.commands.repeat_run([keymap_of(self.app).key(id) for id in START_COMMANDS]))
        except ControlRequestError as exc:
            self.show_toast(control_error_text(exc), failed=True)

    def action_cancel(self) -> None:
        """Cancel the running batch; if its battery has more batches, let the user choose how much to cancel."""
        if self._reject_if_read_only():
            return
        batch = self._batch()
        if batch is None:
            self.show_toast(trusted("no batch is running"))
            return
        unfinished = unfinished_batches(self.session.store)
        others = [each for each in unfinished if each.battery_id and each.battery_id == batch.battery_id]
        if len(others) < 2:
            self._run_command(partial(self._cancel, [batch]))
            return
        from agentgym_tui.screens.dialogs.confirm import CancelDialog

        def dialog_closed(answer: str | None) -> None:
            if answer in ("batch", "battery"):
                self._run_command(partial(self._cancel, [batch] if answer == "batch" else others))

        self.app.push_screen(CancelDialog(batch, len(others) - 1), dialog_closed)

    def action_pause(self) -> None:
        """Pause or resume the batch of the watched episode; this also works between two episodes."""
        if self._reject_if_read_only():
            return
        if (batch := self._batch()) is None:
            self.show_toast(trusted("no batch is running"))
        else:
            self._run_command(partial(self._pause, batch))

    def action_step(self) -> None:
        """Advance the watched episode by one step."""
        if not self._reject_if_read_only() and (episode := self._running_episode()) is not None:
            self._run_command(partial(self.commands.step, episode))

    def _reject_if_read_only(self) -> bool:
        if is_rejected := not NODE.is_met(self.session):
            self.show_toast(NODE.reason(self.session), failed=True)
        return is_rejected

    def _run_once(self, envs: list[str]) -> None:
        if self.commands.agent_choice().problem:
            self.action_run_form(*envs)
        else:
            self._run_command(partial(self._start, self.commands.single_run(envs)))

    def _battery_chosen(self, envs: list[str] | None) -> None:
        if envs:
            self._run_once(envs)

    def _form_closed(self, args: StartArgs | None) -> None:
        if args is not None:
            self._run_command(partial(self._start, args))

    def _running_episode(self) -> Episode | None:
        episode = self.watched_episode()
        if episode is None or not episode.running:
            self.show_toast(trusted("no running episode selected"))
            return None
        return episode

    def _batch(self) -> BatchRun | None:
        store, episode = self.session.store, self.watched_episode()
        batch = store.batches.get(episode.batch_id) if episode is not None and episode.running else None
        return batch or store.active_batch() or next(iter(unfinished_batches(store)), None)

    def _run_command(self, send: Callable[[], Awaitable[object]]) -> None:
        start_worker(self, partial(self._send_command, send), group="commands")

    async def _send_command(self, send: Callable[[], Awaitable[object]]) -> None:
        try:
            await send()
        except ControlRequestError as exc:
            self.show_toast(control_error_text(exc), failed=True)

    async def _start(self, args: StartArgs) -> None:
        warnings = await self.commands.start(args)
        agent = sanitize_line(f"{args.agent} {args.model}" if args.model else args.agent or "?", 60)
        n_episodes = len(args.envs) * args.repeat * args.attempts
        count = trusted("" if n_episodes == 1 else f", {format_count(n_episodes)} episodes")
        envs = sanitize_line(", ".join(args.envs[:4]) + ", …" * (len(args.envs) > 4), 120)
        started = join([agent, trusted(" started on "), envs, count])
        self.show_toast(join([started, *(sanitize_message(text, MAX_TOAST_CHARS) for text in warnings)], trusted("\n")))
        self.started(args)

    async def _pause(self, batch: BatchRun) -> None:
        result = await self.commands.pause_or_resume(batch)
        self.show_toast(join([sanitize_line(batch.env, 40), trusted(f" {result}")]))

    async def _cancel(self, batches: list[BatchRun]) -> None:
        is_battery = len(batches) > 1
        await self.commands.cancel(command_targets(batches) if is_battery else [batches[0].batch_id])
        cancelled = trusted("Battery") if is_battery else sanitize_line(batches[0].env, 40)
        key = keymap_of(self.app).key("run.repeat")
        hint = f". Press {key} to run it again" if self.commands.last_run else ""
        self.show_toast(join([cancelled, trusted(f" cancelled{hint}")]))
