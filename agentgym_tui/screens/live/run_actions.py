"""What can be started and commanded from a screen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, Final

from textual.binding import BindingType

from agentgym_tui.commands.keymap import bindings, keymap_of
from agentgym_tui.presenters.number_format import format_count
from agentgym_tui.safe_text import SafeText, join, sanitize_line, sanitize_message, trusted
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.services.timers import start_worker
from agentgym_tui.services.toast import toast
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.sessions.run_commands import RunCommands, command_targets, control_error_text, unfinished_batches
from agentgym_tui.state.models import BatchRun, Episode
from runner.events.control import StartArgs

STARTS: Final = ("run.selected", "run.form", "run.battery")
"""Commands that start something."""


class RunActionsScreen(ConsoleScreen[None]):
    """A screen from which episodes are played.

    Args:
        session: whose node plays them.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("live")]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.orders = RunCommands(session)

    def selected(self) -> str:
        """The selected environment, "" for none."""
        raise NotImplementedError

    def watched(self) -> Episode | None:
        """The episode that is shown."""
        raise NotImplementedError

    def started(self, args: StartArgs) -> None:
        """Something was started."""
        raise NotImplementedError

    def tell(self, text: SafeText, *, failed: bool = False) -> None:
        """Say something in passing."""
        toast(self.app, text, failed=failed)

    def action_run_selected(self) -> None:
        """Play the selected environment once."""
        if self._refused():
            return
        if env := self.selected():
            self._play_once([env])
        else:
            self.tell(trusted("no environment is selected: the node has not said yet what it can play"), failed=True)

    def action_run_form(self, *envs: str) -> None:
        """Choose what to play."""
        from agentgym_tui.screens.dialogs.run_form import RunForm

        if not self._refused():
            chosen = list(envs) or [env for env in [self.selected()] if env]
            self.app.push_screen(RunForm(self.session, self.orders, chosen), self._chosen)

    def action_run_battery(self) -> None:
        """Choose a tier to play."""
        from agentgym_tui.screens.dialogs.battery_picker import BatteryPicker

        if self._refused():
            return
        self.app.push_screen(BatteryPicker(self.session.store, self.orders.agent_choice()), self._tier_chosen)

    def action_run_again(self) -> None:
        """The last run once more."""
        if self._refused():
            return
        try:
            self._chosen(
                self.orders.repeat_run([keymap_of(self.app).key(id) for id in ("run.selected", "run.form", "run.battery")])
            )
        except ControlRequestError as exc:
            self.tell(control_error_text(exc), failed=True)

    def action_cancel(self) -> None:
        """End the batch that is played; of a battery with more to play ask how much."""
        if self._refused():
            return
        batch = self._batch()
        if batch is None:
            self.tell(trusted("nothing runs that could be cancelled"))
            return
        others = [
            each for each in unfinished_batches(self.session.store) if each.battery_id and each.battery_id == batch.battery_id
        ]
        if len(others) < 2:
            self._order(partial(self._cancel, [batch]))
            return
        from agentgym_tui.screens.dialogs.confirm import CancelDialog

        def answered(answer: str | None) -> None:
            if answer in ("batch", "battery"):
                self._order(partial(self._cancel, [batch] if answer == "batch" else others))

        self.app.push_screen(CancelDialog(batch, len(others) - 1), answered)

    def action_pause(self) -> None:
        """Pause the batch that is watched, or let it go on; between two of its episodes, too."""
        if self._refused():
            return
        if (batch := self._batch()) is None:
            self.tell(trusted("nothing runs that could be paused"))
        else:
            self._order(partial(self._pause, batch))

    def action_step(self) -> None:
        """One step of the watched episode."""
        if not self._refused() and (episode := self._playing()) is not None:
            self._order(partial(self.orders.step, episode))

    def _refused(self) -> bool:
        """Whether nothing can be ordered from here, which is said."""
        if self.session.read_only:
            self.tell(sanitize_message(self.session.read_only), failed=True)
        return bool(self.session.read_only)

    def _play_once(self, envs: list[str]) -> None:
        """Play, if a model can; else the form says why none does, and who plays without one."""
        if self.orders.agent_choice().problem:
            self.action_run_form(*envs)
        else:
            self._order(partial(self._start, self.orders.single_run(envs)))

    def _tier_chosen(self, envs: list[str] | None) -> None:
        if envs:
            self._play_once(envs)

    def _chosen(self, args: StartArgs | None) -> None:
        if args is not None:
            self._order(partial(self._start, args))

    def _playing(self) -> Episode | None:
        episode = self.watched()
        if episode is None or not episode.running:
            self.tell(trusted("no running episode is watched"))
            return None
        return episode

    def _batch(self) -> BatchRun | None:
        """The batch of the watched episode, as long as it is played, else the one that is."""
        store, episode = self.session.store, self.watched()
        batch = store.batches.get(episode.batch_id) if episode is not None and episode.running else None
        return batch or store.active_batch() or next(iter(unfinished_batches(store)), None)

    def _order(self, order: Callable[[], Awaitable[object]]) -> None:
        start_worker(self, partial(self._obeyed, order), group="orders")

    async def _obeyed(self, order: Callable[[], Awaitable[object]]) -> None:
        try:
            await order()
        except ControlRequestError as exc:
            self.tell(control_error_text(exc), failed=True)

    async def _start(self, args: StartArgs) -> None:
        await self.orders.start(args)
        who = sanitize_line(f"{args.agent} {args.model}" if args.model else args.agent or "?", 60)
        n_episodes = len(args.envs) * args.repeat * args.attempts
        what = trusted("" if n_episodes == 1 else f", {format_count(n_episodes)} episodes")
        envs = sanitize_line(", ".join(args.envs[:4]) + ", …" * (len(args.envs) > 4), 120)
        self.tell(join([who, trusted(" plays "), envs, what]))
        self.started(args)

    async def _pause(self, batch: BatchRun) -> None:
        done = await self.orders.pause_or_resume(batch)
        self.tell(join([sanitize_line(batch.env, 40), trusted(f" {done}")]))

    async def _cancel(self, batches: list[BatchRun]) -> None:
        whole = len(batches) > 1
        await self.orders.cancel(command_targets(batches) if whole else [batches[0].batch_id])
        what = trusted("the battery") if whole else sanitize_line(batches[0].env, 40)
        self.tell(join([trusted("cancelled: "), what, trusted(", . plays it again" if self.orders.last_run else "")]))
