"""The machine screen: sections of items with their state and trend, and below each what is wrong and what to do.

``RULES`` holds every problem: its sentence, its next step, and for a load the limit from which on it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from agentgym_tui.presenters.bottleneck import LIMIT_REACHED, METRICS_S, EndpointUse, Spread, endpoint_use
from agentgym_tui.presenters.cells import SEPARATOR, Cell, Column, Line, Tone, cut, join_parts, wrap_text
from agentgym_tui.presenters.episode_facts import endpoint_state
from agentgym_tui.presenters.live import health_label, sparkline
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_gpu_memory,
    format_percent,
    format_rate,
    format_size,
    format_time_left,
    pluralize,
    rate_text,
)
from agentgym_tui.presenters.status_line import LINK_STATES, count_losses
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.batches import ENDED, BatchRun
from agentgym_tui.state.nodes import SERVER_TRENDS, MachineInfo, NodeInfo, Trends, memory_percent
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.servers import EndpointState, EnvironmentState
from runner.types.machine import GpuInstance, GpuState, Machine
from runner.util.clock import EPOCH

TREND_WIDTH: Final = 20
MACHINE_COLUMNS: Final = (
    Column("", 16),
    Column("now", None, min_width=30),
    Column("trend", TREND_WIDTH, right=True, rank=1),
)
MAX_NODES: Final = 10
"""Number of nodes that have a section; those with a problem come first."""
MAX_ROWS, MAX_CAUSE = 4, 600
"""Rows of the text of one problem, and of its next step; and characters of its cause."""
MAX_NAME: Final = 100
MAX_PROCESSES: Final = 3
"""Processes of a GPU that are named; the others are counted."""
N_SUSTAINED: Final = 3
"""Number of newest values that must all be high before a load counts as a problem."""
NO_METRICS: Final = "none read; SGLang needs --enable-metrics, llama.cpp --metrics"
_NO_DRIVERS: Final = ("no NVIDIA driver", "no AMD driver")
"""Causes for which there is nothing to do on a machine without a GPU."""
_NOTES: Final = ("this machine has an AMD driver", "AMD's library")
"""Starts of causes that are no problem, because many processors have a GPU of AMD that plays no part here."""
_NO_SAMPLE: Final = MachineInfo(Machine(at=EPOCH, gpu=[]))


class Problem(NamedTuple):
    """Something that is wrong, as a sentence without its full stop, and the next step; ``{}`` stands for a value."""

    text: str
    step: str
    tone: Tone = "warn"  # ``bad``: it fails, ``warn``: it is slow or at a limit, ``dim``: a note, which is not counted
    limit: float = 0.0  # the load from which on the rule applies
    is_on_live: bool = False  # whether the first lines of Live already show it in other words
    idle_step: str = ""  # the next step where no episode runs that could be the cause

    @property
    def sign(self) -> str:
        return {"bad": "✗", "dim": "i"}.get(self.tone, "!")

    def found(self, value: str = "", *, cause: str | None = None, step: str | None = None) -> Problem:
        """Return the problem of this rule with the ``cause``, and perhaps a better step, that a node has reported."""
        reason = f": {masked_line(cause, MAX_CAUSE)}" if cause else ""
        found = self._replace(text=self.text.format(value) + reason)
        return found._replace(step=masked_line(step, MAX_CAUSE), idle_step="") if step else found


_FREE_SPACE: Final = "free space on its disk: `agentgym-runner prune` removes old episodes; what waits then continues"
_LESS_LOAD: Final = "play fewer episodes at once, or add a server to the profile"
_NOT_OURS: Final = "no episode runs here, so another program is the cause: look for it with `top`"
_OTHERS_ASK: Final = "no episode runs, so others use this server: wait for them, or look for them in its log"
_MEND_SERVER: Final = "start the server, or correct its URL in the profile"
_RECONNECTS: Final = "wait: the console reconnects by itself"
_COOLING: Final = "check fans and air flow, or lower its power limit (`nvidia-smi -pl WATTS`)"
_CLOCKS: Final = "its clocks are reduced: {}"

RULES: Final[Mapping[str, Problem]] = {
    "node lost": Problem(
        "it is silent or its process is gone; its files are complete, and its batches can be resumed",
        "start it on its machine", "bad", is_on_live=True),
    "cpu": Problem(
        "the CPU is at {}, which slows episodes and servers",
        "play fewer episodes at once (`concurrency`, `workers`)", limit=95.0, idle_step=_NOT_OURS),
    "ram": Problem(
        "the memory is {} full: the system may kill processes",
        "use fewer workers, or stop servers that no batch needs", "bad", limit=92.0, idle_step=_NOT_OURS),
    "disk": Problem("its disk is nearly full: {} are free", _FREE_SPACE, limit=97.0),
    "storage": Problem("episodes cannot be stored", _FREE_SPACE, "bad", is_on_live=True),
    "gpu lost": Problem("it cannot be read", "look for its errors in the kernel log: `dmesg | grep -i xid`", "bad"),
    "gpu memory": Problem(  # model servers reserve 90% and more from their start
        "its memory is {} full: the next allocation may fail",
        "stop a process that uses it, or give the model server a smaller share", limit=98.0),
    "clocks": Problem(_CLOCKS, "see `nvidia-smi -q -d PERFORMANCE` on the node"),
    "clocks power limit": Problem(
        _CLOCKS, "usual at full load; `nvidia-smi -pl WATTS` raises it where power supply and cooling allow that",
        "dim"),
    "clocks temperature": Problem(_CLOCKS, _COOLING),
    "clocks temperature (hardware)": Problem(_CLOCKS, _COOLING),
    "clocks hardware slowdown": Problem(_CLOCKS, "check its cooling, its power cables and the power supply"),
    "clocks power supply (power brake)": Problem(_CLOCKS, "check the power supply and its cables"),
    "model down": Problem("it does not answer", _MEND_SERVER, "bad", is_on_live=True),
    "model wrong": Problem("it answers, but cannot be used", _MEND_SERVER, "bad", is_on_live=True),
    "model slow": Problem("it answers slowly", _LESS_LOAD, is_on_live=True, idle_step=_OTHERS_ASK),
    "model failed": Problem(
        "the last request failed",
        "agents use the next endpoint; read the log of this server if it fails again", "bad", is_on_live=True),
    "model rests": Problem(
        "agents skip it for {} after a failure", "wait: agents try it again by themselves", is_on_live=True),
    "queue": Problem("{} in its queue", _LESS_LOAD, limit=1.0, idle_step=_OTHERS_ASK),
    "kv_cache": Problem(
        "its KV cache is {} full: requests wait or are computed again",
        "play fewer episodes at once, or give the server more GPU memory", limit=0.95, idle_step=_OTHERS_ASK),
    "env slow": Problem(
        "its server answers slowly", "play fewer episodes at once, or give its server more CPU", idle_step=_OTHERS_ASK),
    "env wrong": Problem(
        "another server answers at its address", "correct its address in the profile, or stop what listens there",
        "bad"),
    "env down": Problem("its server does not answer", "`agentgym-runner --list-envs` shows what it needs", "bad"),
    "env missing": Problem("it cannot be played here", "`agentgym-runner --list-envs` shows what it needs", "dim"),
    "env unknown": Problem("its state is not known", "wait for the next check"),
    "workers": Problem("{} ended early", ""),
    "waiting": Problem(
        "it waits", "start the server again, or free what is missing: the batch then continues by itself", "bad"),
    "link stalled": Problem(
        "the broker is silent", f"{_RECONNECTS}; if it stays silent, look at the machine of the broker",
        is_on_live=True),
    "link disconnected": Problem("the connection is lost", _RECONNECTS, "bad", is_on_live=True),
    "link failed": Problem(
        "no connection", "check the address and the credentials of the broker", "bad", is_on_live=True),
    "not sent": Problem("{}", "nothing is lost on disk: open the episode for all of it", is_on_live=True),
    "lost": Problem(
        "{}", "the console was too slow, or the stream is too short: episodes are complete on disk", is_on_live=True),
    "missing": Problem("{}", "open the episode: its file has all steps", "dim", is_on_live=True),
    "malformed": Problem("{}", "Events shows their bytes; is another version publishing here?", is_on_live=True),
}  # fmt: skip


class Item(NamedTuple):
    """A line of the machine screen; ``trend`` has recent values, the newest last, None where one was not known."""

    key: str
    name: str
    now: Cell
    trend: Sequence[float | None] = ()
    full: float | None = None  # the value that fills the height of the trend; None for the largest one
    problems: Sequence[Problem] = ()
    env: str = ""


class Section(NamedTuple):
    """Items under a heading, and the reason why there are none, in words."""

    key: str
    title: str
    items: Sequence[Item]
    empty: str = ""


class MachineView(NamedTuple):
    store: RunStore
    key: Callable[[str], str]  # the label of a command's key
    read_only: str = ""
    problems_only: bool = False  # leave out items that never have a problem: Live asks with each redraw

    def press(self, command: str, effect: str) -> str:
        return f"press {self.key(command)} {effect}"


class MachineRow(NamedTuple):
    key: str
    cells: Line
    item: Item | None = None
    is_problem: bool = False


class MachineRows:
    """The sections from top to bottom as rows of ``MACHINE_COLUMNS``, wrapped for ``width`` columns."""

    def __init__(self, view: MachineView, width: int) -> None:
        self.sections = machine_sections(view)
        self.rows = [row for section in self.sections for row in _section_rows(section, width)][1:]

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, index: int) -> str:
        return self.rows[index].key

    def line(self, index: int, width: int) -> Line:
        return self.rows[index].cells

    def item(self, index: int) -> Item | None:
        return self.rows[index].item if 0 <= index < len(self.rows) else None

    def next_problem(self, index: int, by: int) -> int | None:
        """Return the index of the problem ``by`` problems after (or before) a row, around the end; None without one."""
        places = [place for place, row in enumerate(self.rows) if row.is_problem]
        after = [place for place in places if place > index] if by > 0 else [place for place in places if place < index]
        return (after or places)[0 if by > 0 else -1] if places else None


def _section_rows(section: Section, width: int) -> Iterator[MachineRow]:
    yield MachineRow(f"before {section.key}", [])
    yield MachineRow(section.key, [Cell(section.title, "head")])
    if section.empty and not section.items:
        for place, row in enumerate(wrap_text(section.empty, max(width - 4, 20), MAX_ROWS)):
            yield MachineRow(f"empty {section.key} {place}", [Cell(f"  {row}", "dim")])
    for item in section.items:
        trend = [Cell(sparkline(item.trend, TREND_WIDTH, item.full), "accent")] if item.trend else []
        yield MachineRow(item.key, [Cell(f"  {item.name}"), item.now, *trend], item)
        for number, problem in enumerate(item.problems):
            yield from _problem_rows(item, problem, number, width)


def _problem_rows(item: Item, problem: Problem, number: int, width: int) -> Iterator[MachineRow]:
    texts: Sequence[tuple[str, str, Tone]] = (
        (problem.sign, problem.text, problem.tone),
        ("→", problem.step, "dim" if problem.tone == "dim" else "accent"),
    )
    for part, (sign, text, tone) in enumerate(texts):
        for place, row in enumerate(wrap_text(text, max(width - 6, 20), MAX_ROWS)):
            is_start = problem.tone != "dim" and not part and not place
            cell = Cell(f"    {' ' if place else sign} {row}", tone)
            yield MachineRow(f"{item.key} {number}.{part}.{place}", [cell], item, is_start)


def problems_of(sections: Sequence[Section]) -> list[tuple[Item, Problem]]:
    """Return all problems with their items: what fails comes before what is slow or at a limit."""
    found = [(item, problem) for section in sections for item in section.items for problem in item.problems]
    return sorted((each for each in found if each[1].tone != "dim"), key=lambda each: each[1].tone != "bad")


def machine_heading(sections: Sequence[Section], width: int) -> Line:
    title: list[Cell] = [Cell("Machine", "head"), SEPARATOR]
    if not (found := problems_of(sections)):
        return join_parts([[*title, Cell("● nothing is wrong", "good")]], width)
    count = f"{found[0][1].sign} {pluralize(len(found), 'problem')}"
    return join_parts([[*title, Cell(_with_first(count, found), found[0][1].tone)]], width)


def machine_summary(view: MachineView, width: int) -> Line:
    """Return the number of problems, the screen's key and the first problem that Live does not show elsewhere."""
    found = problems_of(machine_sections(view._replace(problems_only=True)))
    if not found or width < 1:
        return []
    text = f"{found[0][1].sign} {pluralize(len(found), 'problem')}, press {view.key('app.machine')}"
    shown = _with_first(text, [each for each in found if not each[1].is_on_live])
    return [Cell(cut(shown, width), found[0][1].tone)]


