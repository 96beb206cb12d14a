"""What can be added to the console: tables of commands and screens, and what a session must have for an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from agentgym_tui.safe_text import sanitize_message

if TYPE_CHECKING:
    from textual.screen import Screen

    from agentgym_tui.sessions.session import Session

APP_SCOPES: Final = ("everywhere", "run")
"""Scopes whose commands the app executes on every screen; those of ``run`` start runs."""


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Entry = TypeVar("Entry", bound=HasId)


class Registry(Generic[Entry]):
    """Entries by id, in the order in which they were added; a package adds its own when it is imported."""

    def __init__(self, *entries: Entry) -> None:
        self._entries: dict[str, Entry] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> Entry:
        """Add an entry and return it; raises ``ValueError`` if another one has the same id."""
        if self._entries.setdefault(entry.id, entry) is not entry:
            raise ValueError(f"the id {entry.id!r} is in use; choose another one")
        return entry

    def remove(self, id: str) -> None:
        del self._entries[id]

    def get(self, id: str) -> Entry | None:
        return self._entries.get(id)

    def __getitem__(self, id: str) -> Entry:
        return self._entries[id]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())


class Requirement(NamedTuple):
    """What a session must have for a screen or a command, else the user gets ``reason`` as a reply."""

    is_met: Callable[[Session], bool]
    reason: Callable[[Session], str]
    prepare: Callable[[Session], object] = lambda session: True  # before a screen is shown; false: nothing to show yet


ALWAYS: Final = Requirement(lambda session: True, lambda session: "")
NODE: Final = Requirement(lambda session: not session.read_only, lambda session: sanitize_message(session.read_only))
HELD: Final = Requirement(
    lambda session: NODE.is_met(session) and session.store.holding_node is not None,
    lambda session: NODE.reason(session) or "no earlier event is left to send to an external broker",
)
"""A node with earlier events that its external broker has not got."""


def _needs_bus(what: str) -> Requirement:
    reason = f"files have no {what}: use `agentgym-tui launch` or `agentgym-tui watch`"
    return Requirement(lambda session: session.events is not None, lambda session: reason)


BUS: Final = _needs_bus("bus")
LIVE: Final = _needs_bus("runs")
LIBRARY: Final = Requirement(
    lambda session: session.library is not None,
    lambda session: "a watched bus has no stored episodes: use `agentgym-tui launch` or `agentgym-tui open`",
)
RESULTS: Final = Requirement(
    lambda session: session.library is not None or session.received is not None, LIBRARY.reason
)
"""Episodes that have results: stored ones, or those that a bus has reported."""
CURATION: Final = Requirement(
    lambda session: session.curation is not None,
    lambda session: "these episodes are only read: use `agentgym-tui launch` in their state directory",
)
ARCHIVE: Final = Requirement(
    lambda session: session.curation is not None or session.archiver is not None, LIBRARY.reason
)
"""Stored episodes that may be archived, or opened ones that may be copied into an archive."""
EXPORT: Final = Requirement(lambda session: session.exporter is not None, LIBRARY.reason)
LOGS: Final = Requirement(
    lambda session: bool(session.logs) or session.has_node_logs,
    lambda session: (
        "the state directory of the node is not known yet"
        if session.has_node_logs
        else "no log is open: use `agentgym-tui open FILE.jsonl`"
    ),
    lambda session: session.open_logs(),
)


class Scope(NamedTuple):
    """A screen, a dialog, a widget or the app, in which the keys of some commands apply."""

    id: str
    title: str = "This screen"  # heading of its commands in the help
    modal: bool = False  # a dialog, below which no key applies but that of the help
    typing: bool = False  # a field that receives characters, or a dialog with one
    below: tuple[str, ...] = (*APP_SCOPES, "list", "table", "queries")  # scopes whose keys apply at the same time


_QUESTIONS: Final = (
    "quit", "cancel", "cancel_all", "archive", "delete", "stop_node", "restart_node", "stop_server", "send_history"
)  # fmt: skip
SCOPES: Final = Registry(
    Scope("everywhere", "Everywhere"),
    Scope("run", "Start a run"),
    Scope("list", "In lists"),
    Scope("table", "In sorted tables"),
    Scope("queries"),
    Scope("match", below=(*Scope("").below, "episode", "log", "hit")),
    Scope("hit", below=(*Scope("").below, "episode")),
    Scope("filter", typing=True, below=()),
    Scope("entry", typing=True, below=()),
    Scope("find", typing=True, below=()),
    Scope("checks", "In the list of environments", below=("list",)),
    Scope("choice", "In a choice", below=()),
    Scope("form", "This form", modal=True, typing=True, below=("checks", "choice", "list")),
    Scope("export", modal=True, typing=True, below=("checks", "choice", "list")),
    Scope("model", modal=True, typing=True, below=()),
    Scope("tags", modal=True, typing=True, below=("list",)),
    Scope("palette", modal=True, typing=True, below=()),
    Scope("saved", modal=True, typing=True, below=("list",)),
    Scope("dialog", modal=True, below=("list",)),
    Scope("report", modal=True, below=("list",)),
    *(Scope(question, modal=True, below=()) for question in _QUESTIONS),
)
"""The scopes that are no screens; any other id is that of a screen."""


def scope_of(id: str) -> Scope:
    return SCOPES.get(id) or Scope(id)


class Command(NamedTuple):
    id: str  # it never changes, because user keymaps contain it
    keys: str  # default keys: Textual key names, separated by commas
    title: str
    action: str  # the ``action_…`` method without this prefix, with arguments if there are any
    scope: str  # id of the ``Scope`` in which the keys apply
    help: str = ""
    footer: bool = True  # whether the key bar shows the command
    available: Requirement = ALWAYS  # else the command is not listed


class ScreenSpec(NamedTuple):
    """A screen that the user selects by a key."""

    id: str  # also the name of its mode, and what the UI state remembers
    key: str
    title: str
    factory: Callable[..., Screen[None]]  # makes it from a ``ScreenContext`` when it is first shown
    available: Requirement = ALWAYS
    help: str = ""

    @property
    def command(self) -> Command:
        action = f"show_screen({self.id!r})"
        return Command(f"app.{self.id}", self.key, self.title, action, "everywhere", self.help, True, self.available)


def lazy(path: str) -> Callable[..., Any]:
    """Return a function that imports the class ``module:Class`` of this package when it is first called."""

    def make(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what the class makes
        module, _, name = path.partition(":")
        return getattr(import_module(f"agentgym_tui.{module}"), name)(*args, **kwargs)

    return make


LIVE_SCREEN: Final = ScreenSpec("live", "1", "Live", lazy("screens.live:LiveScreen"), ALWAYS, "running episodes")
EPISODES_SCREEN: Final = ScreenSpec(
    "episodes", "2", "Episodes", lazy("screens.episodes.screen:EpisodesScreen"), ALWAYS, "stored and running episodes"
)  # fmt: skip
EVENTS_SCREEN: Final = ScreenSpec(
    "events", "3", "Events", lazy("screens.line_browser:EventsScreen"), BUS, "all bus messages"
)
LOGS_SCREEN: Final = ScreenSpec(
    "logs", "4", "Logs", lazy("screens.line_browser:LogScreen"), LOGS, "logs of the node, or opened ones"
)
RESULTS_SCREEN: Final = ScreenSpec(
    "results", "7", "Results", lazy("screens.results:ResultsScreen"), RESULTS,
    "success rates, tasks, comparisons"
)  # fmt: skip
SCREENS: Final = Registry(
    LIVE_SCREEN,
    EPISODES_SCREEN,
    EVENTS_SCREEN,
    LOGS_SCREEN,
    ScreenSpec(
        "machine", "5", "Machine", lazy("screens.machine:MachineScreen"), BUS,
        "GPUs, servers, workers, broker, and what is wrong with them"
    ),
    ScreenSpec(
        "runs", "6", "Runs", lazy("screens.runs:RunsScreen"), LIVE, "what runs, waits and has ended"
    ),
    RESULTS_SCREEN,
)  # fmt: skip
"""The screens, in the order in which the key bar lists them."""
