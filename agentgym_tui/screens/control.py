"""Base of the screens that send commands to a node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from textual.timer import Timer

from agentgym_tui.commands import NODE, keymap_of
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.screens.base import ScreenContext, SessionScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.node import ControlRequestError
from agentgym_tui.sessions.run_commands import RunCommands, control_error_text
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.run_store import RunStore

TICK_S: Final = 1.0
"""Seconds between two drawings of the time left."""

P = ParamSpec("P")
_ScreenT = TypeVar("_ScreenT", bound=SessionScreen)


class RunControl:
    """Sends the commands of a screen to the node of its session in the background, and shows the replies."""

    def __init__(self, screen: SessionScreen, commands: RunCommands | None) -> None:
        self._screen, self.commands = screen, commands or RunCommands(screen.session)

    def send(self, send: Callable[[], Awaitable[object]]) -> None:
        """Send a command; show the error if it fails."""
        start_worker(self._screen, partial(self._send, send), group="commands")

    async def _send(self, send: Callable[[], Awaitable[object]]) -> None:
        try:
            await send()
        except ControlRequestError as exc:
            self._screen.toast(control_error_text(exc), failed=True)

    def pause_or_resume(self, run_id: str, batches: Sequence[BatchRun]) -> None:
        """Pause the batches of a run; if none of them can be paused, resume them."""
        self.send(partial(self._pause_or_resume, run_id, batches))

    async def _pause_or_resume(self, run_id: str, batches: Sequence[BatchRun]) -> None:
        targets, effect = await self.commands.pause_or_resume(run_id, batches)
        self._screen.toast(f"{_name(targets)} {effect}" if targets else "nothing to pause or resume")

    def cancel(self, batches: Sequence[BatchRun]) -> None:
        """Cancel those of the batches that have not ended."""
        if left := [batch for batch in batches if batch.status not in ("completed", "cancelled")]:
            self.send(partial(self._cancel, left))
        else:
            self._screen.toast("it has ended")

    async def _cancel(self, batches: Sequence[BatchRun]) -> None:
        await self.commands.cancel(batches)
        last = self.commands.last_run
        is_last = last is not None and any(last.batch_id in (each.batch_id, each.battery_id) for each in batches)
        hint = f". Press {keymap_of(self._screen.app).key('run.repeat')} to run it again" if is_last else ""
        self._screen.toast(f"{_name(batches)} cancelled{hint}")


class ControlScreen(SessionScreen):
    """A screen whose actions send commands to the node of the session."""

    def __init__(self, context: ScreenContext) -> None:
        super().__init__(context)
        control = RunControl(self, context.commands)
        self.commands, self.run_command = control.commands, control.send
        self.pause_or_resume, self.cancel = control.pause_or_resume, control.cancel
        self._ticks: Timer | None = None

    def on_mount(self) -> None:
        """Let the time left pass between two messages."""
        self._ticks = self.set_interval(TICK_S, self._tick)

    def draw(self, store: RunStore) -> None:
        if self._ticks is not None and store.batch_registry.active() is not None:
            self._ticks.resume()

    def draw_time_left(self) -> None:
        """Draw the time left again."""

    def _tick(self) -> None:
        if self._ticks is not None and self.session.store.batch_registry.active() is None:
            self._ticks.pause()
        elif self.accepts_keys:
            self.draw_time_left()


def _name(batches: Sequence[BatchRun]) -> str:
    return batches[0].env if len(batches) == 1 else pluralize(len(batches), "batch", "batches")


def needs_node(action: Callable[Concatenate[_ScreenT, P], None]) -> Callable[Concatenate[_ScreenT, P], None]:
    """Return the action, or show why runs cannot be controlled where the session has no node of its own."""

    @wraps(action)
    def checked(screen: _ScreenT, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if NODE.is_met(screen.session):
            action(screen, *args, **kwargs)
        else:
            screen.toast(NODE.reason(screen.session), failed=True)

    return checked
