"""What is said above and below the live screen's tables: state of the link and the node, progress, rewards, help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters import braille as plot
from agentgym_tui.presenters.cells import Cell, Line, Tone
from agentgym_tui.presenters.model_answer import FELL, answered_by, endpoint_state
from agentgym_tui.presenters.number_format import UNKNOWN, cost, duration, percent, quantity, reward
from agentgym_tui.presenters.segments import BETWEEN, joined, told
from agentgym_tui.presenters.text_width import cells, cut, cut_start, line_width, wrapped
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.state.models import BatchRun, Episode, LinkStatus, NodeInfo
from agentgym_tui.state.run_store import RunStore
from runner.types import Tokens

if TYPE_CHECKING:
    from runner.store.index_schema import EpisodeRow

OUTCOMES: Final[dict[str, tuple[Safe, Tone]]] = {
    "success": (own("✓ success"), "good"),
    "failure": (own("✗ failure"), "bad"),
    "truncated": (own("… truncated"), "warn"),
    "timeout": (own("◔ timeout"), "warn"),
    "cancelled": (own("○ cancelled"), "dim"),
    "error": (own("! error"), "bad"),
    "interrupted": (own("! interrupted"), "warn"),
}
"""How an episode ended, as a word with a sign."""

ONE_LINE: Final = 143
"""Columns from which on one line is enough for the status."""

NODE_LOST: Final = Cell(own("✗ node lost"), "bad")

LINKS: Final[dict[LinkStatus, tuple[Safe, Tone]]] = {
    "none": (own("no broker"), "dim"),
    "starting": (own("○ node starting"), "warn"),
    "connecting": (own("○ connecting"), "warn"),
    "connected": (own("● connected"), "good"),
    "stalled": (own("◐ broker silent"), "warn"),
    "disconnected": (own("✗ disconnected"), "bad"),
    "failed": (own("✗ failed"), "bad"),
}
"""The way to the bus in words."""

_NO_NEWS: Final = Cell(own("no news of models and machine yet"), "dim")
_LEAST_TITLE: Final = 20
_FEW: Final = 3
"""Endpoints that are told of at most."""
_REST: Final = 60
"""Columns of the status' one line that models and machine get at least."""


def status_lines(store: RunStore, title: str, width: int, *, n_why: int = 0) -> list[Line]:
    """The way to the bus, the node, its directory, models and machine, on two lines where one has no room for them.

    Args:
        store: what is known.
        title: what is looked at.
        width: columns of the terminal.
        n_why: lines that the cause of a failure may take where there is not enough room beside the rest.
    """
    cause, room = _cause(store), width - line_width(_way(store)) - len(BETWEEN.text)
    why = [[Cell(row, "warn")] for row in wrapped(cause, width, n_why)] if n_why and cells(cause) > room else []
    shown = own("") if why else cause
    if width >= ONE_LINE:
        return [joined([*_place(store, title, width - _REST, shown), *_machine_of(store)], width), *why]
    no_news = [_NO_NEWS] if store.link.status not in ("none", "failed") else []
    machine = joined(_machine_of(store) or [no_news], width)
    return [joined(_place(store, title, width, shown), width), machine, *why]


def status_line(store: RunStore, title: str, width: int) -> Line:
    """The same on one line, as far as there is room."""
    return joined([*_place(store, title, width, _cause(store)), *_machine_of(store)], width)


