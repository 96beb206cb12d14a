"""What the views of an episode have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from agentgym_tui.presenters.cells import Line
from agentgym_tui.sessions.session import LoadedEpisode
from agentgym_tui.widgets.line_list import LineList


class ShownEpisode(NamedTuple):
    """What the views of an episode show.

    Attributes:
        key: key of the episode.
        loaded: the episode; None if it is not loaded.
        failure: why the episode could not be loaded, untrusted text; "" if it could.
        step: index of the selected step.
        follow: whether to stay at the end while the step grows.
    """

    key: str = ""
    loaded: LoadedEpisode | None = None
    failure: str = ""
    step: int = 0
    follow: bool = False

    @property
    def has_steps(self) -> bool:
        """Whether there are steps to show, or a running episode that may get some."""
        return self.loaded is not None and bool(self.loaded.episode.steps or not self.loaded.missing_reason)


class EpisodeContent:
    """What a view shows of an episode.

    Args:
        widget: the list that shows it; its id is the id of the view's entry in ``EPISODE_VIEWS``.
    """

    shows_step = False
    """Whether the content depends on the selected step."""

    def __init__(self, widget: LineList) -> None:
        self.widget = widget

    def show(self, shown: ShownEpisode) -> None:
        """Show the episode in ``widget``; called when the view is selected, and when what it shows may have changed."""
        raise NotImplementedError

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return the content as one text, to copy it; unsanitized if ``raw`` is True."""
        raise NotImplementedError

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        """Return the text right of the tabs, after ``show``; ``key`` returns the key label of a command id."""
        return []

    def choose(self) -> None:
        """React to Enter or a double click; ``show`` is called next."""

    def unfold_matches(self, shown: ShownEpisode, expression: re.Pattern[str]) -> bool:
        """Unfold what hides a match of an expression; return whether anything was folded, so that ``show`` is due."""
        return False
