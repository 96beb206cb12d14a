"""What can be added to the console: tables of commands and screens, and what a session must have for an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from agentgym_tui.safe_text import sanitize_message

if TYPE_CHECKING:
    from textual.screen import Screen

    from agentgym_tui.sessions.protocols import Session

Scope: TypeAlias = str
"""The screens or widgets in which keys apply: a screen, a dialog, a kind of widget, ``run`` or ``everywhere``."""

APP_SCOPES: Final[tuple[Scope, ...]] = ("everywhere", "run")
"""Scopes whose commands the app executes on every screen; those of ``run`` start runs."""

ScreenFactory: TypeAlias = "Callable[..., Screen[None]]"
"""Makes a screen from a ``ScreenContext``."""


class HasId(Protocol):
    """An entry of a registry."""

    @property
    def id(self) -> str:
        """The entry's id, which never changes."""
        ...


Entry = TypeVar("Entry", bound=HasId)


class Registry(Generic[Entry]):
    """Entries by id, in the order in which they were added.

    Args:
        entries: the console's own entries.
    """

    def __init__(self, *entries: Entry) -> None:
        self._entries: dict[str, Entry] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> Entry:
        """Add an entry and return it, so that this method can decorate a class.

        Raises:
            ValueError: another entry has the same id.
        """
        if self._entries.setdefault(entry.id, entry) is not entry:
            raise ValueError(f"the id {entry.id!r} is in use; choose another one")
        return entry

    def remove(self, id: str) -> None:
        """Remove the entry with this id."""
        del self._entries[id]

    def get(self, id: str) -> Entry | None:
        """Return the entry with this id; None if there is none."""
        return self._entries.get(id)

    def __getitem__(self, id: str) -> Entry:
        return self._entries[id]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())


class Requirement(NamedTuple):
    """What a session must have for a screen or a command.

    Attributes:
        is_met: returns whether a session has it.
        reason: returns the reply to a user who requests the screen or command in another session.
        prepare: called before the screen is shown; returns a false value as long as there is nothing to show.
    """

    is_met: Callable[[Session], bool]
    reason: Callable[[Session], str]
    prepare: Callable[[Session], object] = lambda session: True


ALWAYS: Final = Requirement(lambda session: True, lambda session: "")
NODE: Final = Requirement(lambda session: not session.read_only, lambda session: sanitize_message(session.read_only))
"""A node that accepts control requests."""
HELD: Final = Requirement(
    lambda session: NODE.is_met(session) and session.store.holding_node is not None,
    lambda session: NODE.reason(session) or "no earlier event is left to send to an external broker",
)
"""A node with earlier events that its external broker has not got."""
BUS: Final = Requirement(
    lambda session: session.events is not None,
    lambda session: "files have no bus: use `agentgym-tui launch` or `agentgym-tui watch`",
)
LIVE: Final = Requirement(
    lambda session: session.events is not None,
    lambda session: "files have no runs: use `agentgym-tui launch` or `agentgym-tui watch`",
)
LIBRARY: Final = Requirement(
    lambda session: session.library is not None,
    lambda session: "a watched bus has no stored episodes: use `agentgym-tui launch` or `agentgym-tui open`",
)
"""Stored episodes."""
RESULTS: Final = Requirement(
    lambda session: session.library is not None or session.received is not None, LIBRARY.reason
)
"""Episodes that have results: stored ones, or those that a bus has reported."""
CURATION: Final = Requirement(
    lambda session: session.curation is not None,
    lambda session: "these episodes are only read: use `agentgym-tui launch` in their state directory",
)
"""Stored episodes that may be archived and deleted."""
ARCHIVE: Final = Requirement(
    lambda session: session.curation is not None or session.archiver is not None, LIBRARY.reason
)
"""Stored episodes that may be archived, or opened ones that may be copied into an archive."""
EXPORT: Final = Requirement(lambda session: session.exporter is not None, LIBRARY.reason)
"""Stored episodes that can be written in other formats."""
LOGS: Final = Requirement(
    lambda session: bool(session.logs) or session.has_node_logs,
    lambda session: (
        "the state directory of the node is not known yet"
        if session.has_node_logs
        else "no log is open: use `agentgym-tui open FILE.jsonl`"
    ),
    lambda session: session.open_logs(),
)


