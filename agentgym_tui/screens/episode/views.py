"""The views of one episode: transcript and picture of a step, trace, file, and the environment's evaluation if any."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.commands.registry import Registry
from agentgym_tui.presenters.answering_endpoint import answer_parts
from agentgym_tui.presenters.cells import Cell, Line, join_parts
from agentgym_tui.presenters.chat_blocks import Block
from agentgym_tui.presenters.evaluation import evaluation_blocks
from agentgym_tui.presenters.payload import TextRows, pretty_json
from agentgym_tui.presenters.span_rows import spans_text, spans_with
from agentgym_tui.presenters.transcript import failure_blocks, missing_file_text, step_blocks, transcript_text
from agentgym_tui.presenters.whole_episode import FOLDS, StepBlocks, WholeEpisode
from agentgym_tui.presenters.world import NO_PICTURE, ended_step, has_pictures, step_world_lines, world_heading
from agentgym_tui.safe_text import SafeText, sanitize_line, trusted
from agentgym_tui.services.timers import start_worker
from agentgym_tui.sessions.episode_loader import LoadedEpisode
from agentgym_tui.state.data_model import Episode
from agentgym_tui.widgets.charts import Waterfall
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.payload_view import TextView
from agentgym_tui.widgets.static_lines import WrappedText
from agentgym_tui.widgets.transcript import Transcript
from runner.types import Span
from runner.types.cells import MAX_COLUMNS

_NOTE_WIDTH: Final = 120
"""Columns of the note right of the tabs."""


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


class StepTranscript(EpisodeContent):
    """The messages and actions of the selected step."""

    shows_step = True

    def __init__(self, id: str) -> None:
        self._transcript = Transcript(id=id)
        super().__init__(self._transcript)
        self._subject = ""
        self._show_all_messages = False
        self._has_more = False

    def show(self, shown: ShownEpisode) -> None:
        """Show the blocks of the step."""
        if (subject := f"{shown.key}/{shown.step}") != self._subject:
            self._subject, self._show_all_messages = subject, False
        blocks = self._blocks(shown)
        self._has_more = any(block.kind == "earlier" for block in blocks)
        self._transcript.show_blocks(blocks, subject=subject, follow=shown.follow)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return the shown blocks; they are always sanitized."""
        return transcript_text(self._blocks(shown))

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        """Return the step number, the effect of Enter if Enter has one, and the timings of the endpoint."""
        if shown.loaded is None or not shown.has_steps:
            return []
        action = "fewer" if self._show_all_messages else "all" if self._has_more else ""
        choose = f" · {key('list.choose')}: {action}" if action else ""
        step = [Cell(trusted(f"step {shown.step}{choose}"), "dim")]
        return join_parts([step, *answer_parts(shown.loaded.episode, shown.step)], _NOTE_WIDTH)

    def choose(self) -> None:
        """Show all messages of the step, or only those that earlier steps do not show."""
        self._show_all_messages = not self._show_all_messages

    def _blocks(self, shown: ShownEpisode) -> list[Block]:
        if shown.loaded is None or not shown.has_steps:
            return failure_blocks(shown.loaded.missing_reason if shown.loaded else shown.failure)
        return step_blocks(shown.loaded.episode, shown.step, full=self._show_all_messages)


