"""The token file of an episode, ``<episode_id>.tokens`` beside its file: token ids and log-probabilities for training.

After the first line come records as frames (``runner.util.framing``). A step names its record by ``tokens_ref``; a last
record without a step has the calls whose step did not end. Each record is appended when its step ends, so those of
finished steps survive a crash; the file is synced before the episode file is written.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from runner.errors import StoreError
from runner.store.episode_file import EpisodeRecord, shared_fields
from runner.types.sequences import MAX_EPISODE_BYTES, TokenSequence, pack_sequences, unpack_sequences
from runner.util.files import create_private, make_folder, replace_file, write_all
from runner.util.framing import FrameBuffer, framed

logger = logging.getLogger(__name__)

TOKENS_SUFFIX: Final = ".tokens"
HEADER: Final = b"agentgym tokens 1\n"
MAX_RECORDS: Final = 1_000_001
"""Maximum number of records that are read: one per step, and the last one."""


class TokenFileWriter:
    """Appends the records of one running episode; its caller lets one thread at a time use it.

    A write that fails is logged and made up for by ``sync_token_file``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._failed = False

    def append(self, record: bytes) -> None:
        if self._failed:
            return
        try:
            if self._descriptor is None:
                make_folder(self._path.parent)
                self._descriptor = create_private(self._path)
                write_all(self._descriptor, HEADER)
            write_all(self._descriptor, framed(record))
        except OSError as exc:
            self._failed = True
            logger.warning("%s: token ids could not be written, and are written again at the end: %s", self._path, exc)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def sync_token_file(path: Path, records: Sequence[bytes]) -> None:
    """Sync the token file of an ended episode before its file is written, or write it if records are missing there.

    Token ids never prevent that the episode file is written: an error is logged.
    """
    if not (records or path.exists()):
        return
    content = encode_token_file(records)
    try:
        if not path.exists() or path.stat().st_size < len(content):
            replace_file(path, content)
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        logger.warning("%s: the token ids of the episode are lost: %s; free disk space", path, exc)


class TokenizedEpisode(EpisodeRecord, kw_only=True):
    """An episode with the token ids of its calls, for exports.

    ``sequences`` has a list for each step, empty without token ids, and ``unfinished`` those of calls whose step did
    not end. ``lost`` is why token ids that the episode refers to cannot be read; empty if all can.
    """

    sequences: list[list[TokenSequence]]
    unfinished: list[TokenSequence]
    lost: str


def tokenized(
    record: EpisodeRecord, sequences: list[list[TokenSequence]], unfinished: list[TokenSequence]
) -> TokenizedEpisode:
    """Return an episode that was not stored yet with these token ids; its steps refer to them from then on."""
    numbers = itertools.count()
    for step, found in zip(record.timesteps, sequences, strict=True):
        step.tokens_ref = next(numbers) if found else msgspec.UNSET
    return TokenizedEpisode(
        **shared_fields(record, TokenizedEpisode), sequences=sequences, unfinished=unfinished, lost=""
    )


def split_tokens(episode: TokenizedEpisode) -> tuple[EpisodeRecord, bytes]:
    """Return an episode as its file has it, and the content of its token file."""
    records: list[bytes] = []
    for sequences in filter(None, (*episode.sequences, episode.unfinished)):
        records.append(pack_sequences(sequences, MAX_EPISODE_BYTES - sum(map(len, records))))
    return without_tokens(episode), encode_token_file(records)


def without_tokens(episode: EpisodeRecord) -> EpisodeRecord:
    if not isinstance(episode, TokenizedEpisode):
        return episode
    return EpisodeRecord(**shared_fields(episode, EpisodeRecord))


def encode_token_file(records: Iterable[bytes]) -> bytes:
    return HEADER + b"".join(map(framed, records))


def decode_token_file(data: bytes) -> list[list[TokenSequence]]:
    """Return the records of a token file; an incomplete last one is dropped, as after a crash.

    Raises ``ValueError`` if the data is no token file, or a record is damaged.
    """
    if not data.startswith(HEADER):
        raise ValueError("it is no token file of this version")
    records = FrameBuffer(1 << 32).feed(data[len(HEADER) :])  # any length: a damaged one is that of a last record
    return [unpack_sequences(record) for record in itertools.islice(records, MAX_RECORDS)]


def with_sequences(record: EpisodeRecord, data: bytes | StoreError) -> TokenizedEpisode:
    """``data`` is the content of the token file of the episode, or why it cannot be read."""
    records: Sequence[list[TokenSequence]] = ()
    lost = ""
    try:
        if isinstance(data, StoreError):
            raise data
        records = decode_token_file(data)
    except (StoreError, ValueError) as exc:
        lost = str(exc)
    refs = [step.tokens_ref for step in record.timesteps]
    numbers = [ref if isinstance(ref, int) and 0 <= ref < len(records) else None for ref in refs]
    n_missing = sum(isinstance(ref, int) for ref in refs) - sum(number is not None for number in numbers)
    if n_missing and not lost:
        lost = f"{n_missing} records are missing"
    named = set(numbers)
    return TokenizedEpisode(
        **shared_fields(record, TokenizedEpisode),
        sequences=[[] if number is None else records[number] for number in numbers],
        unfinished=[each for number, found in enumerate(records) if number not in named for each in found],
        lost=lost,
    )