def _with_first(text: str, found: Sequence[tuple[Item, Problem]]) -> str:
    if not found:
        return text
    name, problem = found[0][0].name.strip(), found[0][1].text
    return f"{text}: {problem}" if name in problem else f"{text}: {name}: {problem}"


def machine_sections(view: MachineView) -> list[Section]:
    shared = (_model_section, _environment_section, _worker_section, _broker_section)
    sections = [*_node_sections(view), *(section(view) for section in shared)]
    playing = {episode.node for episode in view.store.running_episodes() if episode.is_active}
    return [_advised(section, playing) for section in sections]


def _advised(section: Section, playing: Collection[str]) -> Section:
    """Return the section with the steps that fit where none of the nodes that are ``playing`` causes a load."""
    kind, _, node = section.key.partition(" ")
    if node in playing if kind == "node" else playing:
        return section
    items = [
        item._replace(problems=[each._replace(step=each.idle_step or each.step) for each in item.problems])
        for item in section.items
    ]
    return section._replace(items=items)


def _item(
    key: str,
    name: str,
    parts: Iterable[str],
    trend: Sequence[float | None] = (),
    full: float | None = None,
    problems: Iterable[Problem] = (),
    tone: Tone = "plain",
    env: str = "",
) -> Item:
    """Return an item; one without a tone of its own bears the sign and the tone of its first problem."""
    text, found = " · ".join(filter(None, parts)), list(problems)
    first = next((problem for problem in found if problem.tone != "dim"), None)
    if first is not None and tone == "plain":
        text, tone = f"{first.sign} {text}", first.tone
    return Item(key, name, Cell(text, tone), trend, full, found, env)


