"""The text shown while there is no episode to watch: the keys to press, and what is missing to run an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from agentgym_tui.presenters.cells import Cell, Line, Tone, key_line, line_width
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.presenters.status_line import LINK_STATES
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import masked_line, masked_rows
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.servers import EndpointState

KEYS: Final = (
    ("run.selected", "run the selected environment once"),
    ("run.form", "choose what to run and how"),
    ("run.battery", "run all environments of a tier"),
)
"""Command ids and help texts, copied from ``commands.keymap``: importing that module would import Textual."""

READ_ONLY_KEYS: Final = (
    ("app.episodes", "stored and running episodes"),
    ("app.help", "show the keys of this screen or dialog"),
    ("app.quit", "quit; asks first if episodes are running"),
)
"""Command ids and help texts of a read-only session."""

BUS_KEYS: Final = (READ_ONLY_KEYS[0], ("app.events", "all bus messages"), READ_ONLY_KEYS[1])
"""Command ids and help texts of a read-only session on a bus."""

_NO_MODEL: Final = "choose the oracle agent: no model needed · your own model: "
MAX_ENVS: Final = 12
MAX_MODELS: Final = 4
MAX_ROWS: Final = 12
"""Maximum number of rows of one missing item or reason."""


_WATCH_STEPS: Final = (
    ("ssh -NL PORT:127.0.0.1:PORT HOST", "PORT of `agentgym-runner nats-info` there"),
    ("NATS_USER, NATS_PASSWORD", "from its credential file, or of your site's broker"),
    ("agentgym-tui watch --nats URL", "docs/watching.md has more"),
)
"""What to do where a bus cannot be reached, and the effect."""


class MissingItem(NamedTuple):
    """Something that is missing to run an episode, and its remedy.

    Attributes:
        text: description of what is missing; may have several lines.
        command: the key to press or the command to type; may be empty.
        effect: the effect of the command; may be empty.
        tone: tone of the text.
    """

    text: str
    command: str = ""
    effect: str = ""
    tone: Tone = "warn"


def welcome_lines(store: RunStore, width: int, key: Callable[[str], str], read_only: str = "") -> list[Line]:
    """Return the lines shown while there is no episode to watch.

    Args:
        store: the run state.
        width: columns of the terminal.
        key: returns the key label of a command id.
        read_only: why this session cannot start a run; "" if it can.
    """
    keys = [key_line(key(id), help_text) for id, help_text in _key_hints(store, read_only)]
    intro: list[Line] = [[Cell(_headline(store, key, read_only), "head")], *keys]
    if read_only:
        intro += [[Cell(row, "dim")] for row in wrap_text(masked_line(read_only), width, MAX_ROWS)]
    link_lines = [row for each in _link_items(store, key, read_only) for row in _item_lines(each, width)]
    item_lines = [row for each in _missing_items(store, key, read_only) for row in _item_lines(each, width)]
    missing: Line = [Cell("Missing", "head")]
    if store.link.status == "failed":
        return [missing, *link_lines, *item_lines, (), *intro]
    return [*intro, *([(), missing, *link_lines, *item_lines] if link_lines or item_lines else [])]


def _key_hints(store: RunStore, read_only: str) -> Sequence[tuple[str, str]]:
    if read_only:
        return READ_ONLY_KEYS if store.link.status == "none" else BUS_KEYS
    return KEYS


def _headline(store: RunStore, key: Callable[[str], str], read_only: str) -> str:
    ending = ". Press" if not read_only else ". Available keys:"
    if store.n_stored:
        lists = f"{key('app.episodes')} lists "
        return f"Nothing is running; {lists}{pluralize(store.n_stored, 'stored episode')}{ending}"
    if store.n_stored is None:
        return f"{('No messages yet' if read_only else 'Nothing is running yet')}{ending}"
    return f"Nothing has been run yet{ending}"


def _link_items(store: RunStore, key: Callable[[str], str], read_only: str) -> Iterator[MissingItem]:
    status = store.link.status
    if status in ("connected", "none"):
        return
    text, tone = LINK_STATES[status]
    problem = f"{text}: {masked_rows(store.link.cause)}" if store.link.cause else text
    if read_only:
        yield MissingItem(problem, tone=tone)
        if status in ("failed", "disconnected"):
            yield from (MissingItem("", step, effect) for step, effect in _WATCH_STEPS)
    elif status in ("failed", "disconnected"):
        yield MissingItem(
            problem,
            key("node.start"),
            "retries" if status == "failed" else "restarts the node",
            tone,
        )
    else:
        yield MissingItem(problem, tone=tone)


def _missing_items(store: RunStore, key: Callable[[str], str], read_only: str) -> Iterator[MissingItem]:
    """Yield missing models before missing environments, because there are fewer models."""
    oracle = ("", "") if read_only else (key("run.form"), f"{_NO_MODEL}{key('model.form')}")
    for name, endpoint in [*store.endpoints.items()][: _n_required_endpoints(store)]:
        if not endpoint.is_answering:
            yield MissingItem(
                "".join(["model ", masked_line(name, 60), *map(_cause_suffix, _problem(endpoint))]),
                *oracle,
            )
    if store.nodes and not store.endpoints and not read_only:
        yield MissingItem("no model checked yet", *oracle)
    for env in [env for env in store.envs.values() if env.status in ("down", "wrong")][:MAX_ENVS]:
        text = f"{env.name}{_cause_suffix(env.cause or env.status)}"
        yield MissingItem(text, "agentgym-runner --list-envs")


def _n_required_endpoints(store: RunStore) -> int:
    first = next(
        (index for index, endpoint in enumerate(store.endpoints.values()) if endpoint.is_answering), MAX_MODELS
    )
    return min(first, MAX_MODELS)


def _problem(endpoint: EndpointState) -> tuple[str | None, str | None]:
    """Return why an endpoint does not answer, and what to do about it where it answers but cannot be used."""
    return endpoint.cause or endpoint.failure, endpoint.hint if endpoint.status == "wrong" else None


def _cause_suffix(cause: str | None) -> str:
    return f": {masked_rows(cause)}" if cause else ""


def _item_lines(missing: MissingItem, width: int) -> Iterator[Line]:
    """Yield the text of a missing item, with the command on the last line if it fits, else on an additional line."""
    command: list[Cell] = []
    if missing.command:
        effect = [Cell(f"  {missing.effect}", "dim")] if missing.effect else []
        command = [Cell("  → ", "dim"), Cell(missing.command, "accent"), *effect]
    rows: list[list[Cell]] = [
        [Cell("  "), Cell(row, missing.tone)] for row in wrap_text(missing.text, width - 2, MAX_ROWS)
    ]
    if rows and command and line_width([*rows[-1], *command]) <= width:
        rows[-1] += command
    elif command:
        rows.append([Cell("  "), *command])
    yield from rows