def running_line(store: RunStore, episode: Episode | None, width: int) -> Line:
    """What is watched: environment, task, who plays, how far, and how it ended."""
    if episode is None:
        return joined([[Cell(own("nothing runs"), "dim")]], width)
    room, outcome = max(width // 3, 8), outcome_cell(episode)
    return joined(
        [
            [Cell(cut(line(episode.env or "?", 60), room), "head"), Cell(own(f" task {quantity(episode.task_index)}"))],
            [Cell(cut(outcome.text, room), outcome.tone)],
            answered_by(episode),
            [Cell(own(f"round {quantity(episode.rounds)}"))],
            [Cell(own(f"reward {reward(episode.reward)}"))],
            [Cell(line(_player(episode.agent, episode.model), 80))],
            [Cell(own(f"{quantity(episode.n_missing)} items missing"), "warn")] if episode.n_missing else [],
            _several(store),
            [Cell(_played(episode), "dim")] if episode.steps or episode.duration_s is not None else [],
            [Cell(own(f"cost {cost(episode.cost)}"))] if episode.cost is not None else [],
            [Cell(own("compat rules"), "warn")] if episode.mode == "compat" else [],
            [Cell(line(episode.data_label, 40), "dim")] if episode.data_label else [],
        ],
        width,
    )


def progress_line(
    batch: BatchRun | None, width: int, *, lost: bool = False, spent: tuple[Tokens, float | None] | None = None
) -> Line:
    """How far a batch is, ``lost`` when its node is, and what it has ``spent``; an empty line when none is played."""
    if batch is None:
        return []
    done, planned = batch.n_done, batch.n_planned
    bar = plot.bar(done / planned if planned else 0.0, max(6, min(24, width // 6)))
    return joined(
        [
            [Cell(own(bar), "accent"), Cell(own(f" {quantity(done)}/{quantity(planned) if planned else UNKNOWN}"))],
            [Cell(line(batch.env or "?", 60), "head")],
            [Cell(own("paused"), "warn")] if batch.status == "paused" else [],
            [NODE_LOST] if lost else [Cell(_left(batch))],
            [Cell(own(f"success {quantity(batch.n_success)} of {quantity(done)}"))] if done else [],
            [Cell(own(f"mean reward {reward(batch.mean_reward)}"))] if batch.mean_reward is not None else [],
            [Cell(own(f"{quantity(spent[0].total)} tokens"))] if spent and spent[0].total else [],
            [Cell(own(f"cost {cost(spent[1])}"))] if spent and spent[1] is not None else [],
            [Cell(line(_player(batch.agent, batch.model), 80))] if batch.agent else [],
        ],
        width,
    )


def _way(store: RunStore, *, address: bool = False) -> Line:
    """The way to the bus, and to which nodes."""
    text, tone = LINKS[store.link.status]
    where = store.link.address if address and store.link.status == "connected" else ""
    link = Cell(join([text, told(f" {where}", 60)]) if where else text, tone)
    nodes = _nodes(store)
    return [link, BETWEEN, *nodes] if nodes else [link]


def _place(store: RunStore, title: str, width: int, cause: Safe) -> list[Line]:
    """The way, then what is wrong with it, then the directory, for which the address makes room."""
    node = _only_node(store)
    title = (node.data_dir if node else "") or title
    way = _way(store, address=True)
    if cause or line_width(way) + len(BETWEEN.text) + min(len(title), _LEAST_TITLE) > width:
        way = _way(store)
    room = width - line_width(way) - len(BETWEEN.text)
    if cause:
        why, room = cut(cause, room), room - cells(cause) - len(BETWEEN.text)
        way = [*way, BETWEEN, Cell(why, "warn")] if why else way
    where = cut_start(told(title, 120), room) if room >= min(len(title), _LEAST_TITLE) else own("")
    return [way, [Cell(where, "dim")] if where else []]


def _cause(store: RunStore) -> Safe:
    return told(" · ".join(store.link.cause.split("\n")), 2_000)


def _only_node(store: RunStore) -> NodeInfo | None:
    return next(iter(store.nodes.values())) if len(store.nodes) == 1 else None


def _nodes(store: RunStore) -> Line:
    lost = [node for node in store.nodes.values() if node.lost]
    if len(store.nodes) > 1:
        text = f"{len(store.nodes)} nodes" + (f", {len(lost)} lost" if lost else "")
        return [Cell(own(text), "bad" if lost else "plain")]
    for node in store.nodes.values():
        return [Cell(join([own("node "), line(node.name, 64)])), *_node_state(node)]
    return []


def _node_state(node: NodeInfo) -> Line:
    if node.lost:
        return [Cell(own(" ")), NODE_LOST]
    return [Cell(line(f" {node.status}", 20), "dim")] if node.status else []


def _machine_of(store: RunStore) -> list[Line]:
    """Models, machine, and what was lost."""
    return [each for each in (_models(store), *_machine(_only_node(store)), _lost(store)) if each]


def _models(store: RunStore) -> Line:
    if not store.models:
        return [Cell(own("model not checked"), "dim")] if store.nodes else []
    answering = [known for known, endpoint in store.models.items() if endpoint.answers]
    others = [known for known in store.models if known not in answering]
    if not answering:
        return [Cell(join([own("✗ model "), _states(store, others)]), "bad")]
    in_use, first = answering[0], next(iter(store.models))
    if in_use != first:
        shown = [FELL, own(" model "), _states(store, [in_use]), own(", "), _states(store, others)]
        return [Cell(join(shown), "warn")]
    tone: Tone = "warn" if store.models[in_use].status == "slow" else "good"
    told_of = Cell(join([own("model "), _states(store, [in_use])]), tone)
    return [told_of, Cell(join([own(" ("), _states(store, others), own(")")]), "dim")] if others else [told_of]


def _states(store: RunStore, known: Sequence[str]) -> Safe:
    """Some endpoints, each with how it is."""
    shown = [join([told(each, 40), own(" "), endpoint_state(store.models[each])]) for each in known[:_FEW]]
    return join([*shown, *[own("…")] * (len(known) > _FEW)], ", ")


def _machine(node: NodeInfo | None) -> Iterator[Line]:
    if node is not None and node.cpu is not None and not node.lost:
        yield [Cell(own(f"cpu {percent(node.cpu)} ram {percent(node.ram)}"), "dim")]
        for gpu in node.gpus:
            yield [Cell(line(gpu, 80), "dim")]


def _lost(store: RunStore) -> Line:
    dropped = sum(node.dropped for node in store.nodes.values())
    told_of = [f"{quantity(dropped)} dropped"] if dropped else []
    told_of += [f"{quantity(store.n_malformed)} malformed"] if store.n_malformed else []
    return [Cell(own(", ".join(told_of)), "warn")] if told_of else []


def outcome_cell(episode: Episode | EpisodeRow) -> Cell:
    """How an episode ended, with the type of its error, or that it is being played."""
    if episode.outcome is not None:
        text, tone = OUTCOMES.get(episode.outcome, (line(episode.outcome, 20), "plain"))
        return Cell(join([text, own(": "), line(episode.error_type, 60)]) if episode.error_type else text, tone)
    if isinstance(episode, Episode) and episode.node_lost:
        return NODE_LOST
    paused = isinstance(episode, Episode) and episode.paused
    return Cell(own("‖ paused"), "warn") if paused else Cell(own("▶ running"), "accent")


def _several(store: RunStore) -> Line:
    n_played = sum(episode.played for episode in store.running())
    return [Cell(own(f"{n_played} running"), "dim")] if n_played > 1 else []


def _player(agent: str, model: str | None) -> str:
    return f"{agent or '?'} {model}" if model else f"{agent or '?'} (no model)"


def _played(episode: Episode) -> Safe:
    """How long it took, or its steps so far did."""
    if episode.duration_s is not None:
        return duration(episode.duration_s)
    return duration(sum(step.model_s + step.env_s for step in episode.steps))


def _left(batch: BatchRun) -> Safe:
    return join([own("time left "), duration(batch.eta_s)])
