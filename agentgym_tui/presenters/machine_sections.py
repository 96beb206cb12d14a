"""The sections of the machine screen that all nodes share: environment servers, workers, broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Tone, unsafe_texts
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
from agentgym_tui.safe_text import SafeText, fill_in, join, masked_line, sanitize_line, trusted
from agentgym_tui.state.batches import ENDED
from agentgym_tui.state.data_model import BatchRun, BusLinkStatus, EnvironmentState, NodeInfo
from agentgym_tui.state.endpoint_use import endpoint_use

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
        text = trusted(f"● {format_count(len(embedded))} need no server")
        items.append(Item("embedded", trusted("embedded"), Cell(text, "good")))
    if n_unchecked := sum(env.status is None for env in envs):
        text = trusted(f"{UNKNOWN} {format_count(n_unchecked)} have not been checked yet")
        items.append(Item("unchecked", trusted("others"), Cell(text, "dim")))
    return Section("envs", trusted("Environment servers"), items, trusted("no environment is known yet"))


def _environment_item(view: MachineView, env: EnvironmentState) -> Item:
    label, tone = health_label(env.status)
    parts = [label]
    parts += [sanitize_line(env.transport, 20)] if env.transport else []
    parts += [join([trusted("answers in "), format_duration(env.latency_s)])] if env.latency_s is not None else []
    parts += [trusted(f"{format_count(env.open)} open")] if env.open is not None else []
    return Item(
        f"env {env.name}",
        sanitize_line(env.name, 60),
        Cell(join(parts, " · "), tone),
        view.store.trends.get("env latency", env.name),
        problems=list(_environment_problems(view, env)),
        env=env.name,
    )


def _environment_problems(view: MachineView, env: EnvironmentState) -> Iterator[Problem]:
    if env.status == "slow":
        step = trusted("play fewer episodes at once, or give its server more CPU")
        yield problem_from_cause(trusted("its server answers slowly"), env.cause, step, tone="warn")
    elif env.status == "wrong":
        step = trusted("correct its address in the profile, or stop what listens there")
        yield problem_from_cause(trusted("another server answers at its address"), env.cause, step)
    elif env.status == "down":
        step = trusted("`agentgym-runner --list-envs` shows what it needs")
        if env.transport != "http":  # nothing that a machine or server could mend
            yield problem_from_cause(trusted("it cannot be played here"), env.cause, step, tone="dim")
            return
        if not view.read_only:
            step = fill_in("on Live, {}", view.press("env.start", "to start its server"))
        yield problem_from_cause(trusted("its server does not answer"), env.cause, step)
    elif env.status not in ("up", "embedded"):
        step = trusted("wait for the next check")
        yield problem_from_cause(trusted("its state is not known"), env.cause, step, tone="warn")


def worker_section(view: MachineView) -> Section:
    """Return the worker processes of each batch that runs, and what a batch waits for."""
    batches = [each for each in view.store.batches.values() if each.status not in (*ENDED, "queued")]
    shown = [each for each in batches if each.workers is not None or each.waiting_for]
    n_playing = sum(each.is_active for each in view.store.running_episodes())
    playing = pluralize(n_playing, "episode")
    empty = "nothing runs" if not n_playing else f"the nodes play {playing} in their own processes, without workers"
    return Section("workers", trusted("Workers"), [_batch_item(view, each) for each in shown], trusted(empty))


def _batch_item(view: MachineView, batch: BatchRun) -> Item:
    counts = trusted(batch.workers.text) if batch.workers is not None else trusted("in the node's own process")
    is_short = batch.workers is not None and batch.workers.lost > 0
    tone: Tone = "warn" if is_short or batch.waiting_for else "plain"
    return Item(
        f"batch {batch.batch_id}",
        sanitize_line(batch.env or "?", 60),
        Cell(join([sanitize_line(batch.status, 20), counts], " · "), tone),
        view.store.trends.get("workers", batch.batch_id),
        problems=list(_batch_problems(view, batch)),
    )


def _batch_problems(view: MachineView, batch: BatchRun) -> Iterator[Problem]:
    if batch.workers is not None and batch.workers.lost:
        has_one = batch.workers.lost == 1
        text = join([pluralize(batch.workers.lost, "worker process", "worker processes"), trusted(" ended early")])
        effect = f"{'its episode is' if has_one else 'their episodes are'} played again; "
        yield Problem(text, join([trusted(effect), view.press("app.logs", "for the reason in the node's log")]))
    if batch.waiting_for:
        step = trusted("start the server again, or free what is missing: the batch then continues by itself")
        yield problem_from_cause(trusted("it waits"), batch.waiting_for, step)


def broker_section(view: MachineView) -> Section:
    """Return the connection to the broker, and what of its messages was lost."""
    return Section("broker", trusted("Broker"), [_link_item(view), *_egress_items(view), *_loss_items(view)])


def _link_item(view: MachineView) -> Item:
    store, link = view.store, view.store.link
    label, tone = LINK_STATES[link.status]
    rates = store.trends.get("items", "")
    parts = [label, *([masked_line(link.address, 60)] if link.address else [])]
    parts += [join([format_rate(rates[-1]), trusted(" items/s")])] if rates and link.status == "connected" else []
    return Item(
        "link", trusted("connection"), Cell(join(parts, " · "), tone), rates, problems=list(_link_problems(view))
    )


def _link_problems(view: MachineView) -> Iterator[Problem]:
    link = view.store.link
    if link.status not in _LINK_STEPS:
        return
    step = trusted(_LINK_STEPS[link.status])
    if not view.read_only and link.status != "stalled":
        step = view.press("node.start", "to start the node again")
    label = {"stalled": "the broker is silent", "disconnected": "the connection is lost"}
    what = trusted(label.get(link.status, "no connection"))
    tone: Tone = "warn" if link.status == "stalled" else "bad"
    yield problem_from_cause(what, link.cause, step, tone=tone, is_on_live=True)


def _egress_items(view: MachineView) -> Iterator[Item]:
    for node in view.store.nodes.values():
        if node.egress and not node.lost:
            notes = [Problem(held_text(node), view.press("node.history", "to send them"), "dim")] if node.n_held else []
            yield Item(f"egress {node.name}", trusted("external"), Cell(masked_line(node.egress, 80)), problems=notes)


def held_text(node: NodeInfo) -> SafeText:
    """Return how many earlier events are not sent to the external broker of a node, as a sentence."""
    counted = pluralize(node.n_held, "earlier event was", "earlier events were")
    return fill_in("{} not sent to {}", counted, masked_line(node.egress, 80))


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
            store.n_lost_messages,
            "message was lost",
            "messages were lost",
            "the console was too slow, or the stream is too short: episodes are complete on disk",
        ),
        *_loss(
            store.n_missing,
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
    counted = join([format_count(store.n_items), trusted(" live items received")])
    yield Item("losses", trusted("messages"), Cell(counted), problems=problems)


def _loss(number: int, one: str, many: str, step: str, tone: Tone = "warn") -> Sequence[Problem]:
    return [Problem(pluralize(number, one, many), trusted(step), tone, is_on_live=True)] if number else []


def unsafe_machine_text(view: MachineView, item: Item) -> str | None:
    """Return the texts of an item that contain unsafe characters; None if no text contains any."""
    kind, _, name = item.key.partition(" ")
    endpoint = view.store.endpoints.get(name) if kind in ("model", "memory", "failures") else None
    env = view.store.envs.get(item.env) if item.env else None
    known: list[str | None] = [item.env]
    known += [name, endpoint.cause, endpoint.hint, endpoint.failure, endpoint.model] if endpoint is not None else []
    known += endpoint.in_memory or () if endpoint is not None else ()
    known += [reason for reason, _ in endpoint_use(view.store, name).failures] if kind == "failures" else []
    known += [env.cause, env.transport] if env is not None else []
    return unsafe_texts(known)