def _reached(rule: str, now: float | None, shown: str, values: Sequence[float | None] = ()) -> list[Problem]:
    """Return the problem of a load that is at its limit, now and in the known values before it."""
    limit = RULES[rule].limit
    if now is None or now < limit or any(value < limit for value in values[-N_SUSTAINED:] if value is not None):
        return []
    return [RULES[rule].found(shown)]


def _node_sections(view: MachineView) -> list[Section]:
    marked = view.store.marked_node
    nodes = sorted(view.store.nodes.values(), key=lambda node: node.name != marked)
    if view.problems_only:
        nodes = list(filter(_can_have_problem, nodes))
    if not nodes:
        return [Section("nodes", "Machine", [], "no node has been seen yet")]
    sections = [
        Section(f"node {node.name}", f"Machine of {node.name}", list(_node_items(view, node))) for node in nodes
    ]
    if len(sections) > MAX_NODES:
        sections.sort(key=lambda each: (each.key != f"node {marked}", not any(item.problems for item in each.items)))
        more = f"… and {len(sections) - MAX_NODES:,} more nodes"
        sections[MAX_NODES:] = [Section("more nodes", more, [])]
    return sections


def _can_have_problem(node: NodeInfo) -> bool:
    """Whether a line of the node may have a problem; False for most nodes of a fleet, at little cost."""
    latest = (node.machine or _NO_SAMPLE).latest
    loads = (("cpu", latest.cpu), ("ram", latest.ram), ("disk", _disk_load(latest)))
    is_loaded = any(load is not None and load >= RULES[rule].limit for rule, load in loads)
    return bool(node.lost or node.storage or latest.gpu or latest.gpu_cause is not None or is_loaded)


