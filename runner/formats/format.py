"""What a format of episodes is, and the registered formats by name, of the entry point group ``agentgym.formats``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from runner.errors import ConfigError, RunnerError
from runner.formats.reading import Found, Limits, Place, json_items, read_place
from runner.plugins import FORMATS, is_built_in, load, registered_names

if TYPE_CHECKING:
    from runner.formats.drafts import Draft
    from runner.formats.export import Output
    from runner.formats.recognition import Head
    from runner.store.episode_file import EpisodeRecord

logger = logging.getLogger(__name__)


class LeftOut(RunnerError):
    """A format cannot express an episode; the message is the reason, the same for all episodes with this cause."""


class EpisodeWriter(Protocol):
    """Writes episodes one after another into an output, so that an export of any size takes little memory."""

    def write(self, episode: EpisodeRecord) -> None:
        """Write one episode; raises ``LeftOut`` if the format cannot express it."""
        ...

    def finish(self) -> Mapping[str, int]:
        """Write what waits for further episodes, and the end of the files.

        Returns:
            The number of episodes that ``write`` accepted and that are in no file, by reason.
        """
        ...


NOTHING_LEFT_OUT: Mapping[str, int] = {}
"""Result of ``finish`` of a writer whose files have every episode that it accepted."""


OpenWriter: TypeAlias = "Callable[[Output], EpisodeWriter]"
"""Opens a writer on an output that has nothing yet."""


DecodeItem: TypeAlias = "Callable[[Any, Place], Iterable[Draft]]"
"""Returns the episodes of an item from its JSON value and its place; raises ``UnreadableItem`` with the reason."""


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """How a format is recognised and read.

    A file is read item by item, so a file of any size takes little memory, and a malformed item costs only itself.

    Attributes:
        signature: what a file of the format has, for people.
        matches: whether the beginning of a file is that of the format.
        decode: returns the episodes of an item.
        items: yields the items of a file or folder; raises ``StoreError`` if it cannot be read.
        read: returns an item again; raises ``StoreError``.
        difference: returns what an original has in addition to the export of its record, so that a later export
            equals the original; None if exports do not.
    """

    signature: str
    matches: Callable[[Head], bool]
    decode: DecodeItem
    items: Callable[[Path, Limits], Iterator[Found]] = json_items
    read: Callable[[Place, Limits], bytes] = read_place
    difference: Callable[[EpisodeRecord, Any], dict[str, Any] | None] | None = None


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A format of episodes; without ``open_writer`` it is only read, without ``reader`` only written.

    Attributes:
        suffix: suffix of its file; empty if it writes a folder.
        by_task: whether the writer needs the episodes of one task and agent one after another.
    """

    name: str
    title: str
    suffix: str = ""
    open_writer: OpenWriter | None = None
    by_task: bool = False
    reader: Reader | None = None


def find_format(name: str) -> Format:
    """Return the format of this name, ignoring case; nothing else is imported."""
    found = load(FORMATS, name)
    if not isinstance(found, Format):
        raise ConfigError(f"{name} is registered as a format but is a {type(found).__name__}, not a Format")
    return found


def writable_formats() -> dict[str, Format]:
    """Imports all formats."""
    return {name: each for name, each in sorted(_usable_formats().items()) if each.open_writer is not None}


def readable_formats() -> dict[str, Format]:
    """Those of this package come first; imports all formats."""
    return {name: each for name, each in _usable_formats().items() if each.reader is not None}


@cache  # a folder may have thousands of files to recognise
def _usable_formats() -> Mapping[str, Format]:
    found: dict[str, Format] = {}
    for name in sorted(registered_names(FORMATS), key=lambda each: not is_built_in(FORMATS, each)):
        try:
            found[name] = find_format(name)
        except ConfigError as exc:  # a package of others is broken or lacks a library
            logger.warning("the format %s is not available: %s", name, exc)
    return found
