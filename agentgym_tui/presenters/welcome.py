"""What an empty console says: what to press, and what is missing, each with what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from agentgym_tui.presenters.cells import Cell, Line, Tone
from agentgym_tui.presenters.number_format import counted
from agentgym_tui.presenters.segments import told, told_rows
from agentgym_tui.presenters.status_line import LINKS
from agentgym_tui.presenters.text_width import line_width, wrapped
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.state.run_store import RunStore

KEYS: Final = (
    ("run.selected", "play the selected environment once"),
    ("run.form", "choose what to play and how"),
    ("run.battery", "play all environments of a tier"),
)
"""What one may do in an empty console, by the ids of commands, as ``keymap`` has it; that module imports Textual."""

LOOKING_KEYS: Final = (
    ("app.episodes", "what is stored and what runs"),
    ("app.help", "all keys of this screen"),
    ("app.quit", "leave; asks when episodes run"),
)
"""The same where nothing can be played."""

BUS_KEYS: Final = (LOOKING_KEYS[0], ("app.events", "all that is said on the bus"), LOOKING_KEYS[1])
"""The same where nothing can be played, but heard."""

MAX_ENVS: Final = 12
MAX_MODELS: Final = 4
MAX_ROWS: Final = 12
"""Of one cause."""


class Missing(NamedTuple):
    """What is missing, in a line or some, and what to press or to type: ``command``, and what that does."""

    what: Safe
    command: Safe = own("")
    about: Safe = own("")
    tone: Tone = "warn"


def welcome_lines(store: RunStore, width: int, key: Callable[[str], str], read_only: str = "") -> list[Line]:
    """For a console that has no episode to watch.

    Args:
        store: what is known.
        width: columns of the terminal.
        key: what is pressed for a command.
        read_only: why nothing can be played from here, or "".
    """
    keys: Sequence[Line] = [
        [Cell(own(f"  {line(key(id), 20)}  "), "accent"), Cell(own(what))] for id, what in _keys(store, read_only)
    ]
    begin: list[Line] = [[Cell(_head(store, key, read_only), "head")], *keys]
    if read_only:
        begin += [[Cell(row, "dim")] for row in wrapped(told(read_only), width, MAX_ROWS)]
    broken = [row for each in _link(store, key, read_only) for row in _rows(each, width)]
    lacking = [row for each in _lacking(store, key, read_only) for row in _rows(each, width)]
    missing: Line = [Cell(own("Missing"), "head")]
    if store.link.status == "failed":
        return [missing, *broken, *lacking, (), *begin]
    return [*begin, *([(), missing, *broken, *lacking] if broken or lacking else [])]


def _keys(store: RunStore, read_only: str) -> Sequence[tuple[str, str]]:
    if read_only:
        return LOOKING_KEYS if store.link.status == "none" else BUS_KEYS
    return KEYS


def _head(store: RunStore, key: Callable[[str], str], read_only: str) -> Safe:
    press = own(". Press" if not read_only else ". These keys help:")
    if store.n_stored:
        lists = own(f"{line(key('app.episodes'), 20)} lists ")
        return join([own("Nothing runs now; "), lists, counted(store.n_stored, "stored episode"), press])
    if store.n_stored is None:
        return join([own("Nothing was heard of yet" if read_only else "Nothing runs yet"), press])
    return join([own("Nothing has been played yet"), press])


def _link(store: RunStore, key: Callable[[str], str], read_only: str) -> Iterator[Missing]:
    status = store.link.status
    if status in ("connected", "none"):
        return
    text, tone = LINKS[status]
    what = join([text, own(": "), told_rows(store.link.cause)]) if store.link.cause else text
    if read_only:
        yield Missing(what, own("agentgym-tui watch --nats URL" if status == "failed" else ""), tone=tone)
    elif status in ("failed", "disconnected"):
        yield Missing(
            what,
            line(key("node.start"), 20),
            own("tries again" if status == "failed" else "starts the node again"),
            tone,
        )
    else:
        yield Missing(what, tone=tone)


def _lacking(store: RunStore, key: Callable[[str], str], read_only: str) -> Iterator[Missing]:
    """Models first: there are few."""
    oracle = (own(""), own("")) if read_only else (line(key("run.form"), 20), own("agent oracle plays without a model"))
    for known, endpoint in [*store.models.items()][: _n_lacking(store)]:
        if not endpoint.answers:
            yield Missing(join([own("model "), told(known, 60), _because(endpoint.cause or endpoint.failure)]), *oracle)
    if store.nodes and not store.models and not read_only:
        yield Missing(own("no model is checked"), *oracle)
    for env in [env for env in store.envs.values() if env.status in ("down", "wrong")][:MAX_ENVS]:
        what = join([line(env.name, 40), _because(env.cause or env.status)])
        yield Missing(what, own("agentgym-runner --list-envs"))


def _n_lacking(store: RunStore) -> int:
    """How many endpoints are missed where they do not answer: those that are asked before the first one that does."""
    first = next((n for n, endpoint in enumerate(store.models.values()) if endpoint.answers), MAX_MODELS)
    return min(first, MAX_MODELS)


def _because(cause: str | None) -> Safe:
    return join([own(": "), told_rows(cause)]) if cause else own("")


def _rows(missing: Missing, width: int) -> Iterator[Line]:
    """The command follows where there is room, else it has a line of its own."""
    command: list[Cell] = []
    if missing.command:
        about = [Cell(join([own("  "), missing.about]), "dim")] if missing.about else []
        command = [Cell(own("  → "), "dim"), Cell(missing.command, "accent"), *about]
    rows: list[list[Cell]] = [
        [Cell(own("  ")), Cell(row, missing.tone)] for row in wrapped(missing.what, width - 2, MAX_ROWS)
    ]
    if rows and command and line_width([*rows[-1], *command]) <= width:
        rows[-1] += command
    elif command:
        rows.append([Cell(own("  ")), *command])
    yield from rows
