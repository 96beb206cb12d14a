"""All commands, scopes and screens of the console as data, and their keys: the default keys, and those of the user.

Bindings, the key bar, the help screen and the command palette are generated from ``COMMANDS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from textual.binding import Binding
from textual.keys import key_to_character

from agentgym_tui.textual_compat import binding_ids

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode
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
NODE: Final = Requirement(lambda session: not session.read_only, lambda session: session.read_only)
HELD: Final = Requirement(
    lambda session: NODE.is_met(session) and session.store.holding_node is not None,
    lambda session: NODE.reason(session) or "no earlier event is left to send",
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
        "the node's logs are not known yet: wait for its first report"
        if session.has_node_logs
        else "no log is open: use `agentgym-tui open FILE.jsonl`"
    ),
    lambda session: session.open_logs(),
)


class Scope(NamedTuple):
    """A screen, a dialog, a widget or the app, in which the keys of some commands apply."""

    id: str
    title: str = "This screen"  # heading of its commands in the help
    where: str = ""  # how to come there; "" for a screen of ``SCREENS``, or one whose commands the palette leaves out
    modal: bool = False  # a dialog, below which no key applies but that of the help
    typing: bool = False  # a field that receives characters, or a dialog with one
    below: tuple[str, ...] = (*APP_SCOPES, "list", "table", "queries")  # scopes whose keys apply at the same time


QUESTIONS: Final = (
    "again", "quit", "cancel", "cancel_all", "archive", "delete",
    "stop_node", "restart_node", "stop_server", "send_history"
)  # fmt: skip
SCOPES: Final = Registry(
    Scope("everywhere", "Everywhere"),
    Scope("run", "Start a run"),
    Scope("list", "In lists", "in a list"),
    Scope("table", "In sorted tables", "in a sorted table"),
    Scope("queries", where="in a list with a filter"),
    Scope("match", where="after a search in an episode", below=(*Scope("").below, "episode", "log", "hit")),
    Scope("hit", where="on an episode among found lines", below=(*Scope("").below, "episode")),
    Scope("episode", where="on an episode: press {episodes.open} on one"),
    Scope("compare", where="on two episodes: press {episodes.compare} on each"),
    Scope("hits", where="on found lines: press {episodes.hits} on Episodes"),
    Scope("summary", where="on a summary: press {run.summary}"),
    Scope("clusters", where="on failures: press {results.failures} on Results"),
    Scope("matrix", where="on the tasks of a result: press {results.tasks} on Results"),
    Scope("comparison", where="on two results: press {results.mark} on each"),
    Scope("log", where="on Logs: press {app.logs}"),
    Scope("filter", typing=True, below=()),
    Scope("entry", typing=True, below=()),
    Scope("find", typing=True, below=()),
    Scope("checks", "In the list of environments", below=("list",)),
    Scope("choice", "In a choice", below=()),
    Scope("fields", "Between fields and buttons", modal=True, typing=True, below=("checks", "choice", "list")),
    Scope("form", "This form", modal=True, typing=True, below=("fields", "checks", "choice", "list")),
    Scope("export", "This form", modal=True, typing=True, below=("fields", "checks", "choice", "list")),
    Scope("model", "This form", modal=True, typing=True, below=("fields",)),
    Scope("tags", "This form", modal=True, typing=True, below=("fields", "list")),
    Scope("palette", modal=True, typing=True, below=()),
    Scope("saved", modal=True, typing=True, below=("list",)),
    Scope("dialog", modal=True, below=("list",)),
    Scope("report", modal=True, below=("list",)),
    *(Scope(question, "This question", modal=True, below=("fields",)) for question in QUESTIONS),
)
"""The scopes that are no screens; any other id is that of a screen."""


def scope_of(id: str) -> Scope:
    return SCOPES.get(id) or Scope(id)


class Command(NamedTuple):
    id: str  # it never changes, because user keymaps contain it
    keys: str  # default keys: Textual key names, separated by commas; "" for a command that only the palette has
    title: str
    action: str  # the ``action_…`` method without this prefix, with arguments if there are any
    scope: str  # id of the ``Scope`` in which the keys apply
    help: str = ""
    footer: bool = True  # whether the key bar shows the command
    available: Requirement = ALWAYS  # else the command is not listed


class ScreenSpec(NamedTuple):
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
    "episodes", "2", "Episodes", lazy("screens.episode_lists:EpisodesScreen"), ALWAYS, "stored and running episodes"
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
        "GPUs, servers, workers, broker, and their problems"
    ),
    ScreenSpec(
        "runs", "6", "Runs", lazy("screens.runs:RunsScreen"), LIVE, "what runs, waits and has ended"
    ),
    RESULTS_SCREEN,
    ScreenSpec("fleet", "8", "Fleet", lazy("screens.machine:FleetScreen"), BUS, "all nodes of the bus"),
)  # fmt: skip
"""The screens, in the order in which the key bar lists them."""


COMMANDS: Final = Registry(
    Command("app.help", "question_mark,f1", "Help", "help", "everywhere", "show the keys of this screen or dialog"),
    Command("app.palette", "ctrl+p,colon", "Commands", "command_palette", "everywhere", "find a command by name"),
    *(screen.command for screen in SCREENS),
    Command("app.quit", "q,ctrl+q,ctrl+c", "Quit", "leave", "everywhere", "quit; asks first if episodes are running"),
    Command("app.zoom", "z", "Zoom", "zoom", "everywhere", "maximize or restore the focused pane", False),
    Command("run.selected", "r", "Run", "run_selected", "run", "run the selected environment once", available=NODE),
    Command("run.form", "R", "Run…", "run_form", "run", "choose what to run and how", available=NODE),
    Command("run.battery", "b", "Battery", "run_battery", "run", "run all environments of a tier", available=NODE),
    Command("run.repeat", "full_stop", "Rerun", "run_again", "run", "repeat the last run", available=NODE),
    Command("run.summary", "M", "Summary", "run_summary", "run", "results of the selected or last run", False, LIVE),
    Command("run.cancel", "x", "Cancel", "cancel", "live", "cancel the running batch", available=NODE),
    Command("run.pause", "space", "Pause", "pause", "live", "pause or resume", available=NODE),
    Command("run.step", "s", "Step", "step", "live", "run one step, then pause", available=NODE),
    Command("env.start", "", "Start server", "start_server", "live", "of this environment, on the node", False, NODE),
    Command("env.stop", "", "Stop server", "stop_server", "live", "one that the node started", False, NODE),
    Command("live.open", "enter", "Open", "open", "live", "open the episode, or those of the environment", False),
    Command("live.next", "right_square_bracket", "Next run", "neighbor(1)", "live", "next running episode", False),
    Command("live.previous", "left_square_bracket", "Previous run", "neighbor(-1)", "live",
        "previous running episode", False),
    Command("live.events", "B", "Bus", "events", "live", "bus messages of this episode", False, BUS),
    Command("live.view", "v", "View", "next_view", "live", "switch between transcript, trace and rewards", False),
    Command("live.world", "W", "World", "world", "live", "picture of the environment, or the transcript", False),
    Command("machine.next", "n", "Next problem", "problem(1)", "machine", "go to the next line with a problem"),
    Command("machine.previous", "p", "Previous", "problem(-1)", "machine", "go to the previous problem", False),
    Command("runs.open", "enter", "Open", "open", "runs", "open or close a line; open an episode"),
    Command("runs.cancel", "x", "Cancel", "cancel", "runs", "cancel the selected run", available=NODE),
    Command("runs.pause", "space", "Pause", "pause", "runs", "pause, or resume, also interrupted runs", available=NODE),
    Command("runs.up", "shift+up", "Earlier", "move(-1)", "runs", "let a waiting run start earlier", available=NODE),
    Command("runs.down", "shift+down", "Later", "move(1)", "runs", "let a waiting run start later", available=NODE),
    Command("runs.replay", "a", "Again", "replay", "runs", "play the run again, or only its errors", available=NODE),
    Command("runs.filter", "slash", "Filter", "filter", "runs", "show only runs that match a query"),
    Command("runs.clear", "escape", "Clear filter", "clear", "runs", "show all runs", False),
    Command("runs.cancel_all", "", "Cancel all", "cancel_all", "runs", "all that runs or waits", False, NODE),
    Command("runs.pause_all", "", "Pause all", "pause_all", "runs", "pause all that runs, or resume it", False, NODE),
    Command("fleet.open", "enter", "Machine", "open", "fleet", "the machine of the selected node"),
    Command("fleet.filter", "slash", "Filter", "filter", "fleet", "show only nodes that match a query"),
    Command("fleet.clear", "escape", "Clear filter", "clear", "fleet", "show all nodes", False),
    Command("summary.open", "enter", "Episodes", "open", "summary", "list the episodes of the selected row"),
    Command("summary.results", "", "Results", "results", "summary", "this run on Results", False, RESULTS),
    Command("summary.back", "escape", "Back", "back", "summary", "go back"),
    Command("episodes.open", "enter", "Open", "open", "episodes", "open the selected episode"),
    Command("episodes.tag", "T", "Tag", "tag", "episodes", "tags and notes of the selection", False, NODE),
    Command("episodes.compare", "c", "Compare", "compare", "episodes", "mark it, then compare another one", False),
    Command("episodes.filter", "slash", "Filter", "filter", "episodes", "show only rows that match a query"),
    Command("episodes.hits", "L", "Lines", "hits", "episodes", "lines found by text: in the filter", False),
    Command("episodes.failures", "F", "Failures", "failures", "episodes", "how they failed", False, LIBRARY),
    Command("episodes.select", "space", "Select", "select", "episodes", "select the episode, or deselect it", False),
    Command("episodes.select_all", "ctrl+a", "All", "select_all", "episodes", "select all that match", False),
    Command("episodes.archive", "A", "Archive", "clean_up('archive')", "episodes", "the selection", False, ARCHIVE),
    Command("episodes.delete", "D", "Delete", "clean_up('delete')", "episodes", "the selection", False, CURATION),
    Command("episodes.export", "e", "Export", "export", "episodes", "write them for trainers", False, EXPORT),
    Command("episodes.copy_path", "C", "Copy path", "copy_path", "episodes", "the file's path, or the id", False),
    Command("episodes.pager", "P", "Pager", "outside('pager')", "episodes", "the file in $PAGER", False),
    Command("episodes.editor", "E", "Editor", "outside('editor')", "episodes", "a copy in $VISUAL or $EDITOR", False),
    Command("episodes.clear", "escape", "Back", "clear", "episodes", "show all rows, or go back", False),
    Command("episodes.reload", "ctrl+r", "Reload", "reload", "episodes", "reload the folder", False),
    Command("results.open", "enter", "Episodes", "open", "results", "list the episodes of the selected row"),
    Command("results.tasks", "m", "Matrix", "tasks", "results", "tasks and attempts, pass@k and pass^k"),
    Command("results.failures", "F", "Failures", "failures", "results", "how its episodes failed", False),
    Command("results.report", "S", "Score", "report", "results", "AgentGym's score and success", False),
    Command("results.mark", "c", "Compare", "mark", "results", "mark a row; on another one, compare it with that"),
    Command("results.batches", "v", "By batch", "batches", "results", "one row per batch, or per agent and model"),
    Command("results.filter", "slash", "Filter", "filter", "results", "show only rows that match a query"),
    Command("results.success", "", "Successes", "outcome('success')", "results", "list the successful ones", False),
    Command("results.errors", "", "Errors", "outcome('error')", "results", "list those that ended in an error", False),
    Command("results.clear", "escape", "Clear filter", "clear", "results", "show all rows", False),
    Command("results.reload", "ctrl+r", "Reload", "reload", "results", "compute the results again", False),
    Command("clusters.open", "enter", "Episodes", "open", "clusters", "list the episodes of the cluster"),
    Command("clusters.shortest", "space", "Shortest", "shortest", "clusters", "open its shortest episode"),
    Command("clusters.filter", "slash", "Filter", "filter", "clusters", "show only clusters that match a query"),
    Command("clusters.back", "escape", "Back", "back", "clusters", "clear the filter, then go back"),
    Command("matrix.open", "enter", "Episode", "open", "matrix", "open the episode of the selected attempt"),
    Command("matrix.episodes", "", "Episodes", "episodes", "matrix", "list the episodes of the task", False),
    Command("matrix.compare", "c", "Compare", "compare", "matrix", "compare the best with the worst attempt"),
    Command("matrix.filter", "slash", "Filter", "filter", "matrix", "show only tasks that match a query"),
    Command("matrix.back", "escape", "Back", "back", "matrix", "clear the filter, then go back"),
    Command("comparison.open", "enter", "Episodes", "open", "comparison", "list the episodes of the selected task"),
    Command("comparison.compare", "c", "Compare", "compare", "comparison", "an episode of each row, step by step"),
    Command("comparison.filter", "slash", "Filter", "filter", "comparison", "show only tasks that match a query"),
    Command("comparison.back", "escape", "Back", "back", "comparison", "clear the filter, then go back"),
    Command("queries.open", "Q", "Saved queries", "queries", "queries", "open one, or save the filter", False),
    Command("saved.close", "escape", "Close", "close", "saved", "close without a change"),
    Command("filter.clear", "escape", "Clear filter", "clear", "filter", "show all rows"),
    Command("filter.leave", "enter", "List", "leave", "filter", "go to the matching rows"),
    Command("filter.complete", "tab", "Complete", "complete", "filter", "complete a field or value, or go to the list"),
    Command("filter.older", "up", "Earlier", "older", "filter", "the query before this one"),
    Command("filter.newer", "down", "Later", "newer", "filter", "the query after it; after the last, the list"),
    Command("episode.back", "escape", "Back", "back", "episode", "go back"),
    Command("episode.next", "n", "Next", "neighbor(1)", "episode", "next episode in the list"),
    Command("episode.previous", "p", "Prev", "neighbor(-1)", "episode", "previous episode in the list"),
    Command("episode.transcript", "t", "Transcript", "tab('transcript')", "episode", "messages and actions", False),
    Command("episode.whole", "f", "All steps", "tab('whole')", "episode", "the whole episode as one transcript", False),
    Command("episode.find", "slash", "Find", "find", "episode", "words in this view; from one step, in all steps"),
    Command("episode.trace", "w", "Trace", "tab('trace')", "episode", "where the time went", False),
    Command("trace.zoom", "space", "Step or all", "zoom_step", "episode", "the trace of the step, or of all", False),
    Command("trace.write", "", "Perfetto trace", "write_trace", "episode", "its path; without one, write it", False),
    Command("episode.copy_all", "", "Copy all", "copy(False, True)", "episode", "the whole view", False),
    Command("episode.world", "W", "World", "tab('world')", "episode", "picture of the environment", False),
    Command("episode.json", "d", "Data", "tab('json')", "episode", "the raw episode file, JSON", False),
    Command("episode.evaluation", "v", "Evaluation", "tab('evaluation')", "episode", "verdict and events", False),
    Command("episode.copy", "y", "Copy", "copy", "episode", "the step, or in All steps the message, made safe"),
    Command("episode.copy_raw", "Y", "Copy raw", "copy(True)", "episode", "copy the original, unsafe text", False),
    Command("episode.compare", "c", "Compare", "compare", "episode", "mark it, then compare another one", False),
    Command("episode.copy_path", "C", "Copy path", "copy_path", "episode", "the file's path, or the id", False),
    Command("episode.export", "e", "Export", "export", "episode", "write the episode as JSON to this folder"),
    Command("episode.pager", "P", "Pager", "outside('pager')", "episode", "the file in $PAGER", False),
    Command("episode.editor", "E", "Editor", "outside('editor')", "episode", "a copy in $VISUAL or $EDITOR", False),
    Command("episode.tag", "T", "Tag", "tag", "episode", "tags and notes of the episode", False, NODE),
    Command("episode.note", "i", "Note", "note", "episode", "tags and notes of the step", False, NODE),
    Command("episode.events", "B", "Bus", "events", "episode", "bus messages of this episode", available=BUS),
    Command("whole.step_next", "right_parenthesis", "Step", "jump('step', 1)", "episode", "next step"),
    Command("whole.step_previous", "left_parenthesis", "Step", "jump('step', -1)", "episode", "previous step", False),
    Command("whole.reward_next", "right_curly_bracket", "Reward", "jump('reward', 1)", "episode", "next other reward"),
    Command("whole.reward_previous", "left_curly_bracket", "Reward", "jump('reward', -1)", "episode", "previous one",
        False),
    Command("whole.error_next", "right_square_bracket", "Error", "jump('error', 1)", "episode", "next error"),
    Command("whole.error_previous", "left_square_bracket", "Error", "jump('error', -1)", "episode", "previous error",
        False),
    Command("whole.invalid_next", "asterisk", "Invalid", "jump('invalid', 1)", "episode", "next invalid action"),
    Command("whole.invalid_previous", "number_sign", "Invalid", "jump('invalid', -1)", "episode", "previous", False),
    Command("whole.system", "S", "System", "fold('system')", "episode", "fold, hide or show system prompts", False),
    Command("whole.observations", "V", "Observations", "fold('observations')", "episode", "fold, hide, show", False),
    Command("whole.thoughts", "H", "Thoughts", "fold('thoughts')", "episode", "fold, hide or show thoughts", False),
    Command("whole.tool", "K", "Tool calls", "fold('tool calls')", "episode", "fold, hide or show tool calls", False),
    Command("whole.answers", "", "Answers", "fold('answers')", "episode", "fold, hide or show actions", False),
    Command("whole.notes", "", "Notes", "fold('notes')", "episode", "fold, hide or show notes", False),
    Command("match.next", "n", "Next", "match(1)", "match", "next line with the words"),
    Command("match.previous", "N", "Previous", "match(-1)", "match", "previous line with the words"),
    Command("find.take", "enter", "Go", "take", "find", "go to the lines with the words"),
    Command("find.leave", "escape", "Close", "leave", "find", "end the search"),
    Command("hits.open", "enter", "Open", "open", "hits", "open the episode at this line"),
    Command("hits.back", "escape", "Back", "back", "hits", "go back"),
    Command("hit.next", "n", "Next line", "hit(1)", "hit", "next line with the words, across episodes"),
    Command("hit.previous", "N", "Prev line", "hit(-1)", "hit", "previous line with the words, across episodes"),
    Command("compare.back", "escape", "Back", "back", "compare", "go back"),
    Command("compare.next", "n", "Next difference", "difference(1)", "compare", "go to the next step that differs"),
    Command("compare.previous", "p", "Previous", "difference(-1)", "compare", "the previous step that differs"),
    Command("compare.open", "enter", "Open", "open", "compare", "the episode of the side that the arrows mark"),
    Command("events.pause", "space", "Pause", "pause", "events", "stop reading until pressed again; messages wait"),
    Command("events.filter", "slash", "Filter", "filter", "events", "show only messages that match a query"),
    Command("events.subject", "u", "Subject", "subject", "events", "select subjects, with * and >"),
    Command("events.go_to", "J", "Jump", "go_to", "events", "go to a sequence or time in the stream history"),
    Command("events.episode", "B", "Bus", "episode", "events", "all messages of the same episode"),
    Command("events.clear", "escape", "All", "clear", "events", "clear filter, then show all subjects live"),
    Command("events.tree", "t", "Subjects", "tree", "events", "go to the subject tree, and back", False),
    Command("events.view", "v", "View", "next_view", "events", "switch between formatted, raw, hex and headers"),
    Command("events.copy", "y", "Copy", "copy", "events", "copy the shown payload, made safe", False),
    Command("events.copy_raw", "Y", "Copy raw", "copy(True)", "events", "copy the original bytes", False),
    Command("log.filter", "slash", "Filter", "filter", "log", "show only lines that match a query"),
    Command("log.go_to", "J", "Jump", "go_to", "log", "go to a line or time"),
    Command("log.clear", "escape", "All", "clear", "log", "show all lines; stops a running search"),
    Command("log.view", "v", "View", "next_view", "log", "switch between formatted, raw and hex"),
    Command("log.next", "n", "Next", "neighbor(1)", "log", "next opened log"),
    Command("log.previous", "p", "Prev", "neighbor(-1)", "log", "previous opened log", False),
    Command("log.copy", "y", "Copy", "copy", "log", "copy the shown line, made safe"),
    Command("log.copy_raw", "Y", "Copy raw", "copy(True)", "log", "copy the original bytes", False),
    Command("log.reload", "ctrl+r", "Reload", "reload", "log", "reopen the file by name", False),
    Command("entry.take", "enter", "Apply", "take", "entry", "use this input"),
    Command("entry.leave", "escape", "Cancel", "leave", "entry", "change nothing"),
    Command("node.start", "ctrl+n", "Start node", "start_node", "everywhere", "start it after its end", False, NODE),
    Command("node.stop", "", "Stop node", "stop_node", "everywhere", "its batches can be resumed later", False, NODE),
    Command("node.restart", "", "Restart node", "restart_node", "everywhere", "stop, load the profile, go on",
        False, NODE),
    Command("node.history", "", "Send earlier", "send_history", "everywhere",
        "the events that its external broker lacks", False, HELD),
    Command("model.form", "ctrl+o", "Model", "model_form", "everywhere", "try a model server and write its profile",
        False, NODE),
    Command("text.hex", "X", "Hex", "hex", "everywhere", "bytes of a text marked as unsafe", False),
    Command("app.messages", "exclamation_mark", "Messages", "messages", "everywhere", "the newest ones in full", False),
    Command("app.settings", "", "Settings", "settings", "everywhere", "in use, and how to change them", False),
    Command("app.screenshot", "", "Screenshot", "picture", "everywhere", "picture of the screen (SVG)", False),
    Command("app.suspend", "ctrl+z", "Suspend", "suspend_process", "everywhere", "the shell; fg returns", False),
    Command("pane.narrower", "less_than_sign", "Narrower", "resize('narrower')", "everywhere", "this pane", False),
    Command("pane.wider", "greater_than_sign", "Wider", "resize('wider')", "everywhere", "this pane", False),
    Command("pane.lower", "minus", "Shorter", "resize('lower')", "everywhere", "this pane", False),
    Command("pane.higher", "plus", "Taller", "resize('higher')", "everywhere", "this pane", False),
    Command("pane.reset", "equals_sign", "Reset sizes", "resize('reset')", "everywhere", "reset all pane sizes", False),
    Command("table.sort", "o", "Sort", "sort", "table", "sort by the next column", False),
    Command("table.reverse", "O", "Reverse", "reverse", "table", "reverse the order", False),
    Command("list.down", "j,down", "Down", "move(1)", "list", "", False),
    Command("list.up", "k,up", "Up", "move(-1)", "list", "", False),
    Command("list.top", "g,home", "Top", "top", "list", "", False),
    Command("list.bottom", "G,end", "Bottom", "bottom", "list", "go to the end and follow it", False),
    Command("list.page_down", "ctrl+d,pagedown", "Page down", "page(1)", "list", "", False),
    Command("list.page_up", "ctrl+u,pageup", "Page up", "page(-1)", "list", "", False),
    Command("list.left", "h,left", "Left", "left", "list", "", False),
    Command("list.right", "l,right", "Right", "right", "list", "", False),
    Command("list.choose", "enter", "Choose", "choose", "list", "", False),
    Command("dialog.close", "escape,q", "Close", "close", "dialog", "return to the screen below"),
    Command("fields.next", "down,right", "Next", "app.focus_next", "fields", "the next field or button", False),
    Command("fields.previous", "up,left", "Previous", "app.focus_previous", "fields", "the one before", False),
    Command("export.start", "enter", "Write", "main", "export", "go to the button; on it, write the episodes"),
    Command("export.close", "escape", "Close", "close", "export", "stop writing, or close"),
    Command("form.start", "enter", "Start", "main", "form", "go to the button; on it, start the run"),
    Command("form.close", "escape", "Close", "close", "form", "close without starting a run"),
    Command("model.try", "enter", "Try", "main", "model", "go to the button; on it, try the server and its model"),
    Command("model.close", "escape", "Close", "close", "model", "stop trying, or close"),
    Command("report.copy", "y", "Copy", "copy", "report", "copy the report as Markdown"),
    Command("report.close", "escape", "Close", "close", "report", "return to the results"),
    Command("tags.save", "enter", "Save", "main", "tags", "go to the button; on it, store tags and note"),
    Command("tags.remove", "D", "Delete", "remove", "tags", "in the list: delete the selected note"),
    Command("tags.close", "escape", "Close", "close", "tags", "close without a change"),
    Command("checks.toggle", "space", "Choose", "check", "checks", "", False),
    Command("checks.all", "ctrl+a", "All", "all", "checks", "all or none", False),
    Command("choice.left", "left,h", "Previous", "step(-1)", "choice", "", False),
    Command("choice.right", "right,l,space", "Next", "step(1)", "choice", "", False),
    Command("again.nothing", "escape,n", "Leave it", "answer('nothing')", "again", "play nothing again"),
    Command("again.all", "", "Everything", "answer('all')", "again", "in a new batch"),
    Command("again.errors", "", "Only the errors", "answer('errors')", "again", "what ended with an error"),
    Command("quit.stay", "escape,n", "Stay", "answer('stay')", "quit", "keep the console open"),
    Command("quit.leave", "y", "Quit", "answer('leave')", "quit", "the node goes on with its runs"),
    Command("quit.stop", "", "Stop them and quit", "answer('stop')", "quit", "cancels all that runs and waits"),
    Command("cancel.nothing", "escape,n", "Keep running", "answer('nothing')", "cancel", "cancel nothing"),
    Command("cancel.batch", "", "This environment", "answer('batch')", "cancel", "cancel it; the battery goes on"),
    Command("cancel.battery", "", "The whole battery", "answer('battery')", "cancel", "cancel waiting ones, too"),
    Command("cancel_all.nothing", "escape,n", "Keep running", "answer('nothing')", "cancel_all", "cancel nothing"),
    Command("cancel_all.all", "y", "Cancel them", "answer('all')", "cancel_all", "they stay cancelled"),
    Command("archive.nothing", "escape,n", "Keep them", "answer('nothing')", "archive", "leave them as they are"),
    Command("archive.archive", "y", "Archive", "answer('archive')", "archive", "readable in a zip file of their batch"),
    Command("delete.nothing", "escape,n", "Keep them", "answer('nothing')", "delete", "leave them as they are"),
    Command("delete.delete", "y", "Delete", "answer('delete')", "delete", "for good"),
    Command("stop_node.nothing", "escape,n", "Keep running", "answer('nothing')", "stop_node", "stop nothing"),
    Command("stop_node.now", "y", "Stop now", "answer('now')", "stop_node", "its batches can be resumed"),
    Command("stop_node.drain", "", "Stop after all batches", "answer('drain')", "stop_node", "also those that wait"),
    Command("restart_node.nothing", "escape,n", "Don't restart", "answer('nothing')", "restart_node", "it goes on"),
    Command("restart_node.restart", "y", "Restart", "answer('restart')", "restart_node",
        "after the running steps; batches continue"),
    Command("send_history.nothing", "escape,n", "Don't send", "answer('nothing')", "send_history", "only later ones"),
    Command("send_history.send", "y", "Send them", "answer('send')", "send_history", "once; they cannot be taken back"),
    Command("stop_server.nothing", "escape,n", "Keep running", "answer('nothing')", "stop_server", "stop nothing"),
    Command("stop_server.stop", "y", "Stop it", "answer('stop')", "stop_server", "start it again to go on"),
    Command("palette.close", "escape", "Close", "close", "palette", "", False),
    Command("palette.down", "down", "Down", "move(1)", "palette", "", False),
    Command("palette.up", "up", "Up", "move(-1)", "palette", "", False),
)  # fmt: skip


_KEY_REFERENCE: Final = re.compile(r"\{([a-z._]+)\}")
_KEY_SIGNS: Final = {"escape": "esc", "up": "↑", "down": "↓", "left": "←", "right": "→"}
_KEY_CHARACTERS: Final = {"slash": "/", "backslash": "\\", "at": "@", "minus": "-", "plus": "+", "underscore": "_"}
"""Characters, by Textual key name, whose Unicode name differs from the Textual key name."""


HELP: Final = "app.help"
PALETTE: Final = "app.palette"

FIXED_KEYS: Final = {"focus.next": "tab", "focus.previous": "shift+tab", "field.submit": "enter"}
"""Keys that Textual's own widgets handle, by what they do; the user cannot change them."""