def _node_items(view: MachineView, node: NodeInfo) -> Iterator[Item]:
    if node.lost:
        is_own = not view.read_only and len(view.store.nodes) == 1
        step = view.press("node.start", "to start it again") if is_own else ""
        yield _item(
            f"state {node.name}", "node", ["✗ lost"], problems=[RULES["node lost"].found(step=step)], tone="bad"
        )
        return
    machine = node.machine or _NO_SAMPLE
    latest, history = machine.latest, machine.history
    state = [f"● {view.store.node_status(node) or 'running'}", node.profile]
    yield _item(f"state {node.name}", "node", state, tone="good")
    cpus = "" if latest.n_cpus is None else f" of {latest.n_cpus} CPUs"
    yield _load_item(node, "cpu", "CPU", latest.cpu, cpus, history)
    total = "" if latest.ram_total is None else f" of {format_size(latest.ram_total)}"
    yield _load_item(node, "ram", "memory", latest.ram, total, history)
    yield from _gpus(node, machine)
    yield _disk_item(node, latest, history)
    if (net := latest.net) is not None:
        rates = f"{format_size(round(net.received_per_s))}/s received", f"{format_size(round(net.sent_per_s))}/s sent"
        yield _item(f"net {node.name}", "network", rates, history.get("received"))


