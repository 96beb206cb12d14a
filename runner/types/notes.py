"""Tags and notes of episodes: what is stored, and what a change of them adds and removes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

MAX_TAG_CHARS: Final = 64
MAX_NOTE_CHARS: Final = 4000
MAX_PER_EPISODE: Final = 200
"""Maximum number of tags and notes of one episode and its steps."""
MAX_STEP: Final = 2**62
"""Exclusive limit of the index of a step."""

Kind: TypeAlias = Literal["tag", "note"]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A tag or a note of an episode, or of one of its steps."""

    id: Annotated[str, Meta(description="its ULID")]
    step: Annotated[int | None, Meta(description="index of the timestep; null: the whole episode")] = None
    kind: Annotated[Kind, Meta(description="`tag`: a word; `note`: a text")]
    text: Annotated[str, Meta(description="the tag, of at most 64 characters, or the text, of at most 4000; untrusted")]
    at: Annotated[datetime, Meta(description="time of its creation (RFC 3339 in UTC)")]
    author: Annotated[str | None, Meta(description="name that its author gave; untrusted")] = None


class NoteChange(msgspec.Struct, frozen=True, kw_only=True):
    """What to add to an episode or a step, and what to remove, all at once.

    Tags that it already has stay as they are, tags to remove that it does not have are ignored. ``note_id`` is the id
    of the ``note`` to add, so that a repeated change adds no second one; without ``note``, the one to remove.
    """

    step: int | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    note: str | None = None
    note_id: str | None = None
    author: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.add or self.remove or self.note is not None or self.note_id is not None)