class Command(NamedTuple):
    """A command with its default keys.

    Attributes:
        id: the id, which never changes, because user keymaps contain it.
        keys: Textual key names, separated by commas.
        title: label in the footer.
        action: name of the ``action_…`` method without this prefix, with arguments if there are any.
        scope: the screens or widgets in which the keys apply.
        help: one line for the help screen.
        footer: whether the footer shows the command.
        available: what a session must have, else the command is not listed.
    """

    id: str
    keys: str
    title: str
    action: str
    scope: Scope
    help: str = ""
    footer: bool = True
    available: Requirement = ALWAYS


class ScreenSpec(NamedTuple):
    """A screen that the user selects by a key.

    Attributes:
        id: the id, which is also the name of its mode and of the screen that the UI state remembers.
        key: Textual name of the key that shows it.
        title: label in the footer.
        factory: makes the screen when it is first shown.
        available: what a session must have.
        help: one line for the help screen.
        styles: the style sheet in ``styles/`` that is loaded at the start if the screen is the first one.
    """

    id: str
    key: str
    title: str
    factory: ScreenFactory
    available: Requirement = ALWAYS
    help: str = ""
    styles: str = ""

    @property
    def command(self) -> Command:
        """The command that shows the screen."""
        action = f"show_screen({self.id!r})"
        return Command(f"app.{self.id}", self.key, self.title, action, "everywhere", self.help, True, self.available)


def lazy(path: str) -> Callable[..., Any]:
    """Return a function that imports the class ``module:Class`` of this package when it is first called."""

    def make(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what the class makes
        module, _, name = path.partition(":")
        return getattr(import_module(f"agentgym_tui.{module}"), name)(*args, **kwargs)

    return make


LIVE_SCREEN: Final = ScreenSpec(
    "live", "1", "Live", lazy("screens.live.screen:LiveScreen"), ALWAYS, "running episodes", "live.tcss"
)
EPISODES_SCREEN: Final = ScreenSpec(
    "episodes",
    "2",
    "Episodes",
    lazy("screens.episodes.screen:EpisodesScreen"),
    ALWAYS,
    "stored and running episodes",
    "episodes.tcss",
)
EVENTS_SCREEN: Final = ScreenSpec(
    "events", "3", "Events", lazy("screens.events.screen:EventsScreen"), BUS, "all bus messages", "lines.tcss"
)
LOGS_SCREEN: Final = ScreenSpec(
    "logs", "4", "Logs", lazy("screens.logs.screen:LogScreen"), LOGS, "logs of the node, or opened ones", "lines.tcss"
)
RESULTS_SCREEN: Final = ScreenSpec(
    "results",
    "7",
    "Results",
    lazy("screens.results.screen:ResultsScreen"),
    RESULTS,
    "success rates, tasks, comparisons",
    "results.tcss",
)
SCREENS: Final = Registry(
    LIVE_SCREEN,
    EPISODES_SCREEN,
    EVENTS_SCREEN,
    LOGS_SCREEN,
    ScreenSpec(
        "machine",
        "5",
        "Machine",
        lazy("screens.machine.screen:MachineScreen"),
        BUS,
        "GPUs, servers, workers, broker, and what is wrong with them",
        "runs.tcss",
    ),
    ScreenSpec(
        "runs", "6", "Runs", lazy("screens.runs.screen:RunsScreen"), LIVE, "what runs, waits and has ended", "runs.tcss"
    ),
    RESULTS_SCREEN,
)
"""The screens, in the order in which the key bar lists them."""
