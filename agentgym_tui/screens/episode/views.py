"""The views of one episode: transcript and picture of a step, trace, file, and the environment's evaluation if any."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.commands.registry import Registry
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.chat_blocks import Block
from agentgym_tui.presenters.evaluation import evaluation_blocks
from agentgym_tui.presenters.payload import TextRows, pretty_json
from agentgym_tui.presenters.span_rows import spans_text, spans_with
from agentgym_tui.presenters.transcript import missing_file_text, transcript_text
from agentgym_tui.presenters.world import NO_PICTURE, ended_step, has_pictures, step_world_lines, world_heading
from agentgym_tui.screens.episode.content import EpisodeContent, ShownEpisode
from agentgym_tui.screens.episode.transcripts import EpisodeTranscript, StepTranscript
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.session import LoadedEpisode
from agentgym_tui.widgets.charts import Waterfall
from agentgym_tui.widgets.payload_view import TextView
from agentgym_tui.widgets.static_lines import WrappedText
from agentgym_tui.widgets.transcript import Transcript
from runner.types import Span
from runner.types.cells import MAX_COLUMNS


class EpisodeWorld(EpisodeContent):
    """The picture of the environment after the selected step, or before it."""

    shows_step = True

    def __init__(self, id: str) -> None:
        self._view = WrappedText(lambda width: [], id=id)
        super().__init__(self._view)
        self._is_before = False

    def show(self, shown: ShownEpisode) -> None:
        key = keymap_of(self._view.app).key("list.choose")
        heading = world_heading(self._step(shown), key, before=self._is_before)
        self._view.set_lines(lambda width: [heading, [], *self._lines(shown, width)])

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        return "\n".join("".join(cell.text for cell in line).rstrip() for line in self._lines(shown))

    def choose(self) -> None:
        self._is_before = not self._is_before

    def _lines(self, shown: ShownEpisode, width: int = MAX_COLUMNS) -> list[Line]:
        if shown.loaded is None:
            return NO_PICTURE
        return step_world_lines(shown.loaded.episode, shown.step, width, before=self._is_before)

    @staticmethod
    def _step(shown: ShownEpisode) -> int:
        return shown.step if shown.loaded is None else ended_step(shown.loaded.episode, shown.step)


class EpisodeTrace(EpisodeContent):
    """The spans of the episode."""

    def __init__(self, id: str) -> None:
        self._waterfall = Waterfall(id=id)
        super().__init__(self._waterfall)
        self._key = ""
        self._opened: set[int] = set()

    def show(self, shown: ShownEpisode) -> None:
        if shown.key != self._key:
            self._key = shown.key
            self._opened.clear()
        self._waterfall.show_spans(_spans(shown), opened=self._opened)

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        has_attributes = any(span.attributes for span in _spans(shown))
        return [Cell(f"{key('list.choose')}: attributes", "dim")] if has_attributes else []

    def choose(self) -> None:
        if (position := self._waterfall.position) is not None:
            self._opened ^= {position}

    def unfold_matches(self, shown: ShownEpisode, expression: re.Pattern[str]) -> bool:
        n_opened = len(self._opened)
        self._opened |= spans_with(_spans(shown), expression)
        return len(self._opened) > n_opened

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        return spans_text(shown.loaded.episode.spans.all, raw=raw) if shown.loaded else ""


def _spans(shown: ShownEpisode) -> Sequence[Span]:
    return shown.loaded.episode.spans.all if shown.loaded else ()


class EpisodeJson(EpisodeContent):
    """The file of the episode, formatted in a thread because it may have many megabytes."""

    def __init__(self, id: str) -> None:
        self._view = TextView(id=id)
        super().__init__(self._view)
        self._loaded: LoadedEpisode | None = None
        self._text: str | None = None

    def show(self, shown: ShownEpisode) -> None:
        if shown.loaded is not self._loaded or self._text is None:
            self._loaded, self._text = shown.loaded, None
            start_worker(self._view, partial(self._format, shown.loaded), group="json", exclusive=True)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        if raw and shown.loaded is not None and shown.loaded.data is not None:
            return shown.loaded.data.decode("utf-8", "replace")
        return (self._text if shown.loaded is self._loaded else None) or ""

    async def _format(self, loaded: LoadedEpisode | None) -> None:
        if loaded is None:
            text = ""
        elif loaded.data is None:
            text = missing_file_text(loaded.missing_reason)
        else:
            text = await asyncio.to_thread(pretty_json, loaded.data)
        shown = await asyncio.to_thread(TextRows, text)
        if loaded is self._loaded and self._view.is_attached:  # else another episode is shown, or the screen was closed
            self._text = text
            self._view.show_text(shown)


class EpisodeEvaluation(EpisodeContent):
    """Verdict, reason and event log of an environment that evaluates its episodes."""

    def __init__(self, id: str) -> None:
        self._transcript = Transcript(id=id)
        super().__init__(self._transcript)

    def show(self, shown: ShownEpisode) -> None:
        self._transcript.show_blocks(_evaluation(shown), subject=shown.key)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        return transcript_text(_evaluation(shown))


def _evaluation(shown: ShownEpisode) -> list[Block]:
    episode = shown.loaded.episode if shown.loaded else None
    return evaluation_blocks(episode.evaluation, running=episode.running) if episode else []


class EpisodeView(NamedTuple):
    """A view of an episode: a tab.

    Attributes:
        id: the id; its command's action is ``tab('ID')``.
        title: title of the tab.
        command: id of the command whose key selects the tab.
        content: makes the content for the id.
        is_listed: returns whether the tab is listed for a loaded episode; its key works for every episode.
    """

    id: str
    title: str
    command: str
    content: Callable[[str], EpisodeContent]
    is_listed: Callable[[LoadedEpisode | None], bool] = lambda loaded: True


EPISODE_VIEWS: Final = Registry(
    EpisodeView("transcript", "Transcript", "episode.transcript", StepTranscript),
    EpisodeView("whole", "All", "episode.whole", EpisodeTranscript),
    EpisodeView(
        "world",
        "World",
        "episode.world",
        EpisodeWorld,
        lambda loaded: loaded is not None and has_pictures(loaded.episode),
    ),
    EpisodeView("trace", "Trace", "episode.trace", EpisodeTrace),
    EpisodeView("json", "JSON", "episode.json", EpisodeJson),
    EpisodeView(
        "evaluation",
        "Evaluation",
        "episode.evaluation",
        EpisodeEvaluation,
        lambda loaded: loaded is not None and loaded.episode.evaluation is not None,
    ),
)
"""The views in the order of their tabs; the first one is selected at first, and shows why an episode is missing."""