class EpisodeTranscript(EpisodeContent):
    """All steps of the episode as one transcript, which goes to the step that is selected."""

    shows_step = True

    def __init__(self, id: str) -> None:
        self._transcript = Transcript(id=id)
        super().__init__(self._transcript)
        self._steps, self._whole = StepBlocks(), WholeEpisode([], {}, set())
        self._folded: set[str] = set()
        self._hidden: set[str] = set()
        self._episode: Episode | None = None
        self._drawn: tuple[object, ...] | None = None
        self._place: tuple[str, int] = ("", 0)

    def show(self, shown: ShownEpisode) -> None:
        """Show the steps; another selected step comes to the top."""
        if shown.key != self._place[0]:
            self._steps = StepBlocks()
        self._transcript.show_blocks(self._blocks(shown), subject=shown.key, follow=shown.follow)
        is_selected = (shown.key, shown.step) != self._place and not shown.follow
        self._place = shown.key, shown.step
        if is_selected and shown.step in self._whole.starts:
            self._transcript.go_to_block(self._whole.starts[shown.step])

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return the shown blocks; they are always sanitized."""
        return transcript_text(self._blocks(shown))

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        """Return the kinds that are folded and hidden, as far as the episode has them."""
        there = [name for name in FOLDS if self._whole.kinds.intersection(FOLDS[name])]
        parts = {"hidden": self._hidden, "folded": self._folded}
        texts = {what: ", ".join(filter(names.__contains__, there)) for what, names in parts.items()}
        return [Cell(trusted(" · ".join(f"{what}: {text}" for what, text in texts.items() if text)), "dim")]

    def fold(self, name: str) -> bool:
        """Fold the blocks of a name of ``FOLDS``, then hide them, then show them again; ``show`` is called next.

        Returns:
            False if the episode has no such blocks.
        """
        if not self._whole.kinds.intersection(FOLDS[name]):
            return False
        if name in self._folded:
            self._folded.remove(name)
            self._hidden.add(name)
        elif name in self._hidden:
            self._hidden.remove(name)
        else:
            self._folded.add(name)
        return True

    def step_in_view(self) -> int | None:
        """Return the index of the step under the cursor; None without steps."""
        return self._whole.step_of(self._transcript.block_in_view)

    def unfold_matches(self, shown: ShownEpisode, expression: re.Pattern[str]) -> bool:
        """Unfold the kinds of blocks in which an expression matches."""
        before = self._folded | self._hidden
        if shown.loaded is None or not before:
            return False
        blocks = self._steps.blocks(shown.loaded.episode).blocks
        found = {
            block.kind
            for block in blocks
            if expression.search("\n".join(block.lines)) or expression.search(block.hidden)
        }
        for names in (self._folded, self._hidden):
            names -= {name for name in names if found.intersection(FOLDS[name])}
        return self._folded | self._hidden != before

    def _blocks(self, shown: ShownEpisode) -> list[Block]:
        if shown.loaded is None or not shown.has_steps:
            return failure_blocks(shown.loaded.missing_reason if shown.loaded else shown.failure)
        episode = shown.loaded.episode
        drawn = episode.version, episode.notes, frozenset(self._folded), frozenset(self._hidden)
        if episode is not self._episode or drawn != self._drawn:
            self._episode, self._drawn = episode, drawn
            self._whole = self._steps.blocks(episode, self._folded, self._hidden)
        return self._whole.blocks


class EpisodeWorld(EpisodeContent):
    """The picture of the environment after the selected step, or before it."""

    shows_step = True

    def __init__(self, id: str) -> None:
        self._view = WrappedText(lambda width: [], id=id)
        super().__init__(self._view)
        self._is_before = False

    def show(self, shown: ShownEpisode) -> None:
        """Show the picture; it stays scrolled while steps are selected."""
        key = sanitize_line(keymap_of(self._view.app).key("list.choose"), 20)
        heading = world_heading(self._step(shown), key, before=self._is_before)
        self._view.set_lines(lambda width: [heading, [], *self._lines(shown, width)])

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return the picture without colors; it is always sanitized."""
        return "\n".join("".join(cell.text for cell in line).rstrip() for line in self._lines(shown))

    def choose(self) -> None:
        """Switch between the pictures before and after the step."""
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
        """Show the waterfall of the spans."""
        if shown.key != self._key:
            self._key = shown.key
            self._opened.clear()
        self._waterfall.show_spans(_spans(shown), opened=self._opened)

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        """Return the effect of Enter."""
        has_attributes = any(span.attributes for span in _spans(shown))
        return [Cell(trusted(f"{key('list.choose')}: attributes"), "dim")] if has_attributes else []

    def choose(self) -> None:
        """Show the attributes of the span under the cursor, or hide them."""
        if (position := self._waterfall.position) is not None:
            self._opened ^= {position}

    def unfold_matches(self, shown: ShownEpisode, expression: re.Pattern[str]) -> bool:
        """Show the attributes of the spans in which an expression matches."""
        n_opened = len(self._opened)
        self._opened |= spans_with(_spans(shown), expression)
        return len(self._opened) > n_opened

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return one line per span."""
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
        """Format the file and show it, unless it is shown already."""
        if shown.loaded is not self._loaded or self._text is None:
            self._loaded, self._text = shown.loaded, None
            start_worker(self._view, partial(self._format, shown.loaded), group="json", exclusive=True)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return the file; if ``raw`` is False, formatted, "" until it is shown."""
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
        """Show the blocks of the evaluation."""
        self._transcript.show_blocks(_evaluation(shown), subject=shown.key)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        """Return the shown blocks; they are always sanitized."""
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
    title: SafeText
    command: str
    content: Callable[[str], EpisodeContent]
    is_listed: Callable[[LoadedEpisode | None], bool] = lambda loaded: True


EPISODE_VIEWS: Final = Registry(
    EpisodeView("transcript", trusted("Transcript"), "episode.transcript", StepTranscript),
    EpisodeView("whole", trusted("All"), "episode.whole", EpisodeTranscript),
    EpisodeView(
        "world",
        trusted("World"),
        "episode.world",
        EpisodeWorld,
        lambda loaded: loaded is not None and has_pictures(loaded.episode),
    ),
    EpisodeView("trace", trusted("Trace"), "episode.trace", EpisodeTrace),
    EpisodeView("json", trusted("JSON"), "episode.json", EpisodeJson),
    EpisodeView(
        "evaluation",
        trusted("Evaluation"),
        "episode.evaluation",
        EpisodeEvaluation,
        lambda loaded: loaded is not None and loaded.episode.evaluation is not None,
    ),
)
"""The views in the order of their tabs; the first one is selected at first, and shows why an episode is missing."""