def _load_item(node: NodeInfo, rule: str, name: str, load: float | None, of: str, history: Trends) -> Item:
    shown, trend = format_percent(load), history.get(rule)
    return _item(f"{rule} {node.name}", name, [f"{shown}{of}"], trend, 100.0, _reached(rule, load, shown, trend))


def _disk_item(node: NodeInfo, latest: Machine, history: Trends) -> Item:
    free, total = latest.disk_free, latest.disk_total
    space = f"{format_size(free)} free of {format_size(total)}" if free is not None and total else ""
    problems = _reached("disk", _disk_load(latest), format_size(free or 0))
    if node.storage:
        problems = [RULES["storage"].found(cause=node.storage)]
    folder = masked_line(node.data_dir, 120)
    parts = [space, folder] if space or folder else [UNKNOWN]
    return _item(f"disk {node.name}", "disk", parts, history.get("disk_free"), total, problems)


def _disk_load(machine: Machine) -> float | None:
    free, total = machine.disk_free, machine.disk_total
    return 100 * (1 - free / total) if free is not None and total else None


def _gpus(node: NodeInfo, machine: MachineInfo) -> Iterator[Item]:
    for place, gpu in enumerate(machine.latest.gpu):
        yield from _gpu_items(f"gpu {node.name} {place}", gpu, place, machine.history)
    if machine.latest.gpu:
        return
    cause = machine.latest.gpu_cause
    reported = "no GPU has been reported by" if cause is None else f"{masked_line(cause)} on"
    problems = [_driver_problem(part) for part in (cause or "").split("; ") if part not in ("", *_NO_DRIVERS)]
    now = Cell(f"{reported} {node.name}", "dim")
    if any(problem.tone != "dim" for problem in problems):
        now = Cell("! no GPU can be read", "warn")
    elif problems:
        now = Cell("no GPU is read", "dim")
    yield Item(f"gpu {node.name}", "GPU", now, problems=problems)


def _driver_problem(cause: str) -> Problem:
    text, _, step = cause.partition(": ")
    if not step or text.endswith("does not answer"):
        text, step = cause, "look for the driver in the kernel log: `dmesg`"
    return Problem(masked_line(text), masked_line(step), "dim" if text.startswith(_NOTES) else "warn")


