"""Status of bus link, nodes and models; description of the watched episode; progress of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.answering_endpoint import FALLBACK_MARK, endpoint_state, fallback_note
from agentgym_tui.presenters.cells import SEPARATOR, Cell, Line, Tone, cost_part, join_parts, line_width, tokens_part
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
from agentgym_tui.presenters.text_width import cut, cut_start, display_width, shorten_environment, wrap_text
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.nodes import BusLinkStatus, NodeInfo, ProfileDifference
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
"""Label and tone of each episode outcome."""

ONE_LINE_WIDTH: Final = 143
"""Minimum terminal width, in columns, for a status of one line."""

NODE_LOST: Final = Cell("✗ node lost", "bad")

LINK_STATES: Final[dict[BusLinkStatus, tuple[str, Tone]]] = {
    "none": ("no broker", "dim"),
    "starting": ("○ node starting", "warn"),
    "connecting": ("○ connecting", "warn"),
    "connected": ("● connected", "good"),
    "stalled": ("◐ broker silent", "warn"),
    "disconnected": ("✗ disconnected", "bad"),
    "failed": ("✗ failed", "bad"),
}
"""Label and tone of each state of the bus link."""

_NO_STATUS: Final = Cell("no model or host status yet", "dim")
_MIN_TITLE: Final = 20
_MAX_ENDPOINTS: Final = 3
"""Maximum number of endpoints named in the status."""
_MIN_HOST_WIDTH: Final = 60
_GIB: Final = 1 << 30
"""Columns reserved for models and host computer if the status has one line."""


def status_lines(
    store: RunStore, title: str, width: int, *, max_cause_lines: int = 0, problem: Line = ()
) -> list[Line]:
    """Describe the bus link, nodes, state directory, models and host computer.

    The result has one line on a terminal of at least ``ONE_LINE_WIDTH`` columns, else two, plus the lines of the cause.

    Args:
        store: the run state.
        title: location of the session, used when no node reports its state directory.
        width: columns of the terminal.
        max_cause_lines: maximum number of additional lines for the cause of a failed link. These lines are used only
            if the cause does not fit into the first line.
        problem: what is wrong with the machine.
    """
    cause, room = _cause_text(store), width - line_width(_connection_cells(store)) - len(SEPARATOR.text)
    cause_lines = (
        [[Cell(cut(row, width), "warn")] for row in wrap_text(cause, width, max_cause_lines)]
        if max_cause_lines and display_width(cause) > room
        else []
    )
    shown = "" if cause_lines else cause
    host = _host_parts(store)
    host[1:1] = [problem] if problem else []
    if width >= ONE_LINE_WIDTH:
        return [
            join_parts([*_location_parts(store, title, width - _MIN_HOST_WIDTH, shown), *host], width),
            *cause_lines,
        ]
    no_status = [_NO_STATUS] if store.link.status not in ("none", "failed") else []
    second = join_parts(host or [no_status], width)
    return [join_parts(_location_parts(store, title, width, shown), width), second, *cause_lines]


def status_line(store: RunStore, title: str, width: int) -> Line:
    """Describe the same status as ``status_lines`` on one line; skip each part that does not fit."""
    return join_parts([*_location_parts(store, title, width, _cause_text(store)), *_host_parts(store)], width)


def episode_line(store: RunStore, episode: Episode | None, width: int) -> Line:
    """Describe the watched episode: environment, task, outcome, progress and agent."""
    if episode is None:
        return join_parts([[Cell("no episode running", "dim")]], width)
    room = max(width // 3, 8)
    outcome = outcome_cell(episode, room)
    return join_parts(
        [
            [
                Cell(cut(shorten_environment(episode.env or "?", room), room), "head"),
                Cell(f" task {format_count(episode.task_index)}"),
            ],
            [Cell(cut(outcome.text, room), outcome.tone)],
            fallback_note(episode),
            [Cell(f"round {format_count(episode.rounds)}")],
            [Cell(f"reward {format_reward(episode.reward)}")],
            [Cell(_agent_text(episode.agent, episode.models))],
            [Cell(f"{format_count(episode.n_missing)} items missing", "warn")] if episode.n_missing else [],
            _running_count(store),
            [Cell(_elapsed(episode), "dim")] if episode.steps or episode.duration_s is not None else [],
            cost_part(episode.cost, store.currency),
            [Cell("compat rules", "warn")] if episode.mode == "compat" else [],
            [Cell(episode.data_label, "dim")] if episode.data_label else [],
        ],
        width,
    )


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
    """Describe the progress of a batch; return an empty line if there is no batch.

    Args:
        batch: the batch; None if there is none.
        width: columns available.
        now: seconds of the console's monotonic clock.
        lost: whether the batch's node is lost.
        spent: tokens and cost of all episodes of the batch, including running episodes; the cost is None if unknown.
        n_waiting: number of batches that wait.
        currency: currency of the cost.
    """
    if batch is None:
        return []
    done, planned, rated = batch.n_done, batch.n_planned, batch.n_rated
    bar = progress_bar(done / planned if planned else 0.0, max(6, min(24, width // 6)))
    counts = f" {format_count(done)}/{format_count(planned) if planned else UNKNOWN}"
    first: list[Line] = [
        [Cell(bar, "accent"), Cell(counts)],
        [Cell(batch.env or "?", "head")],
    ]
    room = width - line_width(join_parts(first, width)) - len(SEPARATOR.text)
    incomplete = batch.workers is not None and (batch.workers.starting or batch.workers.lost)
    return join_parts(
        [
            *first,
            [Cell("paused", "warn")] if batch.status == "paused" else [],
            _interruption_cells(batch, room),
            [NODE_LOST] if lost else _time_cells(batch, now),
            _worker_cells(batch) if incomplete else [],
            [Cell(f"{n_waiting:,} waiting")] if n_waiting else [],
            [Cell(f"success {format_count(batch.n_success)} of {format_count(rated)}")] if rated else [],
            [Cell(pluralize(batch.n_errors, "error"), "bad")] if batch.n_errors else [],
            [Cell(f"mean reward {format_reward(batch.mean_reward)}")] if batch.mean_reward is not None else [],
            [] if incomplete else _worker_cells(batch),
            tokens_part(spent[0].total if spent else 0),
            cost_part(spent[1] if spent else None, currency),
            [Cell(_agent_text(batch.agent, batch.models))] if batch.agent else [],
            [Cell(masked_line(batch.waiting_for, 200), "warn")] if batch.waiting_for and not lost else [],
        ],
        width,
    )


def _connection_cells(store: RunStore, *, address: bool = False) -> Line:
    text, tone = LINK_STATES[store.link.status]
    shown_address = store.link.address if address and store.link.status == "connected" else ""
    link = Cell("".join([text, masked_line(f" {shown_address}", 60)]) if shown_address else text, tone)
    nodes = _node_cells(store)
    return [link, SEPARATOR, *nodes] if nodes else [link]


def _location_parts(store: RunStore, title: str, width: int, cause: str) -> list[Line]:
    """Describe the bus link, its problem and the state directory; drop the bus address if space is short."""
    node = _only_node(store)
    title = (node.data_dir if node else "") or title
    link = _connection_cells(store, address=True)
    if cause or line_width(link) + len(SEPARATOR.text) + min(len(title), _MIN_TITLE) > width:
        link = _connection_cells(store)
    room = width - line_width(link) - len(SEPARATOR.text)
    if cause:
        reason, room = cut(cause, room), room - display_width(cause) - len(SEPARATOR.text)
        link = [*link, SEPARATOR, Cell(reason, "warn")] if reason else link
    folder = cut_start(masked_line(title, 120), room) if room >= min(len(title), _MIN_TITLE) else ""
    return [link, [Cell(folder, "dim")] if folder else []]


def _cause_text(store: RunStore) -> str:
    causes = [store.link.cause] if store.link.cause else _storage_problems(store)
    return masked_line(" · ".join(line for cause in causes for line in cause.split("\n")), 2_000)


def _storage_problems(store: RunStore) -> list[str]:
    full = [node for node in store.nodes.values() if node.storage and not node.lost]
    return [f"{node.name}: {node.storage}" if len(store.nodes) > 1 else node.storage for node in full]


def _only_node(store: RunStore) -> NodeInfo | None:
    return next(iter(store.nodes.values())) if len(store.nodes) == 1 else None


def _node_cells(store: RunStore) -> Line:
    lost = [node for node in store.nodes.values() if node.lost]
    if len(store.nodes) > 1:
        text = f"{len(store.nodes)} nodes" + (f", {len(lost)} lost" if lost else "")
        return [Cell(text, "bad" if lost else "plain")]
    for node in store.nodes.values():
        return [
            Cell(f"node {node.name}"),
            *_node_state(store, node),
            *_profile_cells(store.profile_difference),
        ]
    return []


def _node_state(store: RunStore, node: NodeInfo) -> Line:
    if node.lost:
        return [Cell(" "), NODE_LOST]
    return [Cell(f" {store.node_status(node)}", "dim")] if node.status else []


def _profile_cells(difference: ProfileDifference | None) -> Line:
    if difference is None:
        return []
    changed = "its profile" if difference.is_changed else "a variable"
    return [SEPARATOR, Cell("other profile" if difference.is_other else f"{changed} has changed", "warn")]


def _host_parts(store: RunStore) -> list[Line]:
    return [each for each in (_model_part(store), *_load_parts(_only_node(store)), _loss_part(store)) if each]


def _model_part(store: RunStore) -> Line:
    if not store.endpoints:
        return [Cell("model not checked", "dim")] if store.nodes else []
    if store.nodes and all(node.lost for node in store.nodes.values()):
        return [Cell("model unknown", "dim")]
    answering = [name for name, endpoint in store.endpoints.items() if endpoint.is_answering]
    others = [name for name in store.endpoints if name not in answering]
    if not answering:
        return [Cell(f"✗ model {_endpoint_states(store, others)}", "bad")]
    in_use, first = answering[0], next(iter(store.endpoints))
    if in_use != first:
        shown = (FALLBACK_MARK, _endpoint_states(store, [in_use]), _endpoint_states(store, others))
        return [Cell("{} model {}, {}".format(*shown), "warn")]
    tone: Tone = "warn" if store.endpoints[in_use].status == "slow" else "good"
    primary = Cell(f"model {_endpoint_states(store, [in_use])}", tone)
    return [primary, *([Cell(f" ({_endpoint_states(store, others)})", "dim")] if others else [])]


def _endpoint_states(store: RunStore, names: Sequence[str]) -> str:
    shown = [f"{masked_line(name, 40)} {endpoint_state(store.endpoints[name])}" for name in names[:_MAX_ENDPOINTS]]
    return ", ".join([*shown, *["…"] * (len(names) > _MAX_ENDPOINTS)])


def _load_parts(node: NodeInfo | None) -> Iterator[Line]:
    if node is not None and node.machine is not None and not node.lost:
        machine = node.machine.latest
        yield [Cell(f"cpu {format_percent(machine.cpu)} ram {format_percent(machine.ram)}", "dim")]
        for gpu in (each for each in machine.gpu if each.lost is None):
            used, total = (gpu.mem_used or 0) / _GIB, (gpu.mem_total or 0) / _GIB
            yield [Cell(f"{(gpu.name or 'GPU')[:40]} {gpu.util or 0:.0f}% {used:.1f}/{total:.1f} GiB", "dim")]


def _loss_part(store: RunStore) -> Line:
    dropped = sum(node.dropped for node in store.nodes.values())
    losses = (
        (dropped, f"{format_count(dropped)} dropped"),
        (store.n_malformed, f"{format_count(store.n_malformed)} malformed"),
        (store.notice_list.n_lost, f"{pluralize(store.notice_list.n_lost, 'message')} lost"),
        (n_missing := store.episode_registry.n_missing, f"{pluralize(n_missing, 'item')} missing"),
    )
    parts = [text for n, text in losses if n]
    return [Cell(", ".join(parts), "warn")] if parts else []


def outcome_cell(episode: Episode | EpisodeRow, width: int = 80) -> Cell:
    """Return the outcome of an episode with its reason or error type; for an unfinished episode its state.

    A reason that does not fit into ``width`` columns is shortened or left out.
    """
    if episode.outcome is not None:
        text, tone = OUTCOMES.get(episode.outcome, (episode.outcome, "plain"))
        text = next((reason for reason in _outcome_reasons(episode) if display_width(reason) <= width), text)
        detail = [": ", episode.error_type] if episode.error_type else []
        return Cell("".join([text, *detail, (", unscored" if episode.unscored else "")]), tone)
    if isinstance(episode, Episode) and (episode.node_lost or episode.paused):
        return NODE_LOST if episode.node_lost else Cell("‖ paused", "warn")
    return Cell("▶ running", "accent")


def _outcome_reasons(episode: Episode | EpisodeRow) -> Iterator[str]:
    """Yield texts that say why an episode ended, the longest first; none where the outcome needs no reason."""
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


def _running_count(store: RunStore) -> Line:
    n_running = sum(episode.is_active for episode in store.running_episodes())
    return [Cell(f"{n_running} running", "dim")] if n_running > 1 else []


def _agent_text(agent: str, model: str | None) -> str:
    return " ".join(filter(None, (agent or "?", model or ("(no model)" if agent else ""))))


def _elapsed(episode: Episode) -> str:
    if episode.duration_s is not None:
        return format_duration(episode.duration_s)
    return format_duration(sum(step.model_s + step.env_s for step in episode.steps))


def _interruption_cells(batch: BatchRun, room: int) -> Line:
    if batch.status != "interrupted":
        return []
    reason = [masked_line(batch.interruption, 300)] if batch.interruption else []
    return [Cell(cut(": ".join(["interrupted", *reason]), room), "warn")]


def _worker_cells(batch: BatchRun) -> Line:
    if batch.workers is None or batch.status == "interrupted":
        return []
    return [Cell(batch.workers.text, "warn" if batch.workers.lost else "plain")]


def _time_cells(batch: BatchRun, now: float) -> Line:
    if batch.status == "interrupted":
        return []
    if batch.waiting_s is None:
        return [Cell(f"time left {format_time_left(time_left(batch, now))}")]
    left = format_time_left(max(batch.waiting_s - _passed_s(batch, now), 0.0))
    return [Cell(f"waiting for the server, {left} left", "warn")]


def time_left(batch: BatchRun, now: float) -> float | None:
    """Return the estimated seconds until a batch ends, which pass while it runs; None if they are not known.

    Args:
        batch: the batch.
        now: seconds of the console's monotonic clock.
    """
    if batch.eta_s is None or batch.status not in ("running", "paused"):
        return None
    return max(batch.eta_s - _passed_s(batch, now), 0.0)


def _passed_s(batch: BatchRun, now: float) -> float:
    return 0.0 if batch.eta_at_s is None or batch.status != "running" else max(now - batch.eta_at_s, 0.0)
