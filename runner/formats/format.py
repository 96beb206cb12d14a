"""What a format of episodes is, those of the entry point group ``agentgym.formats``, and which of them a file has."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from runner.errors import ConfigError, RunnerError, StoreError
from runner.formats.reading import BOM, LIMITS, Found, Limits, Place, is_document, json_items, read_head, read_place
from runner.plugins import FORMATS, is_built_in, load, registered_names
from runner.util.json_accessors import as_dict, as_list, decode_json

if TYPE_CHECKING:
    from runner.formats.drafts import Draft
    from runner.store.episode_file import EpisodeRecord


logger = logging.getLogger(__name__)

MANIFEST: Final = "manifest.json"
"""Name of the manifest in an exported folder; that of a file ``x.jsonl`` is ``x.jsonl.manifest.json`` beside it."""
MAX_NAMES: Final = 1_000
"""Largest number of names of an archive or a folder that a signature sees."""
_ZIP: Final = b"PK\3\4"
_N_LINES: Final = 5
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},"]', re.DOTALL)


class LeftOut(RunnerError):
    """A format cannot express an episode; the message is the reason, the same for all episodes with this cause."""


class EpisodeWriter(Protocol):
    """Writes episodes one after another, so that an export of any size takes little memory."""

    def write(self, episode: EpisodeRecord) -> None:
        """Raises ``LeftOut`` if the format cannot express the episode."""

    def finish(self) -> Mapping[str, int]:
        """Write what waits for further episodes, and the end of the files.

        Return the number of episodes that ``write`` accepted and that are in no file, by reason.
        """


EncodeEpisode: TypeAlias = "Callable[[EpisodeRecord], object]"
DecodeItem: TypeAlias = "Callable[[Any, Place], Iterable[Draft]]"


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a format of episodes, which one writer and one reader use for all formats.

    Items are read and written one at a time, so a file of any size takes little memory, and a malformed item costs only
    itself.

    Attributes:
        encode: returns an episode as data that JSON can represent, or raises ``LeftOut``. That is a line of a
            ``.jsonl`` file, an element of the array of a ``.json`` file, or a file of its own in a folder.
        suffix: of the file that is written; "" for a folder.
        file: path of the only file in the folder; "" for a file per episode.
        open_writer: in place of ``encode``, where the file is not one value per episode; its argument is the new file.
        by_task: the writer needs the attempts of a task one after another.
        signature: what a file of the format has, for people.
        decode: returns the episodes of an item from its JSON value and its place; raises ``UnreadableItem`` with the
            reason.
        items: yields the items of a file or folder; raises ``StoreError`` if it cannot be read.
        read: returns an item again; raises ``StoreError``.
    """

    name: str
    title: str
    encode: EncodeEpisode | None = None
    suffix: str = ""
    file: str = ""
    open_writer: Callable[[IO[bytes]], EpisodeWriter] | None = None
    by_task: bool = False
    signature: str = ""
    matches: Callable[[Head], bool] = lambda head: False
    decode: DecodeItem | None = None
    items: Callable[[Path, Limits], Iterator[Found]] = json_items
    read: Callable[[Place, Limits], bytes] = read_place


def find_format(name: str) -> Format:
    """Return the format of this name, ignoring case; nothing else is imported."""
    found = load(FORMATS, name)
    if not isinstance(found, Format):
        raise ConfigError(f"{name} is registered as a format but is a {type(found).__name__}, not a Format")
    return found


def writable_formats() -> dict[str, Format]:
    """Imports all formats."""
    usable = sorted(_usable_formats().items())
    return {name: each for name, each in usable if each.encode is not None or each.open_writer is not None}


def readable_formats() -> dict[str, Format]:
    """Those of this package come first; imports all formats."""
    return {name: each for name, each in _usable_formats().items() if each.decode is not None}


@cache  # a folder may have thousands of files to recognise
def _usable_formats() -> Mapping[str, Format]:
    found: dict[str, Format] = {}
    for name in sorted(registered_names(FORMATS), key=lambda each: not is_built_in(FORMATS, each)):
        try:
            found[name] = find_format(name)
        except ConfigError as exc:  # a package of others is broken or lacks a library
            logger.warning("the format %s is not available: %s", name, exc)
    return found


