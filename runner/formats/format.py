"""What a format of episodes is, and the registered formats by name, of the entry point group ``agentgym.formats``."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from runner.errors import ConfigError, RunnerError, StoreError
from runner.formats.reading import LIMITS, Found, Limits, Place, is_document, json_items, read_head, read_place
from runner.plugins import FORMATS, is_built_in, load, registered_names
from runner.util.json_accessors import as_dict, as_list, decode_json

if TYPE_CHECKING:
    from runner.formats.drafts import Draft
    from runner.formats.output import Output
    from runner.store.episode_file import EpisodeRecord


logger = logging.getLogger(__name__)

MANIFEST: Final = "manifest.json"
"""Name of the manifest in an exported folder; that of a file ``x.jsonl`` is ``x.jsonl.manifest.json`` beside it."""
MAX_NAMES: Final = 1_000
"""Largest number of names of an archive or a folder that a signature sees."""
_ZIP: Final = b"PK\3\4"
_N_LINES: Final = 5
_BOM: Final = b"\xef\xbb\xbf"
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|(?P<open>"(?:[^"\\]|\\.)*+\\?\Z)|[\[\]{}]', re.DOTALL)
_CUT_ESCAPE = re.compile(rb"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_CUT_VALUE = re.compile(rb"[^\s,:\[\]{}\"]+\Z")


class LeftOut(RunnerError):
    """A format cannot express an episode; the message is the reason, the same for all episodes with this cause."""


class EpisodeWriter(Protocol):
    """Writes episodes one after another into an output, so that an export of any size takes little memory."""

    def write(self, episode: EpisodeRecord) -> None:
        """Raises ``LeftOut`` if the format cannot express the episode."""

    def finish(self) -> Mapping[str, int]:
        """Write what waits for further episodes, and the end of the files.

        Return the number of episodes that ``write`` accepted and that are in no file, by reason.
        """


NOTHING_LEFT_OUT: Mapping[str, int] = {}
"""Result of ``finish`` of a writer whose files have every episode that it accepted."""

OpenWriter: TypeAlias = "Callable[[Output], EpisodeWriter]"
"""Opens a writer on an output that has nothing yet."""
DecodeItem: TypeAlias = "Callable[[Any, Place], Iterable[Draft]]"
"""Returns the episodes of an item from its JSON value and its place; raises ``UnreadableItem`` with the reason."""


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """How a format is recognised and read: item by item, so a file of any size takes little memory.

    A malformed item costs only itself.

    Attributes:
        signature: what a file of the format has, for people.
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

    It writes a folder if ``suffix`` is empty. ``by_task``: the writer needs the attempts of a task one after another.
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


class Head(msgspec.Struct, frozen=True):
    """What a signature is checked against; only the beginning of ``first``, the first JSON object, may be known.

    ``names`` are names of files in an archive, or of entries of a folder; at most ``MAX_NAMES``; none of a damaged one.
    """

    kind: Literal["json", "zip", "parquet", "folder", "other"]
    first: dict[str, Any] = {}
    names: tuple[str, ...] = ()
    path: Path = Path()

    def list(self, name: str) -> list[dict[str, Any]]:
        return [as_dict(each) for each in as_list(self.first.get(name))]


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
    return next((each for each in readable_formats().values() if each.reader and each.reader.matches(head)), None)


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
    if path.is_dir():
        with os.scandir(path) as entries:
            names = tuple(sorted(entry.name for entry, _ in zip(entries, range(MAX_NAMES), strict=False)))
        return Head("folder", names=names, path=path)
    data = read_head(path)
    if data.startswith(_ZIP):
        return Head("zip", names=_names_in_archive(path), path=path)
    if data.startswith(b"PAR1"):
        return Head("parquet", path=path)
    first = first_object(data)
    return Head("json", first, path=path) if first else Head("other", path=path)


def _names_in_archive(path: Path) -> tuple[str, ...]:
    """Return the names in an archive; none if it is damaged, which its format reports when it is read."""
    from runner.store.archive import read_directory

    try:
        return tuple(read_directory(path))[:MAX_NAMES]
    except StoreError:
        return ()


def first_object(data: bytes) -> dict[str, Any]:
    """Return the first JSON object at the beginning of a file, as far as it is known; empty if there is none."""
    data = data.removeprefix(_BOM).lstrip()
    if data.startswith(b"["):
        start = data.find(b"{")
        return _partial_object(data[start:]) if start > 0 else {}
    if is_document(data):
        return _partial_object(data)
    *lines, last = data.split(b"\n", _N_LINES)
    found = next(filter(None, (as_dict(decode_json(line)) for line in lines)), {})
    return found or _partial_object(last.strip())  # the end of what was read may cut it off


def _partial_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object at the start of ``data``; one that is cut off is closed where it ends."""
    if not data.startswith(b"{"):
        return {}
    closers: list[bytes] = []
    in_string = False
    for match in _TOKENS.finditer(data):
        token = match[0]
        in_string = match["open"] is not None
        if token in (b"{", b"["):
            closers.append(b"}" if token == b"{" else b"]")
        elif token in (b"}", b"]"):
            closers.pop()
            if not closers:
                return as_dict(decode_json(data[: match.end()]))
    if in_string:
        data = _CUT_ESCAPE.sub(rb"\1", data).decode("utf-8", "ignore").encode() + b'"'
    else:
        data = _CUT_VALUE.sub(b"null", data.rstrip())
    tail = b"".join(reversed(closers))
    values = (decode_json(data + filler + tail) for filler in (b"", b"null", b":null", b'"":null'))
    return as_dict(next((value for value in values if value is not None), None))