class Keymap(msgspec.Struct, frozen=True):
    """The keys of all commands: the default keys, and those set by the user, ``overrides``, by command id."""

    overrides: Mapping[str, str] = msgspec.field(default_factory=dict)

    def keys_for(self, command: Command) -> str:
        return self.overrides.get(command.id, command.keys)

    def display(self, command: Command) -> list[str]:
        keys = self.keys_for(command)
        return display_keys(keys) if keys else []

    def key(self, command_id: str) -> str:
        """Return the label of the first key of a command, or of an entry of ``FIXED_KEYS``.

        For a command without a key it is that of the palette, and the words to type there.
        """
        if (key := FIXED_KEYS.get(command_id)) is not None:
            return display_keys(key)[0]
        command = COMMANDS[command_id]
        shown = self.display(command)
        return shown[0] if shown else f'{self.key(PALETTE)} "{command.title}"'

    def expand(self, text: str) -> str:
        """Replace ``{id}`` in a text by the key label of that command or fixed key."""
        return _KEY_REFERENCE.sub(lambda reference: self.key(reference[1]), text)


def keymap_of(app: object) -> Keymap:
    keys = getattr(app, "keys", None)  # a protocol that is checked at run time would take longer than a line to draw
    return keys if isinstance(keys, Keymap) else Keymap()