class Head(msgspec.Struct, frozen=True):
    """What a signature is checked against; only the beginning of ``first``, the first JSON object, may be known.

    ``names`` are names of files in an archive, or of entries of a folder; at most ``MAX_NAMES``; none of a damaged one.
    """

    kind: Literal["json", "zip", "parquet", "folder", "other"]
    first: dict[str, Any] = {}
    names: tuple[str, ...] = ()
    path: Path = Path()

    def has(self, *names: str) -> bool:
        return self.first.keys() >= set(names)

    def lists(self, name: str, key: str) -> bool:
        """Return whether an object in the list of this name has a key."""
        return any(key in as_dict(each) for each in as_list(self.first.get(name)))


class Source(NamedTuple):
    path: Path
    format: Format | None


def recognise(path: Path) -> Format | None:
    """Return the format of a file or folder; None if it has no signature or cannot be read."""
    try:
        head = head_of(path)
    except (StoreError, OSError, ValueError):
        return None
    if head.kind == "other":
        return None
    return next((each for each in readable_formats().values() if each.matches(head)), None)


def unknown_format(path: Path) -> str:
    from runner.store.archive import read_directory

    try:
        if not path.is_dir() and read_head(path, len(_ZIP)) == _ZIP:
            read_directory(path)
    except StoreError as exc:  # which archive it is cannot be known
        return str(exc)
    known = ", ".join(each.title for each in readable_formats().values())
    return f"{path} has none of the known formats ({known}); name one with agentgym-runner import --format"


def sources(path: Path, chosen: Format | None = None, limits: Limits = LIMITS) -> Iterator[Source]:
    """Yield the files and folders to read at and below a path; links are not followed, manifests left out.

    Raises ``ConfigError`` if there is no such file or folder.
    """
    if not path.exists():
        raise ConfigError(f"there is no file or folder {path}; check the path")
    if not path.is_dir():
        yield Source(path, chosen or recognise(path))
        return
    yield from _below(path.resolve(), chosen, limits, limits.folder_depth, [limits.files])


def _below(folder: Path, chosen: Format | None, limits: Limits, depth: int, n_left: list[int]) -> Iterator[Source]:
    found = recognise(folder)
    if found is not None and chosen in (None, found):
        yield Source(folder, found)
        return
    try:
        with os.scandir(folder) as entries:
            named = sorted((each.name, each.is_dir(follow_symlinks=False)) for each in entries if not each.is_symlink())
    except OSError:
        yield Source(folder, None)
        return
    for name, is_folder in named:
        if is_folder and depth > 1:
            yield from _below(folder / name, chosen, limits, depth - 1, n_left)
        elif not is_folder and n_left[0] > 0 and not name.endswith(MANIFEST):
            n_left[0] -= 1
            yield Source(folder / name, recognise(folder / name) if chosen is None else chosen)


def head_of(path: Path) -> Head:
    """Raises a ``StoreError`` if the file or folder cannot be read."""
    from runner.store.archive import read_directory

    if path.is_dir():
        with os.scandir(path) as entries:
            names = tuple(sorted(entry.name for entry, _ in zip(entries, range(MAX_NAMES), strict=False)))
        return Head("folder", names=names, path=path)
    data = read_head(path)
    if data.startswith(_ZIP):
        try:
            return Head("zip", names=tuple(read_directory(path))[:MAX_NAMES], path=path)
        except StoreError:  # its format reports the damage when it is read
            return Head("zip", path=path)
    if data.startswith(b"PAR1"):
        return Head("parquet", path=path)
    first = first_object(data)
    return Head("json" if first else "other", first, path=path)


def first_object(data: bytes) -> dict[str, Any]:
    """Return the first JSON object at the beginning of a file, as far as it is known; empty if there is none."""
    data = data.removeprefix(BOM).lstrip()
    if data.startswith(b"["):
        start = data.find(b"{")
        return _partial_object(data[start:]) if start > 0 else {}
    if is_document(data):
        return _partial_object(data)
    *lines, last = data.split(b"\n", _N_LINES)
    found = next(filter(None, (as_dict(decode_json(line)) for line in lines)), {})
    return found or _partial_object(last.strip())  # the end of what was read may cut it off


def _partial_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object at the start of ``data``; of one that is cut off, what its last bracket or comma ends."""
    closers, end = list[bytes](), 0
    for match in _TOKENS.finditer(data if data.startswith(b"{") else b""):
        token = match[0]
        if token == b'"':  # of a string that is cut off
            break
        if token in (b"{", b"["):
            closers.append(b"}" if token == b"{" else b"]")
        elif token in (b"}", b"]"):
            closers.pop()
        end = match.start() if token == b"," else end if token.startswith(b'"') else match.end()
        if not closers:
            break
    return as_dict(decode_json(data[:end] + b"".join(reversed(closers))))
