"""Flags, tags and notes of an episode and its steps, as lines and blocks; all texts are untrusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.chat_blocks import Block, text_block
from agentgym_tui.presenters.number_format import format_time
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import ListedEpisode
from runner.types.notes import Note

MARK: Final = "✎"
"""Mark of what has a note or a tag."""
FLAG_MARK: Final = "⚑"
"""Mark of flags."""
MAX_AUTHOR: Final = 40
MAX_TAGS: Final = 20
"""Largest number of tags of an episode that are shown."""


def annotation_blocks(notes: Sequence[Note], step: int, *, is_first: bool) -> Iterator[Block]:
    """Yield the tags and notes of a step; before the first step, those of the episode, too.

    Args:
        notes: the tags and notes of the episode and its steps.
        step: index of the step.
        is_first: whether no step precedes it.
    """
    for place, where in ((None, "episode"), (step, "step")) if is_first else ((step, "step"),):
        own = [note for note in notes if note.step == place]
        if tags := [note.text for note in own if note.kind == "tag"]:
            text = " ".join(f"#{tag}" for tag in tags[:MAX_TAGS])
            yield text_block("annotation", f"{MARK} tags of the {where}", text)
        for note in own:
            if note.kind == "note":
                yield text_block(
                    "annotation", note_title(note, f" note on the {where}"), note.text, title_text=note.author or ""
                )


def note_title(note: Note, what: str = "") -> str:
    """Return time and author of a note; ``what`` is a literal of this program."""
    author = [note.author] if note.author else []
    return " · ".join([f"{MARK}{what}", format_time(note.at), *author])


def note_line(note: Note) -> Line:
    """Return a note in one line."""
    return [Cell(f"{note_title(note)}  ", "dim"), Cell(note.text)]


def tag_text(tags: Sequence[str]) -> str:
    """Return tags in one line, each after a ``#``; an empty text without tags."""
    return "".join([f"{' ' * bool(n)}#{tag}" for n, tag in enumerate(tags[:MAX_TAGS])])


def annotation_count(notes: Sequence[Note]) -> str:
    """Return how many notes an episode and its steps have; an empty text without any."""
    n = sum(note.kind == "note" for note in notes)
    return f"{MARK} {n:,} note{'s' * (n != 1)}" if n else ""


def episode_flags(episode: ListedEpisode) -> Sequence[tuple[str, int | None]]:
    """Return the flags of an episode, each with the step where it begins if that is known."""
    if isinstance(episode, Episode):
        return episode.found_flags
    return [(name, None) for name in episode.flags.split(",")] if episode.flags else []


def flag_text(name: str, step: int | None) -> str:
    """Return a flag and the step where it begins."""
    start = "" if step is None else f" from step {step:,}"
    return f"{name}{start}"
