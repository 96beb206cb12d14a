"""What a format of episodes is, and the registered formats by name.

A format is one object of the class ``Format``, registered under the entry point group ``agentgym.formats``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from runner.errors import ConfigError, RunnerError
from runner.plugins import FORMATS, load, registered_names

if TYPE_CHECKING:
    from runner.formats.output import Output
    from runner.store.episode_file import EpisodeRecord


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


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A format of episodes.

    Attributes:
        name: name on the command line.
        title: name and version for people, e.g. ``ATIF v1.8``.
        suffix: suffix of its file; empty if it writes a folder.
        open_writer: opens a writer; None if the format is only read.
        by_task: whether the writer needs the episodes of one task and agent one after another.
    """

    name: str
    title: str
    suffix: str = ""
    open_writer: OpenWriter | None = None
    by_task: bool = False


def find_format(name: str) -> Format:
    """Return the format of this name, ignoring case; nothing else is imported.

    Raises:
        ConfigError: no format has this name, or it cannot be imported.
    """
    found = load(FORMATS, name)
    if not isinstance(found, Format):
        raise ConfigError(f"{name} is registered as a format but is a {type(found).__name__}, not a Format")
    return found


def format_names() -> list[str]:
    """Return the names of all registered formats in alphabetical order."""
    return registered_names(FORMATS)
