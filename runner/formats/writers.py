"""Writers shared by formats: a line, an item of an array, or a file per episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from runner.formats.format import NOTHING_LEFT_OUT
from runner.formats.output import Output, OutputFile
from runner.store.episode_file import EpisodeRecord
from runner.util.safe_values import encode

EncodeEpisode: TypeAlias = Callable[[EpisodeRecord], object]
"""Returns an episode as data that JSON can represent; raises ``LeftOut`` if the format cannot express it."""


class LinesWriter:
    """Writes one line of JSON per episode."""

    def __init__(self, output: Output, encode_episode: EncodeEpisode) -> None:
        self._file = output.main
        self._encode = encode_episode

    def write(self, episode: EpisodeRecord) -> None:
        self._file.write(encode(self._encode(episode)) + b"\n")

    def finish(self) -> Mapping[str, int]:
        """Each line is complete."""
        return NOTHING_LEFT_OUT


class ArrayEncoder:
    """Writes items into a file as one JSON array, a line per item."""

    def __init__(self, file: OutputFile) -> None:
        """The file must be empty."""
        self._file = file
        self._separator = b"[\n"

    def write(self, item: object) -> None:
        self._file.write(self._separator + encode(item))
        self._separator = b",\n"

    def finish(self) -> None:
        self._file.write(b"[]\n" if self._separator == b"[\n" else b"\n]\n")


class ArrayWriter:
    """Writes one JSON array with an item per episode."""

    def __init__(self, output: Output, encode_episode: EncodeEpisode) -> None:
        self._array = ArrayEncoder(output.main)
        self._encode = encode_episode

    def write(self, episode: EpisodeRecord) -> None:
        self._array.write(self._encode(episode))

    def finish(self) -> Mapping[str, int]:
        self._array.finish()
        return NOTHING_LEFT_OUT


class FolderWriter:
    """Writes one JSON file per episode, named by its id."""

    def __init__(self, output: Output, encode_episode: EncodeEpisode) -> None:
        self._output = output
        self._encode = encode_episode

    def write(self, episode: EpisodeRecord) -> None:
        """The id of a stored episode is a ULID, so it is a safe name."""
        data = encode(self._encode(episode))
        self._output.add(f"{episode.episode_id}.json", data + b"\n")

    def finish(self) -> Mapping[str, int]:
        return NOTHING_LEFT_OUT