def commands_of(scope: str) -> list[Command]:
    """Return the commands of a scope in their order in ``COMMANDS``; raise ``ValueError`` without any."""
    if not (commands := [command for command in COMMANDS if command.scope == scope]):
        raise ValueError(f"no command has the scope {scope!r}; scopes are {sorted({c.scope for c in COMMANDS})}")
    return commands


def bindings(scope: str) -> list[Binding]:
    """Return Textual's bindings; without a key, that of a command is its id, until the user's keymap sets one."""
    return [
        Binding(c.keys or c.id, c.action, c.title, show=c.footer, id=c.id, tooltip=c.help or c.title)
        for c in commands_of(scope)
    ]


def apply_together(a: Command, b: Command) -> bool:
    """Return whether the keys of two commands apply at the same time, so that they must not be the same."""
    one, other = scope_of(a.scope), scope_of(b.scope)
    if HELP in (a.id, b.id):  # dialogs have it, too
        return not any(scope.typing and not scope.modal for scope in (one, other))
    return one.id == other.id or one.id in other.below or other.id in one.below


class AvailableCommand(NamedTuple):
    command: Command
    node: DOMNode
    reason: str = ""  # why it cannot run now


def known_commands(app: App[None], session: Session) -> list[AvailableCommand]:
    """Return the available commands, then those of all other screens, each with the reason why it cannot run now."""
    available = available_commands(app, session)
    known = {each.command.id for each in available}
    others = [(each, _reason(each, session, keymap_of(app))) for each in COMMANDS if each.id not in known]
    return [*available, *(AvailableCommand(command, app, reason) for command, reason in others if reason)]


