"""What is said above and below the live screen's tables: state of the link and the node, progress, rewards, help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.clean import Safe, join, line, own
from agentgym_tui.store.rewards import RewardPoint, recent
from agentgym_tui.store.run_store import RunStore
from agentgym_tui.store.state import BatchRun, Episode, LinkStatus, NodeInfo
from agentgym_tui.views import plot
from agentgym_tui.views.cells import Cell, Line, Tone
from agentgym_tui.views.numbers import UNKNOWN, duration, percent, quantity, reward, share
from agentgym_tui.views.segments import cut, joined, told

if TYPE_CHECKING:
    from runner.store.database import EpisodeRow

RECENT: Final = 20
"""Episodes that a success rate over time is made of."""

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

KEYS: Final = (
    ("r", "play the selected environment once"),
    ("R", "choose what to play and how"),
    ("b", "play all environments of a tier"),
)
"""What one may press in an empty console, as ``keymap`` has it; that module imports Textual."""

_LINKS: Final[dict[LinkStatus, tuple[Safe, Tone]]] = {
    "none": (own("no broker"), "dim"),
    "starting": (own("○ node starting"), "warn"),
    "connecting": (own("○ connecting"), "warn"),
    "connected": (own("● connected"), "good"),
    "stalled": (own("◐ broker silent"), "warn"),
    "disconnected": (own("✗ disconnected"), "bad"),
    "failed": (own("✗ failed"), "bad"),
}
_LABEL_WIDTH: Final = 8


def status_line(store: RunStore, title: str, width: int) -> Line:
    """The way to the bus, the node, its directory, models and machine; ``title`` says what is looked at."""
    node = next(iter(store.nodes.values())) if len(store.nodes) == 1 else None
    state = [_link(store), _nodes(store), _cause(store, width), _title(title, node), _models(store)]
    return joined([*state, *_machine(node), _lost(store)], width)


def place_line(store: RunStore, title: str, width: int) -> Line:
    """The first part of the above, for a line of its own."""
    node = next(iter(store.nodes.values())) if len(store.nodes) == 1 else None
    return joined([_link(store), _nodes(store), _cause(store, width), _title(title, node)], width)


def machine_line(store: RunStore, width: int) -> Line:
    """The second part: models, machine, and what was lost."""
    node = next(iter(store.nodes.values())) if len(store.nodes) == 1 else None
    return joined([_models(store), *_machine(node), _lost(store)], width)


def running_line(store: RunStore, episode: Episode | None, width: int) -> Line:
    """What is watched: environment, task, who plays, how far, and how it ended."""
    if episode is None:
        return joined([[Cell(own("nothing runs"), "dim")]], width)
    return joined(
        [
            [Cell(line(episode.env or "?", 60), "head"), Cell(own(f" task {quantity(episode.task_index)}"))],
            [outcome_cell(episode)],
            [Cell(own(f"round {quantity(episode.rounds)}"))],
            [Cell(own(f"reward {reward(episode.reward)}"))],
            [Cell(line(_player(episode.agent, episode.model), 80))],
            [Cell(own(f"{quantity(episode.n_missing)} items missing"), "warn")] if episode.n_missing else [],
            [_several(store)] if len(store.running()) > 1 else [],
            [Cell(_played(episode), "dim")],
            [Cell(own("compat rules"), "warn")] if episode.mode == "compat" else [],
            [Cell(line(episode.data_label, 40), "dim")] if episode.data_label else [],
        ],
        width,
    )


def progress_line(batch: BatchRun | None, width: int) -> Line:
    """How far a batch is; an empty line when none is played."""
    if batch is None:
        return []
    done, planned = batch.n_done, batch.n_planned
    bar = plot.bar(done / planned if planned else 0.0, max(6, min(24, width // 6)))
    return joined(
        [
            [Cell(own(bar), "accent"), Cell(own(f" {quantity(done)}/{quantity(planned) if planned else UNKNOWN}"))],
            [Cell(line(batch.env or "?", 60), "head")],
            [Cell(own("paused"), "warn")] if batch.status == "paused" else [],
            [Cell(_left(batch))],
            [Cell(own(f"success {quantity(batch.n_success)} of {quantity(done)}"))] if done else [],
            [Cell(own(f"mean reward {reward(batch.mean_reward)}"))] if batch.mean_reward is not None else [],
            [Cell(line(_player(batch.agent, batch.model), 80))] if batch.agent else [],
        ],
        width,
    )


def reward_lines(points: Sequence[RewardPoint], width: int, height: int) -> list[Line]:
    """Rewards of the newest episodes as columns, below them the success rate of the last ``RECENT``, and how many."""
    shown = recent(points, max(width - _LABEL_WIDTH, 0))
    if not shown or height < 1 or width <= _LABEL_WIDTH:
        return [joined([[Cell(own("no rated episode yet"), "dim")]], width)][:height]
    rewards = [point.reward for point in shown]
    low, high = plot.extent(rewards)
    columns = plot.columns(rewards, width - _LABEL_WIDTH, max(height - 2, 1), low, high)
    labels = [reward(high), *[own("")] * (len(columns) - 2), reward(low)][: len(columns)]
    lines: list[Line] = [_labelled(label, column) for label, column in zip(labels, columns, strict=True)]
    shares = plot.moving_share([point.success for point in shown], RECENT)
    spark = plot.columns(shares, width - _LABEL_WIDTH, 1, 0.0, 1.0)
    lines.append(_labelled(percent(100 * shares[-1]), spark[0], "good"))
    return [*lines, _legend(shown, width)][:height]


def empty_lines(store: RunStore) -> list[Line]:
    """What to press when nothing was played, and what is missing, each with what to do."""
    keys: Sequence[Line] = [[Cell(own(f"  {key}  "), "accent"), Cell(own(what))] for key, what in KEYS]
    missing = list(_missing(store))
    lines: list[Line] = [[Cell(own("Nothing has been played yet. Press"), "head")], *keys]
    if missing:
        lines += [[Cell(own(""))], [Cell(own("Missing"), "head")], *missing]
    return lines


def _missing(store: RunStore) -> Iterator[Line]:
    text, tone = _LINKS[store.link.status]
    if store.link.status not in ("connected", "none"):
        command = own("agentgym-runner node") if store.nodes else own("agentgym-tui launch")
        yield _lacking(join([text, _because(store.link.cause)]), command, tone)
    unwell = [env for env in store.envs.values() if env.status in ("down", "wrong")]
    for env in unwell[:12]:
        yield _lacking(
            join([line(env.name, 40), own(": "), told(env.cause or env.status, 80)]), own("agentgym-runner --list-envs")
        )
    models = [(endpoint, cause) for endpoint, (status, cause) in store.models.items() if status in ("down", "wrong")]
    for endpoint, cause in models[:4]:
        yield _lacking(
            join([own("model "), told(endpoint, 60), _because(cause)]), own("R, agent oracle: plays without a model")
        )
    if store.nodes and not store.models:
        yield _lacking(own("no model is checked"), own("R, agent oracle: plays without a model"))


def _lacking(what: Safe, command: Safe, tone: Tone = "warn") -> list[Cell]:
    return [Cell(own("  ")), Cell(what, tone), Cell(own("  → "), "dim"), Cell(command, "accent")]


def _because(cause: str | None) -> Safe:
    return join([own(": "), told(cause, 120)]) if cause else own("")


def _link(store: RunStore) -> Line:
    text, tone = _LINKS[store.link.status]
    address = told(f" {store.link.address}", 60) if store.link.status == "connected" and store.link.address else own("")
    return [Cell(join([text, address]), tone)]


def _cause(store: RunStore, width: int) -> Line:
    """Short enough to leave the state of the node beside it."""
    return [cut(told(store.link.cause), max(min(width - 60, 80), 20), "warn")] if store.link.cause else []


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
        return [Cell(own(" ✗ node lost"), "bad")]
    return [Cell(line(f" {node.status}", 20), "dim")] if node.status else []


def _title(title: str, node: NodeInfo | None) -> Line:
    shown = (node.data_dir if node else "") or title
    return [Cell(told(shown, 120), "dim")] if shown else []


def _models(store: RunStore) -> Line:
    if not store.models:
        return [Cell(own("model not checked"), "dim")] if store.nodes else []
    unwell = [(endpoint, status) for endpoint, (status, _) in store.models.items() if status not in ("up", "embedded")]
    if not unwell:
        return [Cell(join([own("model "), told(next(iter(store.models)), 60), own(" up")]), "good")]
    endpoint, status = unwell[0]
    return [Cell(join([own("model "), told(endpoint, 60), line(f" {status}", 20)]), "warn")]


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
        return Cell(own("✗ node lost"), "bad")
    paused = isinstance(episode, Episode) and episode.paused
    return Cell(own("‖ paused"), "warn") if paused else Cell(own("▶ running"), "accent")


def _several(store: RunStore) -> Cell:
    return Cell(own(f"{len(store.running())} running"), "dim")


def _player(agent: str, model: str | None) -> str:
    return f"{agent or '?'} {model}" if model else f"{agent or '?'} (no model)"


def _played(episode: Episode) -> Safe:
    """How long it took, or its steps so far did."""
    if episode.duration_s is not None:
        return duration(episode.duration_s)
    return duration(sum(step.model_s + step.env_s for step in episode.steps))


def _left(batch: BatchRun) -> Safe:
    return join([own("time left "), duration(batch.eta_s)])


def _labelled(label: Safe, columns: str, tone: Tone = "accent") -> list[Cell]:
    return [Cell(own(f"{label[: _LABEL_WIDTH - 1]:>{_LABEL_WIDTH - 1}} "), "dim"), Cell(own(columns), tone)]


def _legend(shown: Sequence[RewardPoint], width: int) -> Line:
    n = len(shown)
    who = "baseline " if shown[-1].baseline else ""
    successes = sum(point.success for point in shown[-RECENT:])
    rate = share(successes, min(n, RECENT))
    return joined(
        [[Cell(own(f"{n} {who}episodes"), "dim")], [Cell(own(f"success {rate} of last {min(n, RECENT)}"))]],
        width,
    )
