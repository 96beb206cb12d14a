"""What a person is told when a batch is over: above the screen, and by the terminal where that is wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from agentgym_tui.app.ends import NEWS, Ended, ended_text
from agentgym_tui.presenters.model_answer import fall_text
from agentgym_tui.services.toast import tell
from agentgym_tui.state.endpoints import Fall

if TYPE_CHECKING:
    from textual.app import App

    from agentgym_tui.config.settings import Notify
    from agentgym_tui.state.run_store import RunStore

OSC_9: Final = "\x1b]9;AgentGym: a batch has ended\x07"
OSC_777: Final = "\x1b]777;notify;AgentGym;a batch has ended\x07"
"""Messages on the desktop, in our own words alone: nothing that came from outside is part of them."""


def desktop_sequence(environ: Mapping[str, str]) -> str:
    """The one of the two that the terminal knows; one that knows neither shows nothing."""
    knows_777 = environ.get("TERM", "").startswith("rxvt") or "VTE_VERSION" in environ
    return OSC_777 if knows_777 else OSC_9


class Falls:
    """Finds what a store has noted of endpoints since the last look."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._n_seen = 0

    def look(self, store: RunStore, now: datetime) -> Fall | None:
        """The newest that was not seen; what was long before is the history of a bus."""
        is_new, self._n_seen = store.n_falls > self._n_seen, store.n_falls
        newest = store.falls[-1] if is_new and store.falls else None
        return newest if newest is not None and now - newest.at < NEWS else None


def tell_fall(app: App[Any], fall: Fall | None, notify: Notify) -> None:
    """That another endpoint has to answer."""
    if fall is not None and notify.toast:
        tell(app, fall_text(fall), failed=bool(fall.failed))


def tell_ends(app: App[Any], ended: Iterable[Ended], notify: Notify) -> None:
    """Of a battery, bell and desktop tell only the end."""
    for each in ended:
        if notify.toast:
            tell(app, ended_text(each.batch))
        if notify.bell and each.is_last:
            app.bell()
        if notify.desktop and each.is_last and app._driver is not None:  # public only for the clipboard
            app._driver.write(desktop_sequence(os.environ))