def _reason(command: Command, session: Session, keys: Keymap) -> str:
    """Return why a command cannot run on another screen; "" for one of a dialog or a field."""
    screen = SCREENS.get(command.scope)
    requirement = command.available if screen is None or screen.available.is_met(session) else screen.available
    if not requirement.is_met(session):
        return requirement.reason(session)
    where = scope_of(command.scope).where
    return keys.expand(where if screen is None else f"on {screen.title}: press {{{screen.command.id}}}")


def available_commands(app: App[None], session: Session) -> list[AvailableCommand]:
    """Return the commands of the screen, the focused widget and the app that the session supports.

    Those that start runs come first. Below a dialog, the commands of the app do not apply.
    """
    available: list[AvailableCommand] = []
    for node in filter(None, (app.screen, app.focused, None if app.screen.is_modal else app)):
        bound = [command for id in binding_ids(node) if (command := COMMANDS.get(id)) is not None]
        for scope in dict.fromkeys(command.scope for command in bound):
            commands = [each for each in commands_of(scope) if each in bound and each.available.is_met(session)]
            available += [AvailableCommand(c, node) for c in commands if node.check_action(c.action, ()) is not False]
    return sorted(available, key=lambda each: each.command.scope != "run")


def display_keys(keys: str) -> list[str]:
    """Return the labels of Textual key names, such as ``?`` for ``question_mark``; commas separate the names."""
    return [_display_key(key) for key in keys.split(",")]


def typed_character(key: str) -> str | None:
    """Return the printable character that a key produces; None if it produces none."""
    typed = _KEY_CHARACTERS.get(key) or key_to_character(key)
    return typed if typed is not None and typed.isprintable() else None


def _display_key(key: str) -> str:
    modifiers, plus, name = key.rpartition("+")
    typed = (typed_character(name) or "").strip()
    shown = _KEY_SIGNS.get(name) or typed or name.replace("page", "page ")
    return (modifiers + plus).replace("ctrl+", "^") + shown