def _gpu_items(key: str, gpu: GpuState, place: int, history: Trends) -> Iterator[Item]:
    name = f"GPU {gpu.index}"
    model = f"{gpu.name or UNKNOWN}{', divided into instances (MIG)' if gpu.mig else ''}"
    if gpu.lost is not None:
        yield _item(key, name, ["✗ lost", model], problems=[RULES["gpu lost"].found(cause=gpu.lost)], tone="bad")
        return
    limit = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f}"
    power = "" if gpu.power_w is None else f"{gpu.power_w:.0f}{limit} W"
    heat = "" if gpu.temperature is None else f"{gpu.temperature:.0f} °C"
    problems = [RULES.get(f"clocks {why}", RULES["clocks"]).found(why) for why in gpu.throttled or ()]
    problems += _gpu_memory_problems(gpu)
    parts = [format_percent(gpu.util), power, heat, model]
    yield _item(key, name, parts, history.get(f"util:{place}"), 100.0, problems)
    if gpu.mem_total is not None or gpu.mem_used is not None:
        yield _item(f"{key} memory", "  memory", _gpu_memory(gpu), history.get(f"mem:{place}"), 100.0)
    for n, each in enumerate(gpu.instances):
        problems = _gpu_memory_problems(each)
        yield _item(f"{key} instance {n}", f"  instance {each.index}", _gpu_memory(each, each.name), problems=problems)


def _gpu_memory_problems(gpu: GpuState | GpuInstance) -> list[Problem]:
    memory = memory_percent(gpu)
    return _reached("gpu memory", memory, format_percent(memory))


def _gpu_memory(gpu: GpuState | GpuInstance, name: str | None = None) -> Iterator[str]:
    yield f"{format_gpu_memory(gpu.mem_used)} of {format_gpu_memory(gpu.mem_total)}"
    yield name or ""
    processes = gpu.processes or ()
    for process in processes[:MAX_PROCESSES]:
        yield f"{process.name or 'process'} ({process.pid}) {format_gpu_memory(process.mem_used)}"
    if len(processes) > MAX_PROCESSES:
        yield f"{len(processes) - MAX_PROCESSES} more"


def _model_section(view: MachineView) -> Section:
    items = [item for name, each in view.store.endpoints.items() for item in _endpoint_items(view, name, each)]
    empty = "no model endpoint has been checked yet: the node checks those of its profile"
    return Section("models", "Model servers", items, empty)


def _endpoint_items(view: MachineView, name: str, endpoint: EndpointState) -> Iterator[Item]:
    answers = endpoint.is_answering
    rests = endpoint.rest_s is not None and endpoint.status not in ("down", "wrong")
    tone: Tone = ("warn" if endpoint.status == "slow" else "good") if answers else "warn" if rests else "bad"
    trend = view.store.trends.get("model latency", name)
    latency = trend[-1] if trend else None
    sign = "●" if answers else "!" if rests else "✗"
    parts = [f"{sign} {endpoint_state(endpoint)}", masked_line(endpoint.model or "", 60)]
    parts += [f"answers in {format_duration(latency)}"] if latency is not None and answers else []
    problems = _endpoint_problems(endpoint)
    yield _item(f"model {name}", masked_line(name, 60), parts, trend, problems=problems, tone=tone)
    if not view.problems_only:
        yield from _use_items(name, endpoint, endpoint_use(view.store, name))
    if endpoint.metrics_at_s >= view.store.now() - METRICS_S:
        yield from _server_items(view, name)
        if endpoint.in_memory is not None:
            models = ", ".join(masked_line(model, MAX_NAME) for model in endpoint.in_memory) or "no model"
            yield _item(f"memory {name}", "  in memory", [models])
    elif answers and not view.problems_only:
        yield _item(f"metrics {name}", "  metrics", [NO_METRICS], tone="dim")


def _endpoint_problems(endpoint: EndpointState) -> Iterator[Problem]:
    if endpoint.status in ("down", "wrong", "slow"):
        yield RULES[f"model {endpoint.status}"].found(cause=endpoint.cause, step=endpoint.hint)
    elif endpoint.rest_s is not None:
        left, cause = format_time_left(endpoint.rest_s), endpoint.failure or endpoint.cause
        yield RULES["model rests"].found(left, cause=cause, step=endpoint.hint)
    elif endpoint.failure is not None:
        yield RULES["model failed"].found(cause=endpoint.failure)


