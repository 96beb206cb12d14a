"""What an empty console says: what to press, and what is missing, each with what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from agentgym_tui.presenters.cells import Cell, Line, Tone, line_width, masked_line, masked_rows
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.presenters.status_line import LINK_STATES
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted
from agentgym_tui.state.run_store import RunStore

KEYS: Final = (
    ("run.selected", "play the selected environment once"),
    ("run.form", "choose what to play and how"),
    ("run.battery", "play all environments of a tier"),
)
"""What one may do in an empty console, by the ids of commands, as ``keymap`` has it; that module imports Textual."""

READ_ONLY_KEYS: Final = (
    ("app.episodes", "what is stored and what runs"),
    ("app.help", "all keys of this screen"),
    ("app.quit", "leave; asks when episodes run"),
)
"""The same where nothing can be played."""

BUS_KEYS: Final = (READ_ONLY_KEYS[0], ("app.events", "all that is said on the bus"), READ_ONLY_KEYS[1])
"""The same where nothing can be played, but heard."""

MAX_ENVS: Final = 12
MAX_MODELS: Final = 4
MAX_ROWS: Final = 12
"""Of one cause."""


class MissingItem(NamedTuple):
    """What is missing, in a line or some, and what to press or to type: ``command``, and what that does."""

    what: SafeText
    command: SafeText = trusted("")
    about: SafeText = trusted("")
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
        [Cell(trusted(f"  {sanitize_line(key(id), 20)}  "), "accent"), Cell(trusted(what))]
        for id, what in _key_hints(store, read_only)
    ]
    begin: list[Line] = [[Cell(_headline(store, key, read_only), "head")], *keys]
    if read_only:
        begin += [[Cell(row, "dim")] for row in wrap_text(masked_line(read_only), width, MAX_ROWS)]
    broken = [row for each in _link_items(store, key, read_only) for row in _item_lines(each, width)]
    lacking = [row for each in _missing_items(store, key, read_only) for row in _item_lines(each, width)]
    missing: Line = [Cell(trusted("Missing"), "head")]
    if store.link.status == "failed":
        return [missing, *broken, *lacking, (), *begin]
    return [*begin, *([(), missing, *broken, *lacking] if broken or lacking else [])]


def _key_hints(store: RunStore, read_only: str) -> Sequence[tuple[str, str]]:
    if read_only:
        return READ_ONLY_KEYS if store.link.status == "none" else BUS_KEYS
    return KEYS


def _headline(store: RunStore, key: Callable[[str], str], read_only: str) -> SafeText:
    press = trusted(". Press" if not read_only else ". These keys help:")
    if store.n_stored:
        lists = trusted(f"{sanitize_line(key('app.episodes'), 20)} lists ")
        return join([trusted("Nothing runs now; "), lists, pluralize(store.n_stored, "stored episode"), press])
    if store.n_stored is None:
        return join([trusted("Nothing was heard of yet" if read_only else "Nothing runs yet"), press])
    return join([trusted("Nothing has been played yet"), press])


def _link_items(store: RunStore, key: Callable[[str], str], read_only: str) -> Iterator[MissingItem]:
    status = store.link.status
    if status in ("connected", "none"):
        return
    text, tone = LINK_STATES[status]
    what = join([text, trusted(": "), masked_rows(store.link.cause)]) if store.link.cause else text
    if read_only:
        yield MissingItem(what, trusted("agentgym-tui watch --nats URL" if status == "failed" else ""), tone=tone)
    elif status in ("failed", "disconnected"):
        yield MissingItem(
            what,
            sanitize_line(key("node.start"), 20),
            trusted("tries again" if status == "failed" else "starts the node again"),
            tone,
        )
    else:
        yield MissingItem(what, tone=tone)


def _missing_items(store: RunStore, key: Callable[[str], str], read_only: str) -> Iterator[MissingItem]:
    """Models first: there are few."""
    oracle = (
        (trusted(""), trusted(""))
        if read_only
        else (sanitize_line(key("run.form"), 20), trusted("agent oracle plays without a model"))
    )
    for known, endpoint in [*store.endpoints.items()][: _n_required_endpoints(store)]:
        if not endpoint.is_answering:
            yield MissingItem(
                join([trusted("model "), masked_line(known, 60), _cause_suffix(endpoint.cause or endpoint.failure)]),
                *oracle,
            )
    if store.nodes and not store.endpoints and not read_only:
        yield MissingItem(trusted("no model is checked"), *oracle)
    for env in [env for env in store.envs.values() if env.status in ("down", "wrong")][:MAX_ENVS]:
        what = join([sanitize_line(env.name, 40), _cause_suffix(env.cause or env.status)])
        yield MissingItem(what, trusted("agentgym-runner --list-envs"))


def _n_required_endpoints(store: RunStore) -> int:
    """How many endpoints are missed where they do not answer: those that are asked before the first one that does."""
    first = next((n for n, endpoint in enumerate(store.endpoints.values()) if endpoint.is_answering), MAX_MODELS)
    return min(first, MAX_MODELS)


def _cause_suffix(cause: str | None) -> SafeText:
    return join([trusted(": "), masked_rows(cause)]) if cause else trusted("")


def _item_lines(missing: MissingItem, width: int) -> Iterator[Line]:
    """The command follows where there is room, else it has a line of its own."""
    command: list[Cell] = []
    if missing.command:
        about = [Cell(join([trusted("  "), missing.about]), "dim")] if missing.about else []
        command = [Cell(trusted("  → "), "dim"), Cell(missing.command, "accent"), *about]
    rows: list[list[Cell]] = [
        [Cell(trusted("  ")), Cell(row, missing.tone)] for row in wrap_text(missing.what, width - 2, MAX_ROWS)
    ]
    if rows and command and line_width([*rows[-1], *command]) <= width:
        rows[-1] += command
    elif command:
        rows.append([Cell(trusted("  ")), *command])
    yield from rows
