"""Imports the episodes of foreign files: each becomes an episode file with an id that follows from its content."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from runner.errors import StoreError, catch_foreign
from runner.formats.drafts import Attempts, Draft, build_record
from runner.formats.foreign_values import UnreadableItem
from runner.formats.format import Format, Source, sources
from runner.formats.reading import LIMITS, Item, Limits, Malformed, Place, decode_item
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeStore
from runner.util.clock import new_ulid

MAX_REPORTED = 100
"""Largest number of malformed items, and of files without a format, that a report names."""
MAX_COMPARED: Final = 200_000
"""Largest number of different items of a file that are compared with later ones."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A malformed item: its file, what it is and its number, e.g. ``line`` 17, and the reason."""

    path: str
    unit: str
    number: int
    reason: str


class ImportReport(msgspec.Struct, kw_only=True):
    """What an import has done.

    ``malformed`` and ``unrecognised`` (files without a known format) name the first ``MAX_REPORTED``, ``missing`` has
    the number of new episodes by what their files lack.
    """

    batch_id: str | None = None
    n_imported: int = 0
    n_known: int = 0
    n_malformed: int = 0
    n_unrecognised: int = 0
    formats: dict[str, int] = {}
    missing: dict[str, int] = {}
    malformed: list[Loss] = []
    unrecognised: list[str] = []


class ReadEpisode(NamedTuple):
    record: EpisodeRecord
    draft: Draft
    place: Place


def read_episodes(source: Source, limits: Limits = LIMITS) -> Iterator[ReadEpisode | Malformed]:
    """Yield the episodes of a file or folder in their order, and the items that cannot be read."""
    if source.format is None or source.format.decode is None:
        raise StoreError(f"{source.path} has no format that can be read")
    modified_at, n_same = modified_time(source.path), Counter[int]()
    for found in source.format.items(source.path, limits):
        if isinstance(found, Malformed):
            yield found
            continue
        key = hash(found.data)
        items = [Item(found.place._replace(n_same=n_same[key]), found.data)]
        del found  # an item may be large
        if len(n_same) < MAX_COMPARED or key in n_same:
            n_same[key] += 1
        yield from episodes_of(items.pop(), source.format, limits, modified_at)


def episodes_of(item: Item, form: Format, limits: Limits, modified_at: datetime) -> Iterator[ReadEpisode | Malformed]:
    """Yield the episodes of an item, or why it cannot be read; readers of other packages may raise anything."""
    reasons: list[str] = []  # not the errors, whose tracebacks would keep the item
    place, items = item.place, [item]
    del item

    def note(exc: BaseException) -> None:
        reasons.append(str(exc) if isinstance(exc, ValueError) else f"{type(exc).__name__}: {exc}")

    with catch_foreign(note):
        yield from decoded_episodes(items.pop(), form, limits, modified_at)
    if reasons:
        yield Malformed(place, reasons[0])


def decoded_episodes(item: Item, form: Format, limits: Limits, modified_at: datetime) -> Iterator[ReadEpisode]:
    """Their ids follow from the content of the item and ``place.n_same``.

    Raises a ``ValueError`` with the reason if the item cannot be read.
    """
    assert form.decode is not None
    place, digest = item.place, hashlib.sha256(item.data)
    drafts = form.decode(decode_item(item.data, limits), place)
    del item
    for number, draft in enumerate(drafts):
        if number >= limits.branches:
            raise UnreadableItem(f"it has more than {limits.branches} branches; the others are left out")
        own = digest.copy()
        own.update(b"\0%d" % number + (b"\0%d" % place.n_same if place.n_same else b""))
        yield ReadEpisode(build_record(draft, form.title, place, own.digest()[:10], modified_at), draft, place)


def modified_time(path: Path) -> datetime:
    try:
        return datetime.fromtimestamp(os.lstat(path).st_mtime, UTC)
    except (OSError, ValueError, OverflowError) as exc:
        raise StoreError(f"{path} cannot be read: {exc}") from exc


class Importer:
    """Stores the episodes of files as one batch, whose id has the time ``now``."""

    def __init__(self, store: EpisodeStore, index: EpisodeIndex, now: datetime, limits: Limits = LIMITS) -> None:
        self._store, self._index, self._limits = store, index, limits
        self._batch_id = new_ulid(round(now.timestamp() * 1000))
        self._attempts = Attempts()
        self._formats, self._missing = Counter[str](), Counter[str]()
        self.report = ImportReport()

    def import_path(self, path: Path, chosen: Format | None = None) -> ImportReport:
        for source in sources(path, chosen, self._limits):
            if source.format is None:
                self.report.n_unrecognised += 1
                if len(self.report.unrecognised) < MAX_REPORTED:
                    self.report.unrecognised.append(str(source.path))
            else:
                self._import_source(source)
        self.report.formats, self.report.missing = dict(self._formats), dict(self._missing.most_common())
        return self.report

    def _import_source(self, source: Source) -> None:
        assert source.format is not None
        self._formats[source.format.title] += 1
        episodes = read_episodes(source, self._limits)
        while True:
            try:
                found = next(episodes, None)
            except StoreError as exc:
                self._add_malformed(Malformed(Place(source.path, 1, unit="file"), str(exc)))
                return
            if found is None:
                return
            if isinstance(found, Malformed):
                self._add_malformed(found)
            else:
                self._add(found)
            del found  # an episode may be large

    def _add(self, found: ReadEpisode) -> None:
        record = found.record
        self._attempts.number(record, found.draft)
        known = self._index.select("SELECT batch_id FROM episodes WHERE episode_id = ? LIMIT 1", (record.episode_id,))
        if known:
            self.report.n_known += 1
            if self.report.batch_id is None:  # a file that has grown since its last import
                self._batch_id = str(known[0][0])
            return
        if self.report.batch_id is None:
            self._store.create_batch_folder(self._batch_id)
            self.report.batch_id = self._batch_id
        record.batch_id = self._batch_id
        self._store.save(record)
        self._index.insert_settled(record)
        self.report.n_imported += 1
        self._missing.update(record.origin.missing if record.origin else ())

    def _add_malformed(self, found: Malformed) -> None:
        self.report.n_malformed += 1
        if len(self.report.malformed) < MAX_REPORTED:
            place = found.place
            loss = Loss(path=str(place.path), unit=place.unit, number=place.number, reason=found.reason[:500])
            self.report.malformed.append(loss)