def _use_items(name: str, endpoint: EndpointState, use: EndpointUse) -> Iterator[Item]:
    """Yield what the requests of the running episodes show, beside the limits of the profile."""
    at_once, per_minute, rate = endpoint.concurrent_requests, endpoint.requests_per_minute, use.answers_per_min
    requests = [f"{format_count(use.n_in_flight)} in flight"] if use.n_in_flight else []
    requests += [f"{format_rate(rate)} answers/min"] if rate is not None else []
    if requests:
        yield _item(f"use {name}", "  our requests", requests)
    limits = [f"{format_count(per_minute)} requests/min"] if per_minute is not None else []
    limits += [f"{format_count(at_once)} in flight"] if at_once is not None else []
    if limits:
        is_full = at_once is not None and use.n_in_flight >= at_once
        is_reached = is_full or (per_minute is not None and (rate or 0.0) >= LIMIT_REACHED * per_minute)
        text = f"at most {' and '.join(limits)}"
        now = Cell(f"! {text}: reached", "warn") if is_reached else Cell(text)
        yield Item(f"limit {name}", "  rate limit", now)
    if use.answer is not None:
        first = "" if use.first_token is None else f"first token {_spread_text(use.first_token)}"
        yield _item(f"answers {name}", "  our answers", [_spread_text(use.answer), first])
    if use.failures:
        failed = ", ".join(f"{n:,} x {masked_line(reason, MAX_NAME)}" for reason, n in use.failures)
        yield _item(f"failures {name}", "  failures", [f"! {failed}"], tone="warn")


def _spread_text(spread: Spread) -> str:
    return f"{format_duration(spread.median_s)}, 95% within {format_duration(spread.p95_s)}"


def _server_items(view: MachineView, name: str) -> Iterator[Item]:
    """Yield the load of a server by its own metrics."""
    trends = {what: view.store.trends.get(what, name) for what in SERVER_TRENDS}
    last = {what: values[-1] for what, values in trends.items() if values and values[-1] is not None}
    running, waiting, kv_cache = last.get("running"), last.get("waiting"), last.get("kv_cache")
    if running is not None or waiting is not None:
        counts = [(running, "running"), (waiting, "waiting")]
        parts = [f"{format_count(round(min(n, 1e12)))} {word}" for n, word in counts if n is not None]
        queue = pluralize(round(min(waiting or 0.0, 1e12)), "request waits", "requests wait")
        problems = _reached("queue", waiting, queue, trends["waiting"])
        trend = trends["waiting" if waiting else "running"]
        yield _item(f"requests {name}", "  requests", parts, trend, problems=problems)
    if kv_cache is not None:
        used, hits = rate_text(kv_cache), last.get("prefix_hits")
        parts = [f"{used} used", "" if hits is None else f"prefix hits {rate_text(hits)}"]
        problems = _reached("kv_cache", kv_cache, used, trends["kv_cache"])
        yield _item(f"cache {name}", "  KV cache", parts, trends["kv_cache"], 1.0, problems)
    if (rate := last.get("tokens_per_s")) is not None:
        yield _item(f"tokens {name}", "  speed", [f"{format_rate(rate)} tokens/s"], trends["tokens_per_s"])


def _environment_section(view: MachineView) -> Section:
    envs = list(view.store.envs.values())
    embedded = [env for env in envs if env.transport == "embedded" and env.status in ("embedded", "up")]
    items = [_environment_item(view, env) for env in envs if env not in embedded and env.status is not None]
    if embedded:
        items.append(_item("embedded", "embedded", [f"● {format_count(len(embedded))} need no server"], tone="good"))
    if n_unchecked := sum(env.status is None for env in envs):
        text = f"{UNKNOWN} {format_count(n_unchecked)} have not been checked yet"
        items.append(_item("unchecked", "others", [text], tone="dim"))
    return Section("envs", "Environment servers", items, "no environment is known yet")


