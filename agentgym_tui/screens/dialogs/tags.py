"""The dialog in which the tags of an episode are edited."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from agentgym_tui.commands.registry import NODE
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import fill_in, join, masked_rows, sanitize_line, trusted
from agentgym_tui.screens.base import ConsoleScreen, DialogFrame, DialogScreen
from agentgym_tui.services.timers import start_worker
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.sessions.run_commands import change_tags, split_tags
from agentgym_tui.state.episode_list import ListEntry, UnreadableFile
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.static_lines import StaticLines

MAX_ROWS: Final = 3
"""Rows for the reason why a change was refused."""


class TagDialog(DialogScreen[None]):
    """A dialog with the tags of an episode in one field; it closes when the node has stored the change.

    Args:
        session: sends the change.
        episode_id: id of the episode.
        env: name of its environment; untrusted text.
    """

    SCOPE = "tags"
    AUTO_FOCUS = "#words"

    def __init__(self, session: Session, episode_id: str, env: str) -> None:
        super().__init__()
        self._session = session
        self._episode_id = episode_id
        self._title = fill_in("Tags of {}", sanitize_line(env, 40))
        # a tag that is not shown as it is stored cannot be edited, and stays
        tags = session.store.tags.get(episode_id, ())
        self._before: Sequence[str] = [tag for tag in tags if sanitize_line(tag, 100) == tag]
        self._refusal = ""
        self._is_sending = False

    def compose(self) -> ComposeResult:
        """Yield the field and a line below it."""
        with DialogFrame(self._title, keys="{tags.save} saves · {tags.close} closes"):
            yield SearchInput(" ".join([*self._before, ""]).lstrip(), id="words", compact=True, select_on_focus=False)
            yield StaticLines(self._note, id="note")

    def action_save(self) -> None:
        """Send what was added and removed; the dialog stays open if the node refuses it."""
        if self._is_sending:
            return
        after = split_tags(self.query_one("#words", Input).value)
        if set(after) == set(self._before):
            self.leave()
            return
        self._is_sending = True
        start_worker(self, partial(self._send, after), group="tags")

    @on(Input.Submitted)
    def _submitted(self) -> None:
        if self.accepts_keys:
            self.action_save()

    async def _send(self, after: Sequence[str]) -> None:
        try:
            await change_tags(self._session, self._episode_id, self._before, after)
        except ControlRequestError as exc:
            self._refusal = "; ".join(filter(None, (str(exc), exc.hint)))
            self.show_lines("note")
        else:
            self.leave()
        finally:
            self._is_sending = False

    def _note(self, width: int) -> list[Line]:
        if not self._refusal:
            about = trusted("words with spaces between; those that you delete are removed")
            return [[Cell(row, "dim")] for row in wrap_text(about, width, MAX_ROWS)]
        text = join([trusted("✗ "), masked_rows(self._refusal)])
        return [[Cell(row, "bad")] for row in wrap_text(text, width, MAX_ROWS)]


def edit_tags(screen: ConsoleScreen[Any], session: Session, entry: ListEntry | None) -> None:
    """Open the dialog for an episode, or show why the session cannot change its tags."""
    if not NODE.is_met(session):
        screen.toast(NODE.reason(session), failed=True)
    elif entry is not None and not isinstance(entry, UnreadableFile):
        screen.app.push_screen(TagDialog(session, entry.episode_id, entry.env))
