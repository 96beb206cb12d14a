"""The sections of the machine screen that all nodes share: environment servers, workers, broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Tone
from agentgym_tui.presenters.environment_rows import health_label
from agentgym_tui.presenters.machine_items import Item, MachineView, Problem, Section, problem_from_cause
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_rate,
    pluralize,
)
from agentgym_tui.presenters.status_line import LINK_STATES
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.batches import ENDED, BatchRun
from agentgym_tui.state.nodes import BusLinkStatus, NodeInfo
from agentgym_tui.state.servers import EnvironmentState

_LINK_STEPS: Final[dict[BusLinkStatus, str]] = {
    "stalled": "wait: the console reconnects by itself; if it stays silent, look at the machine of the broker",
    "disconnected": "wait: the console reconnects by itself",
    "failed": "check the address and the credentials of the broker",
}
"""What to do about the connection, where no key helps."""


def environment_section(view: MachineView) -> Section:
    """Return the servers of environments, one line for all environments without a server, and those with a problem."""
    envs = list(view.store.envs.values())
    embedded = [env for env in envs if env.transport == "embedded" and env.status in ("embedded", "up")]
    items = [_environment_item(view, env) for env in envs if env not in embedded and env.status is not None]
    if embedded:
        text = f"● {format_count(len(embedded))} need no server"
        items.append(Item("embedded", "embedded", Cell(text, "good")))
    if n_unchecked := sum(env.status is None for env in envs):
        text = f"{UNKNOWN} {format_count(n_unchecked)} have not been checked yet"
        items.append(Item("unchecked", "others", Cell(text, "dim")))
    return Section("envs", "Environment servers", items, "no environment is known yet")


def _environment_item(view: MachineView, env: EnvironmentState) -> Item:
    label, tone = health_label(env.status)
    parts = [label]
    parts += [env.transport] if env.transport else []
    parts += [f"answers in {format_duration(env.latency_s)}"] if env.latency_s is not None else []
    parts += [f"{format_count(env.open)} open"] if env.open is not None else []
    return Item(
        f"env {env.name}",
        env.name,
        Cell(" · ".join(parts), tone),
        view.store.trends.get("env latency", env.name),
        problems=list(_environment_problems(view, env)),
        env=env.name,
    )


def _environment_problems(view: MachineView, env: EnvironmentState) -> Iterator[Problem]:
    if env.status == "slow":
        step = "play fewer episodes at once, or give its server more CPU"
        yield problem_from_cause("its server answers slowly", env.cause, step, tone="warn")
    elif env.status == "wrong":
        step = "correct its address in the profile, or stop what listens there"
        yield problem_from_cause("another server answers at its address", env.cause, step)
    elif env.status == "down":
        step = "`agentgym-runner --list-envs` shows what it needs"
        if env.transport != "http":  # nothing that a machine or server could mend
            yield problem_from_cause("it cannot be played here", env.cause, step, tone="dim")
            return
        if not view.read_only:
            step = f"on Live, {view.press('env.start', 'to start its server')}"
        yield problem_from_cause("its server does not answer", env.cause, step)
    elif env.status not in ("up", "embedded"):
        step = "wait for the next check"
        yield problem_from_cause("its state is not known", env.cause, step, tone="warn")


def worker_section(view: MachineView) -> Section:
    """Return the worker processes of each batch that runs, and what a batch waits for."""
    batches = [each for each in view.store.batches.values() if each.status not in (*ENDED, "queued")]
    shown = [each for each in batches if each.workers is not None or each.waiting_for]
    n_playing = sum(each.is_active for each in view.store.running_episodes())
    playing = pluralize(n_playing, "episode")
    empty = "nothing runs" if not n_playing else f"the nodes play {playing} in their own processes, without workers"
    return Section("workers", "Workers", [_batch_item(view, each) for each in shown], empty)


def _batch_item(view: MachineView, batch: BatchRun) -> Item:
    counts = batch.workers.text if batch.workers is not None else "in the node's own process"
    is_short = batch.workers is not None and batch.workers.lost > 0
    tone: Tone = "warn" if is_short or batch.waiting_for else "plain"
    return Item(
        f"batch {batch.batch_id}",
        batch.env or "?",
        Cell(f"{batch.status} · {counts}", tone),
        view.store.trends.get("workers", batch.batch_id),
        problems=list(_batch_problems(view, batch)),
    )


def _batch_problems(view: MachineView, batch: BatchRun) -> Iterator[Problem]:
    if batch.workers is not None and batch.workers.lost:
        has_one = batch.workers.lost == 1
        text = f"{pluralize(batch.workers.lost, 'worker process', 'worker processes')} ended early"
        effect = f"{'its episode is' if has_one else 'their episodes are'} played again; "
        yield Problem(text, "".join([effect, view.press("app.logs", "for the reason in the node's log")]))
    if batch.waiting_for:
        step = "start the server again, or free what is missing: the batch then continues by itself"
        yield problem_from_cause("it waits", batch.waiting_for, step)


def broker_section(view: MachineView) -> Section:
    """Return the connection to the broker, and what of its messages was lost."""
    return Section("broker", "Broker", [_link_item(view), *_egress_items(view), *_loss_items(view)])


def _link_item(view: MachineView) -> Item:
    store, link = view.store, view.store.link
    label, tone = LINK_STATES[link.status]
    rates = store.trends.get("items", "")
    parts = [label, *([masked_line(link.address, 60)] if link.address else [])]
    parts += [f"{format_rate(rates[-1])} items/s"] if rates and link.status == "connected" else []
    return Item("link", "connection", Cell(" · ".join(parts), tone), rates, problems=list(_link_problems(view)))


def _link_problems(view: MachineView) -> Iterator[Problem]:
    link = view.store.link
    if link.status not in _LINK_STEPS:
        return
    step = _LINK_STEPS[link.status]
    if not view.read_only and link.status != "stalled":
        step = view.press("node.start", "to start the node again")
    label = {"stalled": "the broker is silent", "disconnected": "the connection is lost"}
    what = label.get(link.status, "no connection")
    tone: Tone = "warn" if link.status == "stalled" else "bad"
    yield problem_from_cause(what, link.cause, step, tone=tone, is_on_live=True)


def _egress_items(view: MachineView) -> Iterator[Item]:
    for node in view.store.nodes.values():
        if node.egress and not node.lost:
            notes = [Problem(held_text(node), view.press("node.history", "to send them"), "dim")] if node.n_held else []
            yield Item(f"egress {node.name}", "external", Cell(masked_line(node.egress, 80)), problems=notes)


def held_text(node: NodeInfo) -> str:
    """Return how many earlier events are not sent to the external broker of a node, as a sentence."""
    counted = pluralize(node.n_held, "earlier event was", "earlier events were")
    return f"{counted} not sent to {masked_line(node.egress, 80)}"


def _loss_items(view: MachineView) -> Iterator[Item]:
    store = view.store
    n_dropped = sum(node.dropped for node in store.nodes.values())
    problems = [
        *_loss(
            n_dropped,
            "live item was not sent",
            "live items were not sent",
            "nothing is lost on disk: open the episode for all of it",
        ),
        *_loss(
            store.notice_list.n_lost,
            "message was lost",
            "messages were lost",
            "the console was too slow, or the stream is too short: episodes are complete on disk",
        ),
        *_loss(
            store.episode_registry.n_missing,
            "live item is missing",
            "live items are missing",
            "open the episode: its file has all steps",
            "dim",
        ),
        *_loss(
            store.n_malformed,
            "message cannot be decoded",
            "messages cannot be decoded",
            "Events shows their bytes; is another version publishing here?",
        ),
    ]
    counted = f"{format_count(store.n_items)} live items received"
    yield Item("losses", "messages", Cell(counted), problems=problems)


def _loss(number: int, one: str, many: str, step: str, tone: Tone = "warn") -> Sequence[Problem]:
    return [Problem(pluralize(number, one, many), step, tone, is_on_live=True)] if number else []
