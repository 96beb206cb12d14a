"""Exports stored episodes in a format, with a manifest and a report of what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec

from runner import __version__
from runner.errors import ConfigError, StoreError
from runner.formats.format import MANIFEST, EpisodeWriter, Format, LeftOut
from runner.formats.output import Output, WrittenFile
from runner.formats.selection import Candidate
from runner.store.episode_store import EpisodeStore
from runner.util.files import replace_file
from runner.util.safe_values import encode

UNREADABLE = "its file is missing or damaged"
"""Reason for each file and archive that could not be read, whether or not the query would have selected it."""


class Manifest(msgspec.Struct, kw_only=True):
    """What an export has, for people and for checking the files; ``left_out`` are numbers of episodes by reason."""

    format: str
    format_version: str
    version: str
    created_at: datetime
    query: str
    filters: list[str]
    n_selected: int = 0
    n_written: int = 0
    left_out: dict[str, int] = {}
    files: list[WrittenFile] = []


def export_episodes(
    store: EpisodeStore,
    candidates: Iterable[Candidate],
    left_out: Counter[str],
    target: Format,
    path: Path,
    *,
    query: str,
    filters: list[str],
    now: datetime,
) -> Manifest:
    """Write episodes in their order, one at a time, to ``path``, which must not exist, and return the manifest.

    The manifest is written, too. Raises ``ConfigError`` if the format cannot be written, ``StoreError`` if the output
    cannot be written or exists.
    """
    if target.open_writer is None:
        raise ConfigError(f"{target.title} can be read, but not written")
    reasons = Counter(left_out)
    n_read = n_written = 0
    with Output(path, is_folder=not target.suffix) as output:
        writer = target.open_writer(output)
        for candidate in candidates:
            n_written += _write(store, candidate, writer, reasons)
            n_read += 1
        unused = Counter(writer.finish())
        reasons += unused
        manifest = Manifest(
            format=target.name,
            format_version=target.title,
            version=__version__,
            created_at=now,
            query=query,
            filters=filters,
            n_selected=n_read + left_out.total(),
            n_written=n_written - unused.total(),
            left_out=dict(reasons.most_common()),
            files=output.complete(),
        )
        data = msgspec.json.format(encode(manifest), indent=1) + b"\n"
        if not target.suffix:
            output.add(MANIFEST, data)
    if target.suffix:
        beside = path.with_name(f"{path.name}.{MANIFEST}")
        try:
            replace_file(beside, data)
        except OSError as exc:
            raise StoreError(f"{path} is written, but not {beside.name}: {exc.strerror}") from exc
    return manifest


def _write(store: EpisodeStore, candidate: Candidate, writer: EpisodeWriter, reasons: Counter[str]) -> bool:
    try:
        writer.write(store.load_with_tokens(store.path(candidate.batch_id, candidate.episode_id)))
    except LeftOut as exc:
        reasons[str(exc)] += 1
    except StoreError:
        reasons[UNREADABLE] += 1
    else:
        return True
    return False
