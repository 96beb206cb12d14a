"""The transcript of a step, and that of the whole episode, whose kinds of texts can be folded and hidden."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from agentgym_tui.presenters.answering_endpoint import answer_parts
from agentgym_tui.presenters.cells import Cell, Line, join_parts
from agentgym_tui.presenters.chat_blocks import Block
from agentgym_tui.presenters.transcript import failure_blocks, step_blocks, transcript_text
from agentgym_tui.presenters.whole_episode import FOLDS, StepBlocks, WholeEpisode
from agentgym_tui.screens.episode.content import EpisodeContent, ShownEpisode
from agentgym_tui.services import start_worker
from agentgym_tui.state.episode import Episode
from agentgym_tui.widgets.transcript import Transcript

N_AT_ONCE: Final = 100
"""Number of steps that are added to the whole episode at a time, within a thirtieth of a second."""
PAUSE_S: Final = 0.005
_NOTE_WIDTH: Final = 120
"""Columns of the note right of the tabs."""


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
        if (subject := f"{shown.key}/{shown.step}") != self._subject:
            self._subject, self._show_all_messages = subject, False
        blocks = self._blocks(shown)
        self._has_more = any(block.kind == "earlier" for block in blocks)
        self._transcript.show_blocks(blocks, subject=subject, follow=shown.follow)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        return transcript_text(self._blocks(shown))

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        if shown.loaded is None or not shown.has_steps:
            return []
        action = "fewer" if self._show_all_messages else "all" if self._has_more else ""
        choose = f" · {key('list.choose')}: {action}" if action else ""
        step = [Cell(f"step {shown.step}{choose}", "dim")]
        return join_parts([step, *answer_parts(shown.loaded.episode, shown.step)], _NOTE_WIDTH)

    def choose(self) -> None:
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
        self._shown = ShownEpisode()
        self._n_steps = 0

    def show(self, shown: ShownEpisode) -> None:
        if shown.key != self._place[0]:
            self._steps, self._n_steps = StepBlocks(), 0
        self._shown = shown
        if shown.loaded is not None:
            n_before = bisect_right(shown.loaded.episode.steps, shown.step, key=attrgetter("index"))
            self._n_steps = max(self._n_steps, n_before + N_AT_ONCE)
        if self._n_left:
            start_worker(self._transcript, self._show_others, group="whole", exclusive=True)
        self._transcript.show_blocks(self._blocks(shown), subject=shown.key, follow=shown.follow)
        is_selected = (shown.key, shown.step) != self._place and not shown.follow
        self._place = shown.key, shown.step
        if is_selected and shown.step in self._whole.starts:
            self._transcript.go_to_block(self._whole.starts[shown.step])

    @property
    def _n_left(self) -> int:
        """Number of steps that are not shown yet."""
        loaded = self._shown.loaded
        return 0 if loaded is None else max(len(loaded.episode.steps) - self._n_steps, 0)

    async def _show_others(self) -> None:
        """Add the other steps, a part at a time, so that keys are handled meanwhile; the end stays at the end."""
        while self._n_left and self._transcript.is_attached:
            await asyncio.sleep(PAUSE_S)
            is_at_end = self._transcript.cursor == len(self._transcript.source) - 1
            self._n_steps += N_AT_ONCE
            self._transcript.show_blocks(self._blocks(self._shown), subject=self._shown.key)
            if is_at_end:
                self._transcript.move_to(len(self._transcript.source) - 1)

    def text(self, shown: ShownEpisode, *, raw: bool) -> str:
        self._n_steps += self._n_left
        return transcript_text(self._blocks(shown))

    def note(self, shown: ShownEpisode, key: Callable[[str], str]) -> Line:
        there = [name for name in FOLDS if self._whole.kinds.intersection(FOLDS[name])]
        parts = {"hidden": self._hidden, "folded": self._folded}
        texts = {what: ", ".join(filter(names.__contains__, there)) for what, names in parts.items()}
        return [Cell(" · ".join(f"{what}: {text}" for what, text in texts.items() if text), "dim")]

    def fold(self, name: str) -> bool:
        """Fold the blocks of a name of ``FOLDS``, then hide them, then show them again; ``show`` is called next.

        Returns:
            False if the episode has no such blocks.
        """
        self._n_steps += self._n_left
        self._blocks(self._shown)
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
        n_left, before = self._n_left, self._folded | self._hidden
        self._n_steps += n_left
        if shown.loaded is None or not before:
            return bool(n_left)
        blocks = self._steps.blocks(shown.loaded.episode).blocks
        found = {
            block.kind
            for block in blocks
            if expression.search("\n".join(block.lines)) or any(block.matches_hidden(expression))
        }
        for names in (self._folded, self._hidden):
            names -= {name for name in names if found.intersection(FOLDS[name])}
        return bool(n_left) or self._folded | self._hidden != before

    def _blocks(self, shown: ShownEpisode) -> list[Block]:
        if shown.loaded is None or not shown.has_steps:
            return failure_blocks(shown.loaded.missing_reason if shown.loaded else shown.failure)
        episode = shown.loaded.episode
        drawn = episode.version, episode.notes, frozenset(self._folded), frozenset(self._hidden), self._n_steps
        if episode is not self._episode or drawn != self._drawn:
            self._episode, self._drawn = episode, drawn
            self._whole = self._steps.blocks(episode, self._folded, self._hidden, self._n_steps)
        return self._whole.blocks
