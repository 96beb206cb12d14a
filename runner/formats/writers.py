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

    def __init__(self, file: OutputFile, encode_episode: EncodeEpisode) -> None:
        self._file = file
        self._encode = encode_episode

    def write(self, episode: EpisodeRecord) -> None:
        self._file.write(encode(self._encode(episode)) + b"\n")

    def finish(self) -> Mapping[str, int]:
        return NOTHING_LEFT_OUT


class ArrayWriter:
    """Writes one JSON array with an item and a line per episode."""

    def __init__(self, file: OutputFile, encode_episode: EncodeEpisode) -> None:
        self._file = file
        self._encode = encode_episode
        self._separator = b"[\n"

    def write(self, episode: EpisodeRecord) -> None:
        self._file.write(self._separator + encode(self._encode(episode)))
        self._separator = b",\n"

    def finish(self) -> Mapping[str, int]:
        self._file.write(b"[]\n" if self._separator == b"[\n" else b"\n]\n")
        return NOTHING_LEFT_OUT


class FolderWriter:
    """Writes one JSON file per episode, named by its id, which is a ULID and so a safe name."""

    def __init__(self, output: Output, encode_episode: EncodeEpisode) -> None:
        self._output = output
        self._encode = encode_episode

    def write(self, episode: EpisodeRecord) -> None:
        self._output.add(f"{episode.episode_id}.json", encode(self._encode(episode)) + b"\n")

    def finish(self) -> Mapping[str, int]:
        return NOTHING_LEFT_OUT