def _environment_item(view: MachineView, env: EnvironmentState) -> Item:
    label, tone = health_label(env.status)
    answers = env.latency_s is not None and env.status != "down"
    latency = f"answers in {format_duration(env.latency_s)}" if answers else ""
    parts = [label, env.transport or "", latency, f"{format_count(env.open)} open" if env.open is not None else ""]
    problems = []
    if env.status not in ("up", "embedded"):
        can_start = env.status == "down" and not view.read_only
        step = f"on Live, {view.press('env.start', 'to start its server')}" if can_start else ""
        rule = RULES.get(f"env {env.status}", RULES["env unknown"])
        if env.status == "down" and env.transport != "http":  # nothing that a machine or server could mend
            rule, step = RULES["env missing"], ""
        problems = [rule.found(cause=env.cause, step=step)]
    trend = view.store.trends.get("env latency", env.name)
    return _item(f"env {env.name}", env.name, parts, trend, problems=problems, tone=tone, env=env.name)


def _worker_section(view: MachineView) -> Section:
    batches = [each for each in view.store.batches.values() if each.status not in (*ENDED, "queued")]
    shown = [each for each in batches if each.workers is not None or each.waiting_for]
    n_playing = sum(each.is_active for each in view.store.running_episodes())
    playing = pluralize(n_playing, "episode")
    empty = "nothing runs" if not n_playing else f"the nodes play {playing} in their own processes, without workers"
    return Section("workers", "Workers", [_batch_item(view, each) for each in shown], empty)


def _batch_item(view: MachineView, batch: BatchRun) -> Item:
    problems, counts = [], "in the node's own process"
    if batch.workers is not None:
        counts = batch.workers.text
        if n_lost := batch.workers.lost:
            again = "its episode is" if n_lost == 1 else "their episodes are"
            log = view.press("app.logs", "for the reason in the node's log")
            lost = pluralize(n_lost, "worker process", "worker processes")
            problems.append(RULES["workers"].found(lost, step=f"{again} played again; {log}"))
    if batch.waiting_for:
        problems.append(RULES["waiting"].found(cause=batch.waiting_for))
    now = Cell(f"{batch.status} · {counts}", "warn" if problems else "plain")
    trend = view.store.trends.get("workers", batch.batch_id)
    return Item(f"batch {batch.batch_id}", batch.env or "?", now, trend, problems=problems)


def _broker_section(view: MachineView) -> Section:
    items = [_link_item(view)]
    for node in view.store.nodes.values():
        if node.egress and not node.lost:
            step = view.press("node.history", "to send them")
            notes = [Problem(held_text(node), step, "dim")] if node.n_held else []
            items.append(_item(f"egress {node.name}", "external", [masked_line(node.egress, 80)], problems=notes))
    return Section("broker", "Broker", [*items, _loss_item(view.store)])


def _link_item(view: MachineView) -> Item:
    store, link = view.store, view.store.link
    label, tone = LINK_STATES[link.status]
    rates = store.trends.get("items", "")
    parts = [label, masked_line(link.address, 60)]
    parts += [f"{format_rate(rates[-1])} items/s"] if rates and link.status == "connected" else []
    problems = []
    if (rule := RULES.get(f"link {link.status}")) is not None:
        can_start = not view.read_only and link.status != "stalled"
        step = view.press("node.start", "to start the node again") if can_start else ""
        problems = [rule.found(cause=link.cause, step=step)]
    return _item("link", "connection", parts, rates, problems=problems, tone=tone)


def held_text(node: NodeInfo) -> str:
    """Return how many earlier events are not sent to the external broker of a node, as a sentence."""
    counted = pluralize(node.n_held, "earlier event was", "earlier events were")
    return f"{counted} not sent to {masked_line(node.egress, 80)}"


def _loss_item(store: RunStore) -> Item:
    n_dropped, n_malformed, n_lost, n_missing = count_losses(store)
    losses = (
        ("not sent", n_dropped, "live item was", "live items were"),
        ("lost", n_lost, "message was", "messages were"),
        ("missing", n_missing, "live item is", "live items are"),
        ("malformed", n_malformed, "message is", "messages are"),
    )
    problems = [RULES[what].found(f"{pluralize(n, one, many)} {what}") for what, n, one, many in losses if n]
    now = Cell(f"{format_count(store.n_items)} live items received")
    return Item("losses", "messages", now, problems=problems)
