"""Toasts: short messages that cover the key bar for a few seconds; the newest ones are kept to be read in full."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from weakref import WeakKeyDictionary

from agentgym_tui.safe_text import sanitize_message

if TYPE_CHECKING:
    from textual.app import App

TOAST_TIMEOUT_S: Final = 4.0
ERROR_TIMEOUT_S: Final = 6.0

MAX_MESSAGES: Final = 50
"""Messages that are kept for each app."""


class Message(NamedTuple):
    """A message that a toast showed, in full."""

    at: datetime
    text: str
    failed: bool


class _Reply(NamedTuple):
    text: str
    failed: bool
    ends_at: float


_replies: WeakKeyDictionary[App[Any], _Reply] = WeakKeyDictionary()
"""The newest reply to a command in each app."""

_messages: WeakKeyDictionary[App[Any], deque[Message]] = WeakKeyDictionary()
"""The newest messages of each app, the oldest first."""


def toast(app: App[Any], text: str, *, failed: bool = False) -> None:
    """Show the reply to a command in place of the previous message, so that only one toast covers the screen."""
    text = sanitize_message(text)
    _keep(app, text, failed)
    _replies[app] = _Reply(text, failed, time.monotonic() + _timeout_s(failed))
    _show(app, text, failed)


def announce(app: App[Any], text: str, *, failed: bool = False) -> None:
    """Show an event that the user did not cause, below a reply that is still shown, because it must not hide that."""
    text = sanitize_message(text)
    _keep(app, text, failed)
    reply = _replies.get(app)
    if reply is not None and time.monotonic() < reply.ends_at:
        text, failed = f"{reply.text}\n{text}", failed or reply.failed
    _show(app, text, failed)


def messages(app: App[Any]) -> list[Message]:
    """Return the messages of ``app``, the newest first."""
    return list(reversed(_messages.get(app, ())))


def _keep(app: App[Any], text: str, failed: bool) -> None:
    _messages.setdefault(app, deque(maxlen=MAX_MESSAGES)).append(Message(datetime.now(UTC), text, failed))


def _show(app: App[Any], text: str, failed: bool) -> None:
    app.clear_notifications()
    severity: Literal["error", "information"] = "error" if failed else "information"
    app.notify(text, severity=severity, timeout=_timeout_s(failed), markup=False)


def _timeout_s(failed: bool) -> float:
    return ERROR_TIMEOUT_S if failed else TOAST_TIMEOUT_S
