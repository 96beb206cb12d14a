"""Every action of the console as data: id, keys, title; bindings, help and palette are made of it.

Ids are stable, a user's own keys refer to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec
from textual.binding import Binding
from textual.keys import key_to_character

Scope: TypeAlias = Literal[
    "everywhere", "live", "episodes", "filter", "episode", "events", "log", "entry", "list", "table",
    "dialog", "form", "checks", "choice", "quit", "cancel", "palette",
]  # fmt: skip


class Command(NamedTuple):
    """What can be done somewhere: ``action`` is the method ``action_…`` of that place."""

    id: str
    keys: str
    title: str
    action: str
    scope: Scope
    help: str = ""
    footer: bool = True


COMMANDS: tuple[Command, ...] = (
    Command("app.help", "question_mark", "Help", "help", "everywhere", "all keys of this screen"),
    Command("app.palette", "ctrl+p,colon", "Palette", "command_palette", "everywhere", "find a command by name"),
    Command("app.live", "1", "Live", "show_live", "everywhere", "what runs now"),
    Command("app.episodes", "2", "Episodes", "show_episodes", "everywhere", "what is stored and what runs"),
    Command("app.events", "3", "Events", "show_events", "everywhere", "all that is said on the bus"),
    Command("app.logs", "4", "Logs", "show_logs", "everywhere", "the logs that were opened"),
    Command("app.quit", "q,ctrl+q,ctrl+c", "Quit", "leave", "everywhere", "leave; asks when episodes run"),
    Command("app.zoom", "z", "Zoom", "zoom", "everywhere", "the focused pane alone, and back", False),
    Command("run.selected", "r", "Run", "run_selected", "live", "play the selected environment once"),
    Command("run.form", "R", "Run…", "run_form", "live", "choose what to play and how"),
    Command("run.battery", "b", "Battery", "run_battery", "live", "play all environments of a tier"),
    Command("run.repeat", "full_stop", "Again", "run_again", "live", "start the last run again"),
    Command("run.cancel", "x", "Cancel", "cancel", "live", "end the running batch"),
    Command("run.pause", "space", "Pause", "pause", "live", "pause or go on"),
    Command("run.step", "s", "Step", "step", "live", "play one step, then pause"),
    Command("live.next", "right_square_bracket", "Next run", "next_running", "live", "watch another one", False),
    Command("live.previous", "left_square_bracket", "Previous run", "previous_running", "live", "and back", False),
    Command("live.open", "enter", "Open", "open", "live", "open the watched episode", False),
    Command("live.events", "a", "Events", "events", "live", "all that the bus keeps of the watched episode", False),
    Command("live.view", "v", "View", "next_view", "live", "transcript, trace, rewards", False),
    Command("episodes.open", "enter", "Open", "open", "episodes", "open the selected episode"),
    Command("episodes.filter", "slash", "Filter", "filter", "episodes", "show only rows that hold all given words"),
    Command("episodes.clear", "escape", "Clear filter", "clear_filter", "episodes", "show all rows again", False),
    Command("episodes.reload", "ctrl+r", "Reload", "reload", "episodes", "read the folder again", False),
    Command("filter.clear", "escape", "Clear filter", "clear", "filter", "show all rows again"),
    Command("filter.leave", "down,tab,enter", "List", "leave", "filter", "to the rows that were found"),
    Command("episode.back", "escape", "Back", "back", "episode", "to where one came from"),
    Command("episode.next", "n", "Next", "next_episode", "episode", "the next episode of the list"),
    Command("episode.previous", "p", "Prev", "previous_episode", "episode", "the one before"),
    Command("episode.transcript", "t", "Transcript", "tab('transcript')", "episode", "what was said", False),
    Command("episode.trace", "w", "Trace", "tab('trace')", "episode", "where the time went", False),
    Command("episode.json", "J", "JSON", "tab('json')", "episode", "the episode file as it is", False),
    Command("episode.copy", "y", "Copy", "copy", "episode", "copy the shown text, made safe"),
    Command("episode.copy_raw", "Y", "Copy raw", "copy_raw", "episode", "copy the text with every byte it has", False),
    Command("episode.export", "e", "Export", "export", "episode", "write the episode as JSON into this folder"),
    Command("episode.events", "a", "Events", "events", "episode", "all that the bus keeps of this episode"),
    Command("events.pause", "space", "Pause", "pause", "events", "read nothing until pressed again; all of it waits"),
    Command("events.filter", "slash", "Filter", "filter", "events", "show only messages that hold all given words"),
    Command("events.subject", "s", "Subject", "subject", "events", "only some subjects, with * and >"),
    Command("events.go_to", "J", "Jump", "go_to", "events", "to a sequence or a time of the streams' history"),
    Command("events.episode", "a", "Episode", "episode", "events", "all messages about the episode of this one"),
    Command("events.clear", "escape", "All", "clear", "events", "without filter; then all subjects, live"),
    Command("events.tree", "t", "Subjects", "tree", "events", "the tree of subjects, and back", False),
    Command("events.fold", "c", "Fold", "fold", "events", "close or open the branch of the cursor", False),
    Command("events.view", "v", "View", "next_view", "events", "formatted, raw, hex, headers"),
    Command("events.copy", "y", "Copy", "copy", "events", "copy the shown payload, made safe", False),
    Command("events.copy_raw", "Y", "Copy raw", "copy_raw", "events", "copy it with every byte it has", False),
    Command("log.filter", "slash", "Filter", "filter", "log", "show only lines that hold all given words"),
    Command("log.go_to", "J", "Jump", "go_to", "log", "to a line or a time of the log"),
    Command("log.clear", "escape", "All", "clear", "log", "all lines again; ends a search that goes on"),
    Command("log.view", "v", "View", "next_view", "log", "formatted, raw, hex"),
    Command("log.next", "n", "Next", "next_log", "log", "the next of the opened logs"),
    Command("log.previous", "p", "Prev", "previous_log", "log", "the one before", False),
    Command("log.copy", "y", "Copy", "copy", "log", "copy the shown line, made safe"),
    Command("log.copy_raw", "Y", "Copy raw", "copy_raw", "log", "copy it with every byte it has", False),
    Command("log.reload", "ctrl+r", "Reload", "reload", "log", "read the file that has the name now", False),
    Command("entry.take", "enter", "Take", "take", "entry", "look at that"),
    Command("entry.leave", "escape", "Leave", "leave", "entry", "change nothing"),
    Command("node.start", "N", "Start node", "start_node", "everywhere", "start the node again when it is gone", False),
    Command("text.hex", "X", "Hex", "hex", "everywhere", "the bytes behind a text marked as hostile", False),
    Command("app.screenshot", "ctrl+s", "Screenshot", "picture", "everywhere", "a picture of the screen, SVG", False),
    Command("pane.narrower", "less_than_sign", "Narrower", "resize('narrower')", "everywhere", "this pane", False),
    Command("pane.wider", "greater_than_sign", "Wider", "resize('wider')", "everywhere", "this pane", False),
    Command("pane.lower", "minus", "Lower", "resize('lower')", "everywhere", "this pane", False),
    Command("pane.higher", "plus", "Higher", "resize('higher')", "everywhere", "this pane", False),
    Command("pane.reset", "equals_sign", "As at first", "resize('reset')", "everywhere", "all panes", False),
    Command("table.sort", "o", "Sort", "sort", "table", "by the next column", False),
    Command("table.reverse", "O", "Reverse", "reverse", "table", "the other way round", False),
    Command("list.down", "j,down", "Down", "down", "list", "", False),
    Command("list.up", "k,up", "Up", "up", "list", "", False),
    Command("list.top", "g,home", "Top", "top", "list", "", False),
    Command("list.bottom", "G,end", "Bottom", "bottom", "list", "the end; follows what comes", False),
    Command("list.page_down", "ctrl+d,pagedown", "Page down", "page_down", "list", "", False),
    Command("list.page_up", "ctrl+u,pageup", "Page up", "page_up", "list", "", False),
    Command("list.left", "h,left", "Left", "left", "list", "", False),
    Command("list.right", "l,right", "Right", "right", "list", "", False),
    Command("list.choose", "enter", "Choose", "choose", "list", "", False),
    Command("dialog.close", "escape,q", "Close", "close", "dialog", "back to the screen below"),
    Command("form.start", "enter,ctrl+s", "Start", "start", "form", "play what the form says"),
    Command("form.next", "down", "Next field", "app.focus_next", "form", "", False),
    Command("form.previous", "up", "Previous field", "app.focus_previous", "form", "", False),
    Command("form.close", "escape", "Close", "close", "form", "play nothing"),
    Command("checks.toggle", "space", "Choose", "check", "checks", "", False),
    Command("checks.all", "a", "All or none", "all", "checks", "", False),
    Command("choice.left", "left,h", "The one before", "left", "choice", "", False),
    Command("choice.right", "right,l,space", "The next one", "right", "choice", "", False),
    Command("quit.stop", "s", "Stop them", "answer('stop')", "quit", "cancel what runs and waits, then leave"),
    Command("quit.leave", "l", "Leave them running", "answer('leave')", "quit", "the node goes on without the console"),
    Command("quit.stay", "escape,q", "Stay", "answer('stay')", "quit", "go on"),
    Command("cancel.batch", "x", "This environment", "answer('batch')", "cancel", "the next one of its battery starts"),
    Command("cancel.battery", "b", "The whole battery", "answer('battery')", "cancel", "what waits is cancelled too"),
    Command("cancel.nothing", "escape,q", "Nothing", "answer('nothing')", "cancel", "go on playing"),
    Command("palette.close", "escape", "Close", "close", "palette", "", False),
    Command("palette.down", "down,ctrl+n", "Down", "down", "palette", "", False),
    Command("palette.up", "up,ctrl+p", "Up", "up", "palette", "", False),
)  # fmt: skip


NODE_COMMANDS: Final = frozenset(command.id for command in COMMANDS if command.id.startswith(("run.", "node.")))
"""What takes a node that does as it is told."""
BUS_COMMANDS: Final = frozenset({"app.events", "episode.events", "live.events"})
"""What takes a bus."""
LOG_COMMANDS: Final = frozenset({"app.logs"})
"""What takes logs that were opened."""

_KEY_REFERENCE: Final = re.compile(r"\{([a-z._]+)\}")
_KEY_SIGNS: Final = {"escape": "esc", "up": "↑", "down": "↓", "left": "←", "right": "→"}
_KEY_CHARACTERS: Final = {"slash": "/", "backslash": "\\", "at": "@", "minus": "-", "plus": "+", "underscore": "_"}
"""Characters whose keys are not named as in Unicode."""


class Keymap(msgspec.Struct, frozen=True):
    """Which keys give a command.

    Attributes:
        overrides: by the command's id, where they are the user's own.
    """

    overrides: Mapping[str, str] = msgspec.field(default_factory=dict)

    def keys_for(self, command: Command) -> str:
        """All of them, with commas."""
        return self.overrides.get(command.id, command.keys)

    def display(self, command: Command) -> list[str]:
        """The same as people read them."""
        return display_keys(self.keys_for(command))

    def key(self, command_id: str) -> str:
        """The first of them, for a text that names it."""
        return next(self.display(command)[0] for command in COMMANDS if command.id == command_id)

    def expand(self, text: str) -> str:
        """A text that names keys, as in ``{dialog.close} closes``."""
        return _KEY_REFERENCE.sub(lambda found: self.key(found[1]), text)


@runtime_checkable
class HasKeymap(Protocol):
    """An app with keys of the user's own."""

    keys: Keymap


def keymap_of(app: object) -> Keymap:
    """The keys that hold in an app."""
    return app.keys if isinstance(app, HasKeymap) else Keymap()


def bindings(scope: Scope) -> list[Binding]:
    """The bindings of one place, for ``BINDINGS``."""
    here = [c for c in COMMANDS if c.scope == scope]
    return [Binding(c.keys, c.action, c.title, show=c.footer, id=c.id, tooltip=c.help or c.title) for c in here]


def display_keys(keys: str) -> list[str]:
    """Keys as people read them, such as ``?`` for ``question_mark``."""
    return [_display_key(key) for key in keys.split(",")]


def typed_character(key: str) -> str | None:
    """What a key types, None where that is nothing one could see."""
    typed = _KEY_CHARACTERS.get(key) or key_to_character(key)
    return typed if typed is not None and typed.isprintable() else None


def _display_key(key: str) -> str:
    modifiers, plus, name = key.rpartition("+")
    typed = (typed_character(name) or "").strip()
    return _KEY_SIGNS.get(key) or (modifiers + plus).replace("ctrl+", "^") + (typed or name.replace("page", "page "))
