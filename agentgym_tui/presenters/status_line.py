"""The status line of all screens, and the lines about the watched episode and the running batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.cells import (
    SEPARATOR,
    Cell,
    Line,
    Tone,
    cost_part,
    cut,
    cut_start,
    display_width,
    join_parts,
    line_width,
    shorten_environment,
    tokens_part,
    wrap_text,
)
from agentgym_tui.presenters.episode_facts import FALLBACK_MARK, endpoint_state, fallback_note
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_percent,
    format_reward,
    format_time_left,
    pluralize,
    progress_bar,
)
from agentgym_tui.safe_text import masked_line, player_text
from agentgym_tui.state.batches import ACTIVE, BatchRun
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.nodes import BusLinkStatus, NodeInfo
from runner.types import UNKNOWN_OUTCOME, Tokens, is_result_unknown

if TYPE_CHECKING:
    from agentgym_tui.state.run_store import RunStore
    from runner.store.index_schema import EpisodeRow

OUTCOMES: Final[dict[str, tuple[str, Tone]]] = {
    "success": ("✓ success", "good"),
    "failure": ("✗ failure", "bad"),
    "truncated": ("… stopped at limit", "warn"),
    "timeout": ("◔ timeout", "warn"),
    "cancelled": ("○ cancelled", "dim"),
    "error": ("! error", "bad"),
    "interrupted": ("! interrupted", "warn"),
    UNKNOWN_OUTCOME: ("? unknown", "dim"),
}

ONE_LINE_WIDTH: Final = 143

NODE_LOST: Final = Cell("✗ node lost", "bad")

LINK_STATES: Final[dict[BusLinkStatus, tuple[str, Tone]]] = {
    "none": ("opened files", "dim"),
    "starting": ("○ node starting", "warn"),
    "connecting": ("○ connecting", "warn"),
    "connected": ("● connected", "good"),
    "stalled": ("◐ broker silent", "warn"),
    "disconnected": ("✗ disconnected", "bad"),
    "failed": ("✗ no connection", "bad"),
}

_MIN_TITLE: Final = 20
_MAX_ENDPOINTS: Final = 3
_MIN_HOST_WIDTH: Final = 60
"""Columns reserved for models and host computer if the status has one line."""
_GAP: Final = len(SEPARATOR.text)


def status_lines(
    store: RunStore, title: str, width: int, *, max_cause_lines: int = 0, problem: Line = ()
) -> list[Line]:
    """Describe the bus link, nodes, state directory, models and host computer on one line, on two if it is narrow.

    Up to ``max_cause_lines`` more have the cause of a failed link. ``title`` is shown while no node reports its state
    directory, ``problem`` is what is wrong with the machine.
    """
    cause, cause_lines = _cause_text(store), list[Line]()
    room = width - (_MIN_HOST_WIDTH if width >= ONE_LINE_WIDTH else 0)
    if width > 1 and max_cause_lines and display_width(cause) > room - line_width(_link_cells(store, "")) - _GAP:
        cause_lines = [[Cell(row, "warn")] for row in wrap_text(cause, width, max_cause_lines)]
        cause = ""
    host = _host_parts(store)
    host[1:1] = [problem] if problem else []
    if width >= ONE_LINE_WIDTH:
        parts = [*_location_parts(store, title, room, cause), *host]
        return [join_parts(parts, width), *cause_lines]
    if not host and store.link.status not in ("none", "failed"):
        host = [[Cell("waiting for the first report of the node", "dim")]]
    return [join_parts(_location_parts(store, title, width, cause), width), join_parts(host, width), *cause_lines]


def status_line(store: RunStore, title: str, width: int) -> Line:
    """Describe the same status as ``status_lines`` on one line; skip each part that does not fit."""
    return join_parts([*_location_parts(store, title, width, _cause_text(store)), *_host_parts(store)], width)


def episode_line(store: RunStore, episode: Episode | None, width: int) -> Line:
    if episode is None:
        return join_parts([[Cell("no episode running", "dim")]], width)
    room = max(width // 3, 8)
    env = Cell(shorten_environment(episode.env or "?", room), "head").cut(room)
    n_running = sum(each.is_active for each in store.running_episodes())
    played_s = sum(step.model_s + step.env_s for step in episode.steps)
    elapsed = format_duration(played_s if episode.duration_s is None else episode.duration_s)
    parts: list[Line] = [
        [env, Cell(f" task {format_count(episode.task_index)}")],
        [outcome_cell(episode, room).cut(room)],
        fallback_note(episode),
        [Cell(f"round {format_count(episode.rounds)}")],
        [Cell(f"reward {format_reward(episode.reward)}")],
        [Cell(player_text(episode.agent or "?", episode.models or "(no model)" * bool(episode.agent)))],
        [Cell(f"{format_count(episode.n_missing)} items missing", "warn")] if episode.n_missing else [],
        [Cell(f"{n_running} running", "dim")] if n_running > 1 else [],
        [Cell(elapsed, "dim")] if episode.steps or episode.duration_s is not None else [],
        cost_part(episode.cost, store.currency),
        [Cell("AgentGym's rules (compat)", "warn")] if episode.mode == "compat" else [],
        [Cell(episode.data_label, "dim")] if episode.data_label else [],
    ]
    return join_parts(parts, width)


def progress_line(
    batch: BatchRun | None,
    width: int,
    *,
    now: float,
    lost: bool = False,
    spent: tuple[Tokens, float | None] | None = None,
    n_waiting: int = 0,
    currency: str = "",
) -> Line:
    """Describe the progress of a batch; ``spent`` has tokens and cost of all its episodes, also of running ones."""
    if batch is None:
        return []
    done, planned, workers = batch.n_done, batch.n_planned, batch.workers
    bar = progress_bar(done / planned if planned else 0.0, max(6, min(24, width // 6)))
    counts = f" {format_count(done)}/{format_count(planned) if planned else UNKNOWN}"
    first: list[Line] = [[Cell(bar, "accent"), Cell(counts)], [Cell(batch.env or "?", "head")]]
    room = width - line_width(join_parts(first, width)) - _GAP
    is_interrupted = batch.status == "interrupted"
    why = masked_line(f"interrupted: {batch.interruption}" if batch.interruption else "interrupted", 300)
    worker_part = [Cell(workers.text, "warn" if workers.lost else "plain")] if workers and not is_interrupted else []
    is_incomplete = workers is not None and bool(workers.starting or workers.lost)
    parts: list[Line] = [
        *first,
        [Cell("paused", "warn")] if batch.status == "paused" else [],
        [Cell(cut(why, room), "warn")] if is_interrupted else [],
        [NODE_LOST] if lost else [] if is_interrupted else [_time_cell(batch, now)],
        worker_part if is_incomplete else [],
        [Cell(f"{n_waiting:,} waiting")] if n_waiting else [],
        [Cell(f"success {format_count(batch.n_success)} of {format_count(batch.n_rated)}")] if batch.n_rated else [],
        [Cell(pluralize(batch.n_errors, "error"), "bad")] if batch.n_errors else [],
        [Cell(f"mean reward {format_reward(batch.mean_reward)}")] if batch.mean_reward is not None else [],
        [] if is_incomplete else worker_part,
        tokens_part(spent[0].total if spent else 0),
        cost_part(spent[1] if spent else None, currency),
        [Cell(player_text(batch.agent, batch.models or "(no model)"))] if batch.agent else [],
        [Cell(masked_line(batch.waiting_for, 200), "warn")] if batch.waiting_for and not lost else [],
    ]
    return join_parts(parts, width)


def _location_parts(store: RunStore, title: str, width: int, cause: str) -> list[Line]:
    node = _only_node(store)
    title = (node.data_dir if node else "") or title
    title = "" if title in cause else title  # the cause names the folder
    least = min(len(title), _MIN_TITLE)
    link = _link_cells(store, store.link.address if store.link.status == "connected" and not cause else "")
    if line_width(link) + _GAP + least > width:
        link = _link_cells(store, "")
    room = width - line_width(link) - _GAP
    reason = cut(cause, room) if cause else ""
    room -= display_width(cause) + _GAP if cause else 0
    folder = cut_start(masked_line(title, 120), room) if room >= least else ""
    return [link, [Cell(reason, "warn")] if reason else [], [Cell(folder, "dim")] if folder else []]


def _link_cells(store: RunStore, address: str) -> Line:
    text, tone = LINK_STATES[store.link.status]
    nodes = _node_cells(store)
    link = Cell(f"{text} {masked_line(address, 60)}" if address else text, tone)
    return [link, SEPARATOR, *nodes] if nodes else [link]


def _node_cells(store: RunStore) -> Line:
    if (node := _only_node(store)) is None:
        n_lost = sum(each.lost for each in store.nodes.values())
        text = f"{len(store.nodes)} nodes" + (f", {n_lost} lost" if n_lost else "")
        return [Cell(text, "bad" if n_lost else "plain")] if store.nodes else []
    state = [Cell(" "), NODE_LOST] if node.lost else [Cell(f" {store.node_status(node)}", "dim")] if node.status else []
    profile: Line = []
    if (difference := store.profile_difference) is not None:
        changed = "its profile" if difference.is_changed else "a variable of its profile"
        profile = [SEPARATOR, Cell("runs another profile" if difference.is_other else f"{changed} has changed", "warn")]
    return [Cell(f"node {node.name}"), *state, *profile]


def _only_node(store: RunStore) -> NodeInfo | None:
    return next(iter(store.nodes.values())) if len(store.nodes) == 1 else None


def _cause_text(store: RunStore) -> str:
    full = [node for node in store.nodes.values() if node.storage and not node.lost]
    name = "{}: {}" if len(store.nodes) > 1 else "{1}"
    cause = store.link.cause if store.link.status != "none" else ""
    causes = [cause] if cause else [name.format(node.name, node.storage) for node in full]
    return masked_line(" · ".join(causes).replace("\n", " · "), 2_000)


def _host_parts(store: RunStore) -> list[Line]:
    parts, node = [_model_part(store)], _only_node(store)
    if node is not None and node.machine is not None and not node.lost:
        machine = node.machine.latest
        parts.append([Cell(f"cpu {format_percent(machine.cpu)} ram {format_percent(machine.ram)}", "dim")])
        for gpu in (each for each in machine.gpu if each.lost is None):
            used, total = (gpu.mem_used or 0) / 2**30, (gpu.mem_total or 0) / 2**30
            parts.append(
                [Cell(f"{(gpu.name or 'GPU')[:40]} {format_percent(gpu.util or 0)} {used:.1f}/{total:.1f} GiB", "dim")]
            )
    n_dropped, n_malformed, n_lost, n_missing = count_losses(store)
    losses = (
        (n_dropped, f"{pluralize(n_dropped, 'live item')} not sent"),
        (n_malformed, f"{pluralize(n_malformed, 'malformed message')}"),
        (n_lost, f"{pluralize(n_lost, 'message')} lost"),
        (n_missing, f"{pluralize(n_missing, 'item')} missing"),
    )
    lost = ", ".join(text for n, text in losses if n)
    return [part for part in (*parts, [Cell(lost, "warn")] if lost else []) if part]


def count_losses(store: RunStore) -> tuple[int, int, int, int]:
    """Count what nodes dropped, malformed messages, lost messages, and missing live items."""
    n_dropped = sum(node.dropped for node in store.nodes.values())
    return n_dropped, store.n_malformed, store.notice_list.n_lost, store.episode_registry.n_missing


def _model_part(store: RunStore) -> Line:
    if not store.endpoints:
        return [Cell("model not checked", "dim")] if store.nodes else []
    if store.nodes and all(node.lost for node in store.nodes.values()):
        return [Cell("model unknown", "dim")]
    answering = [name for name, endpoint in store.endpoints.items() if endpoint.is_answering]
    others = _endpoint_states(store, [name for name in store.endpoints if name not in answering])
    if not answering:
        return [Cell(f"✗ model {others}", "bad")]
    in_use = _endpoint_states(store, answering[:1])
    if answering[0] != next(iter(store.endpoints)):
        return [Cell(f"{FALLBACK_MARK} model {in_use}, {others}", "warn")]
    tone: Tone = "warn" if store.endpoints[answering[0]].status == "slow" else "good"
    return [Cell(f"model {in_use}", tone), *([Cell(f" ({others})", "dim")] if others else [])]


def _endpoint_states(store: RunStore, names: Sequence[str]) -> str:
    shown = [f"{masked_line(name, 40)} {endpoint_state(store.endpoints[name])}" for name in names[:_MAX_ENDPOINTS]]
    return ", ".join([*shown, *["…"] * (len(names) > _MAX_ENDPOINTS)])


def outcome_cell(episode: Episode | EpisodeRow, width: int = 80) -> Cell:
    """Return the outcome of an episode, or its state, with the longest reason that fits into ``width`` columns."""
    if episode.outcome is not None:
        text, tone = OUTCOMES.get(episode.outcome, (episode.outcome, "plain"))
        text = next((reason for reason in _outcome_reasons(episode) if display_width(reason) <= width), text)
        detail = f": {episode.error_type}" if episode.error_type else ""
        return Cell(f"{text}{detail}{', unscored' if episode.unscored else ''}", tone)
    if isinstance(episode, Episode) and (episode.node_lost or episode.paused):
        return NODE_LOST if episode.node_lost else Cell("‖ paused", "warn")
    return Cell("▶ running", "accent")


def _outcome_reasons(episode: Episode | EpisodeRow) -> Iterator[str]:
    rounds, last = pluralize(episode.rounds, "round"), episode.steps[-1:] if isinstance(episode, Episode) else []
    if episode.outcome == "truncated" and last and last[0].done:
        yield f"… stopped by the environment after {rounds}"
    elif episode.outcome == "truncated":
        yield f"… stopped at the limit of {rounds}"
        yield f"… limit of {rounds}"
    elif episode.outcome == "timeout" and episode.duration_s is not None:
        yield f"◔ timeout after {format_duration(episode.duration_s)}"
    elif episode.outcome == "failure" and last and not last[0].done and not last[0].valid:
        yield "✗ failure: too many invalid actions"
    elif episode.outcome == "interrupted":
        is_unknown = is_result_unknown(episode.transport, episode.outcome, unscored=episode.unscored)
        yield ("? unknown" if is_unknown else "‖ interrupted: its batch was stopped, or its process ended")


def _time_cell(batch: BatchRun, now: float) -> Cell:
    if batch.waiting_s is None:
        return Cell(f"time left {format_time_left(time_left(batch, now))}")
    left = format_time_left(max(batch.waiting_s - _passed_s(batch, now), 0.0))
    return Cell(f"waiting for the server, {left} left", "warn")


def time_left(batch: BatchRun, now: float) -> float | None:
    """Return the estimated seconds until a batch ends, which pass while it runs; None if not known, or used up."""
    if batch.eta_s is None or batch.status not in ACTIVE:
        return None
    left = batch.eta_s - _passed_s(batch, now)
    return left if left > 0 else None


def _passed_s(batch: BatchRun, now: float) -> float:
    return 0.0 if batch.eta_at_s is None or batch.status != "running" else max(now - batch.eta_at_s, 0.0)
