"""Rows of the machine screen: each thing that is wrong has a sentence and a next step, and all of it is safe."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from agentgym_tui.commands import Keymap
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.live import sparkline
from agentgym_tui.presenters.machine import (
    MAX_NODES,
    MachineRows,
    MachineView,
    machine_heading,
    machine_summary,
    problems_of,
)
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.nodes import MAX_SERIES, N_SAMPLES, BusLink, Trends
from agentgym_tui.state.run_store import RunStore
from runner.events.live import ModelMetrics
from runner.subscribe.messages import Notice
from runner.types import WorkerCounts
from runner.types.machine import GpuInstance, GpuProcess, GpuState, Machine, Network
from tests.support.console import samples
from tests.support.console.line_views import line_text
from tests.support.console.samples import (
    HOSTILE,
    NODE,
    START,
    FakeClock,
    batch_state,
    completed,
    durable,
    empty_store,
    env_health,
    heartbeat,
    hostile_store,
    live,
    model_health,
    node_health,
    node_list,
    progress,
    started,
    timestep,
    token,
)

WIDTH = 100


def view_of(store: RunStore, read_only: str = "") -> MachineView:
    return MachineView(store, Keymap().key, read_only)


def texts(store: RunStore, read_only: str = "", width: int = WIDTH) -> list[str]:
    rows = MachineRows(view_of(store, read_only), width)
    return [" ".join(cell.text.strip() for cell in rows.line(index, width)).strip() for index in range(len(rows))]


def problems(store: RunStore, read_only: str = "") -> list[tuple[str, str, str, str]]:
    """Return the problems as item, sign, sentence and next step."""
    found = problems_of(MachineRows(view_of(store, read_only), WIDTH).sections)
    return [(item.name, problem.sign, problem.text, problem.step) for item, problem in found]


def is_on_live(store: RunStore) -> bool:
    [(_, problem)] = problems_of(MachineRows(view_of(store), WIDTH).sections)
    return problem.is_on_live


_SECONDS = count(1)


busy_store = partial(samples.busy_store, has_machine=False)


def busy_host(store: RunStore, cpu: float = 12.0, ram: float = 40.0, n: int = 3) -> None:
    times = (START + timedelta(seconds=next(_SECONDS)) for _ in range(n))
    store.apply_events([live(Machine(at=at, cpu=cpu, ram=ram, gpu=[])) for at in times])


def test_a_healthy_machine_has_no_problem_and_says_so() -> None:
    store = samples.busy_store()
    shown = texts(store)
    assert problems(store) == []
    assert shown[0] == f"Machine of {NODE}"
    assert "GPU 0 34% · RTX 4090 ▃" in shown and "memory 5.0 GiB of 16.0 GiB ▂" in shown
    assert "tensorzero ● up" in shown and "embedded ● 4 need no server" in shown
    assert any(each.startswith("connection ● connected · 127.0.0.1:4222") for each in shown)
    assert line_text(machine_heading(MachineRows(view_of(store), WIDTH).sections, WIDTH)) == (
        "Machine · ● nothing is wrong"
    )
    assert machine_summary(view_of(store), WIDTH) == []


def test_what_is_not_known_is_said_in_words() -> None:
    shown = texts(RunStore())
    assert "no node has been seen yet" in shown
    assert "no model endpoint has been checked yet: the node checks those of its profile" in shown
    assert "no environment is known yet" in shown and "nothing runs" in shown
    store = busy_store()
    busy_host(store)
    assert f"GPU no GPU has been reported by {NODE}" in texts(store)
    assert "the nodes play 1 episode in their own processes, without workers" in texts(store)
    store = empty_store()
    store.apply_list(node_list(batch_state(1, "queued", workers=WorkerCounts(n=2))))
    store.apply_events([durable(completed(1))])
    assert "nothing runs" in texts(store), "finished and waiting batches are not listed"


def link(status: Any, cause: str) -> Callable[[RunStore], None]:  # noqa: ANN401
    return lambda store: store.set_link(BusLink(status, cause))


def health(*items: Any) -> Callable[[RunStore], None]:  # noqa: ANN401
    return lambda store: store.apply_events([live(*items)])


def workers(**fields: Any) -> Callable[[RunStore], None]:  # noqa: ANN401
    return lambda store: store.apply_events([live(progress(seq=9, **fields))])


GIB = 1 << 30
GPU = GpuState(
    index=0, name="H100", util=50.0, mem_used=60 * GIB, mem_total=80 * GIB, power_w=612.0, power_limit_w=700.0,
    temperature=71.0, throttled=(), mig=False, processes=(GpuProcess(pid=7, name="vllm", mem_used=59 * GIB),),
)  # fmt: skip


def machine(n: int = 1, **fields: Any) -> Callable[[RunStore], None]:  # noqa: ANN401
    """Return a function that adds ``n`` samples of the machine."""
    defaults: dict[str, Any] = {"gpu": [], "cpu": 12.0, "n_cpus": 16, "ram": 40.0, "ram_total": 64 * 10**9}
    items = [Machine(at=START + timedelta(seconds=2 * each), **{**defaults, **fields}) for each in range(n)]

    def add(store: RunStore) -> None:
        for item in items:
            store.apply_events([live(item)])

    return add


def gpu(**fields: Any) -> Callable[[RunStore], None]:  # noqa: ANN401
    return machine(gpu=[replace(GPU, **fields)])


def metrics(n: int = 1, **fields: Any) -> Callable[[RunStore], None]:  # noqa: ANN401
    """Return a function that adds ``n`` samples of the metrics of a server that answers."""

    def add(store: RunStore) -> None:
        for each in range(n):
            values = {"at": START + timedelta(seconds=2 * each), "endpoint": "tensorzero", "server": "vllm", **fields}
            item = ModelMetrics(**values)
            store.apply_events([live(item)])

    return add


WRONG: list[tuple[Callable[[RunStore], None], str, str, str]] = [
    (lambda store: store.mark_node_lost(NODE), "node", "it is silent or its process is gone", "press ^n to start"),
    (lambda store: busy_host(store, cpu=99.0), "CPU", "the CPU is at 99%", "fewer episodes at once"),
    (lambda store: busy_host(store, ram=95.0), "memory", "the memory is 95% full", "fewer workers"),
    (health(heartbeat("nothing can be stored in /srv: its disk is full; 2 batches wait")), "disk",
     "cannot be stored: nothing can be stored in /srv: its disk is full; 2 batches wait", "agentgym-runner prune"),
    (metrics(3, running=8.0, waiting=12.0), "  requests", "12 requests wait in its queue", "fewer episodes at once"),
    (metrics(3, kv_cache=0.97), "  KV cache", "its KV cache is 97% full", "more GPU memory"),
    (machine(3, cpu=97.0), "CPU", "the CPU is at 97%", "fewer episodes at once"),
    (machine(ram=95.0), "memory", "the memory is 95% full", "fewer workers"),
    (machine(disk_free=10**9, disk_total=10**11), "disk", "nearly full: 1.0 GB are free", "agentgym-runner prune"),
    (gpu(lost="the GPU is lost: it fell off the bus, restart the machine"), "GPU 0",
     "it cannot be read: the GPU is lost: it fell off the bus", "dmesg"),
    (gpu(throttled=("temperature",)), "GPU 0", "its clocks are reduced: temperature", "check fans and air flow"),
    (gpu(throttled=("hardware slowdown",)), "GPU 0", "reduced: hardware slowdown", "check its cooling, its power"),
    (gpu(throttled=("power supply (power brake)",)), "GPU 0", "power brake", "check the power supply"),
    (gpu(throttled=("a new reason",)), "GPU 0", "reduced: a new reason", "nvidia-smi -q -d PERFORMANCE"),
    (gpu(mem_used=79 * GIB), "GPU 0", "its memory is 99% full", "stop a process that uses it"),
    (health(model_health("vllm", "down", "refused")), "vllm", "does not answer: refused", "start the server, or"),
    (health(model_health("vllm", "wrong", "404", hint="add /v1 to the URL")), "vllm", "but cannot be used: 404",
     "add /v1 to the URL"),
    (health(model_health("vllm", "slow", "4 s")), "vllm", "it answers slowly: 4 s", "play fewer episodes at once"),
    (health(model_health("vllm", "up", None, rest_s=12.0)), "vllm", "skip it for 12 s", "try it again by themselves"),
    (health(env_health("WebShop", "down", transport="http", cause="refused")), "WebShop",
     "its server does not answer: refused", 'on Live, press ^p "Start server" to start its server'),
    (health(env_health("WebShop", "wrong", transport="http", cause="it serves Maze")), "WebShop",
     "another server answers at its address: it serves Maze", "correct its address"),
    (health(env_health("WebShop", "slow", transport="http")), "WebShop", "answers slowly", "give its server more CPU"),
    (health(env_health("WebShop", "unknown", transport="http")), "WebShop", "its state is not known",
     "wait for the next check"),
    (workers(workers=WorkerCounts(n=2, lost=2)), "Wordle", "2 worker processes ended early",
     "played again; press 4 for the reason in the node's log"),
    (workers(waiting_for="WebShop at 127.0.0.1:36005"), "Wordle", "it waits: WebShop at", "start the server again"),
    (link("stalled", "no answer"), "connection", "the broker is silent: no answer", "reconnects by itself"),
    (link("disconnected", "reset"), "connection", "the connection is lost: reset", "press ^n to start the node again"),
    (link("failed", "refused"), "connection", "no connection: refused", "press ^n to start the node again"),
    (lambda store: store.apply_events([Notice(kind="gap", text="left the stream", count=3)]), "messages",
     "3 messages were lost", "complete on disk"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "name", "sentence", "step"), WRONG, ids=[f"{each[1]}-{each[2][:30]}" for each in WRONG]
)
def test_each_problem_has_a_sentence_and_a_next_step(
    spoil: Callable[[RunStore], None], name: str, sentence: str, step: str
) -> None:
    store = busy_store()
    spoil(store)
    [(shown_name, sign, text, shown_step)] = [each for each in problems(store) if sentence in each[2]]
    assert (shown_name, sign in ("✗", "!")) == (name, True)
    assert step in shown_step
    rows = MachineRows(view_of(store), WIDTH)
    colored = [cell for index in range(len(rows)) for cell in rows.line(index, WIDTH) if cell.tone in ("bad", "warn")]
    assert all(re.search(r"[-✗!◐○a-z]", cell.text) for cell in colored), "no meaning is carried by color alone"
    joined = " ".join(texts(store))
    assert f"{sign} " in joined and "→ " in joined
    heading = line_text(machine_heading(MachineRows(view_of(store), WIDTH).sections, 300))
    assert "1 problem: " in heading and text in heading
    summary = line_text(machine_summary(view_of(store), 300))
    assert summary.startswith(f"{sign} 1 problem, press 5") and (
        f": {text}" in summary and (name.strip() in summary)
    ) is not is_on_live(store)


@pytest.mark.parametrize("player", ["", "other", NODE])
def test_the_next_step_of_a_load_depends_on_who_causes_it(player: str) -> None:
    store = RunStore()
    store.apply_events([live(started(1), node=player)] if player else [])
    busy_host(store, cpu=97.0)
    health(model_health("vllm", "slow", "4 s"))(store)
    steps = {name: step for name, _, _, step in problems(store)}
    assert ("another program is the cause" if player != NODE else "play fewer episodes") in steps["CPU"]
    assert ("play fewer episodes" if player else "others use this server") in steps["vllm"]


def test_a_server_that_is_down_has_no_time_of_an_answer() -> None:
    store = busy_store()
    health(
        env_health("WebShop", "down", cause="HTTP 502", transport="http", latency_s=0.006),
        env_health("Maze", "slow", transport="http", latency_s=6.0),
        model_health("vllm", "down", "refused", latency_s=0.006, model="qwen"),
    )(store)
    shown = texts(store)
    assert {"WebShop ✗ down · http █", "Maze ◐ slow · http · answers in 6.0 s █", "vllm ✗ down · qwen █"} < set(shown)


def test_an_environment_that_is_not_installed_is_a_note_and_no_problem() -> None:
    store = empty_store()
    shown = texts(store)
    at = shown.index("ALFWorld ✗ down · embedded")
    assert shown[at + 1 : at + 3] == [
        "i it cannot be played here: not installed",
        "→ `agentgym-runner --list-envs` shows what it needs",
    ]
    assert problems(store) == []


def test_live_names_a_problem_only_where_its_other_parts_do_not() -> None:
    store = busy_store()
    health(model_health("vllm", "down", "refused"))(store)
    assert line_text(machine_summary(view_of(store), 300)) == "✗ 1 problem, press 5"
    busy_host(store, cpu=99.0)
    assert line_text(machine_summary(view_of(store), 300)).startswith("✗ 2 problems, press 5: the CPU is at 99%")


def test_an_endpoint_that_cools_down_after_its_failure_is_no_failure_while_another_one_answers() -> None:
    store = samples.streaming_store(fallback=True)
    assert line_text(machine_summary(view_of(store), 300)) == "✗ 1 problem, press 5"
    store.apply_events([live(model_health("gateway", "up", None, rest_s=27.0))])
    assert line_text(machine_summary(view_of(store), 300)) == "! 1 problem, press 5"


def test_a_gpu_has_its_load_power_temperature_memory_and_processes() -> None:
    store = busy_store()
    machine(3, gpu=[GPU, GpuState(index=1, name="A100", mig=True), GpuState(index=3)])(store)
    shown = texts(store)
    assert "GPU 0 50% · 612 of 700 W · 71 °C · H100 ▄▄▄" in shown
    assert "memory 60.0 GiB of 80.0 GiB · vllm (7) 59.0 GiB ▆▆▆" in shown
    assert f"GPU 1 {UNKNOWN} · A100, divided into instances (MIG)" in shown
    assert f"GPU 3 {UNKNOWN} · {UNKNOWN}" in shown
    assert "CPU 12% of 16 CPUs ▁▁▁" in shown and "memory 40% of 64 GB ▃▃▃" in shown


def test_a_divided_gpu_has_the_memory_and_the_processes_of_each_instance() -> None:
    store = busy_store()
    full = GpuInstance(index=0, name="H100 MIG 1g.10gb", mem_used=10 * GIB, mem_total=10 * GIB, processes=GPU.processes)
    machine(gpu=[GpuState(index=0, name="H100", mig=True, instances=(full, GpuInstance(index=2)))])(store)
    shown = texts(store)
    assert "instance 0 ! 10.0 GiB of 10.0 GiB · H100 MIG 1g.10gb · vllm (7) 59.0 GiB" in shown
    assert "! its memory is 100% full: the next allocation may fail" in shown
    assert f"instance 2 {UNKNOWN} of {UNKNOWN}" in shown
    machine(gpu=[GpuState(index=0, mig=True, instances=(GpuInstance(index=0), GpuInstance(index=0)))])(store)
    rows = MachineRows(view_of(store), 80)
    assert len({rows.key(index) for index in range(len(rows))}) == len(rows), "even for instances of equal number"


def test_a_model_server_that_only_rests_is_no_failure() -> None:
    store = busy_store()
    health(model_health("vllm", "up", None, rest_s=12.0))(store)
    rows = MachineRows(view_of(store), 120)
    (now,) = [rows.line(n, 120)[1] for n in range(len(rows)) if rows.key(n) == "model vllm"]
    assert now.text.startswith("! cooling down") and now.tone == "warn"


def test_a_model_server_has_the_load_that_it_reports_while_it_does() -> None:
    clock = FakeClock()
    store = busy_store(clock)
    metrics(2, running=8.0, waiting=0.0, kv_cache=0.5, prefix_hits=0.25, tokens_per_s=410.0)(store)
    shown = texts(store)
    assert "requests 8 running · 0 waiting ██" in shown
    assert "KV cache 50% used · prefix hits 25% ▄▄" in shown and "speed 410 tokens/s ██" in shown
    metrics(running=1e300, waiting=-5.0, kv_cache=7.0, tokens_per_s=1e300)(store)
    assert any(each.startswith("KV cache 100% used") for each in texts(store))
    assert not any("none read" in each for each in texts(store))
    clock.at += 60.0
    assert "metrics none read; SGLang needs --enable-metrics, llama.cpp --metrics" in texts(store)
    assert not any("KV cache" in each for each in texts(store))


@pytest.mark.parametrize(
    ("per_minute", "at_once", "expected"),
    [
        (None, None, None),
        (60, None, "rate limit at most 60 requests/min"),
        (2, 4, "rate limit ! at most 2 requests/min and 4 in flight: reached"),
        (60, 1, "rate limit ! at most 60 requests/min and 1 in flight: reached"),
        (10**18, 2, "rate limit at most "),
        pytest.param(10**400, 10**400, "rate limit at most ", id="huge"),
    ],
)
def test_the_rate_limits_of_the_profile_are_shown_and_whether_they_are_reached(
    per_minute: int | None, at_once: int | None, expected: str | None
) -> None:
    store = busy_store(FakeClock())
    store.apply_events([live(started(4), *(timestep(4, index, endpoint="lab") for index in range(3)))])
    health = model_health("lab", "up", None, requests_per_minute=per_minute, concurrent_requests=at_once)
    store.apply_events([live(token(4, 9, step=3, endpoint="lab", text=""), health)])
    limits = [each for each in texts(store, width=200) if "rate limit" in each]
    assert (limits == []) == (expected is None)
    assert expected is None or expected in limits[0]


def test_the_requests_of_the_agents_are_shown_beside_the_load_of_the_server() -> None:
    clock = FakeClock()
    store = busy_store(clock)
    seconds = [(1.0, None), (2.0, 0.5), (9.0, 0.1)]
    for index, (model_s, ttft_s) in enumerate(seconds):
        failed = (f"lab: 503 from {HOSTILE}",) if index else ()
        step = timestep(4, index, endpoint="lab", model_s=model_s, ttft_s=ttft_s, warnings=failed)
        store.apply_events([live(*([started(4)] if index == 0 else []), step)])
    store.apply_events([live(token(4, 9, step=3, endpoint="lab", text=""), model_health("lab", "up", None))])
    shown = texts(store, width=200)
    assert "our requests 1 in flight · 3.0 answers/min" in shown
    assert "our answers 2.0 s, 95% within 9.0 s · first token 100 ms, 95% within 500 ms" in shown
    [failures] = [each for each in shown if "failures" in each]
    assert "! 2 x 503 from" in failures and not has_unsafe_chars(failures)
    rows = MachineRows(view_of(store), WIDTH)
    assert any("\x1b" in cell.raw for index in range(len(rows)) for cell in rows.line(index, WIDTH))
    clock.at += 61.0
    assert not any("our answers" in each or "failures" in each for each in texts(store))
    assert problems(store) == []


def test_the_models_that_ollama_holds_in_memory_are_listed() -> None:
    store = busy_store()
    metrics(server="ollama", models=["qwen3:8b 5.0 GiB, 100% on the GPU", HOSTILE])(store)
    [row] = [each for each in texts(store, width=200) if "in memory" in each]
    assert "in memory ⚠ qwen3:8b 5.0 GiB, 100% on the GPU, " in row and not has_unsafe_chars(row)
    metrics(server="ollama", models=[])(store)
    assert "in memory no model" in texts(store)


def test_the_power_limit_is_a_note_and_no_problem() -> None:
    store = busy_store()
    gpu(throttled=("power limit",))(store)
    assert "i its clocks are reduced: power limit" in texts(store) and problems(store) == []


def test_a_node_without_a_gpu_says_why_in_the_room_of_the_trend() -> None:
    store = busy_store()
    machine(gpu_cause="no NVIDIA driver")(store)
    assert f"GPU no NVIDIA driver on {NODE}" in texts(store) and problems(store) == []
    rows = MachineRows(view_of(store), 80)
    lines = {line[0].text.strip(): line for index in range(len(rows)) if (line := rows.line(index, 80))}
    assert len(lines["GPU"]) == 2 and len(lines["CPU"]) == 3


@pytest.mark.parametrize(
    ("cause", "shown", "text", "step"),
    [
        (
            "the NVIDIA driver was updated: restart the machine to load the new one; no AMD driver",
            "GPU ! no GPU can be read",
            "! the NVIDIA driver was updated",
            "restart the machine to load the new one",
        ),
        (
            "the NVIDIA driver does not answer: \x1b[31mno\nluck",
            "GPU ! no GPU can be read",
            "! the NVIDIA driver does not answer: ␛[31mno␊luck",
            "look for the driver in the kernel log: `dmesg`",
        ),
        (
            "no NVIDIA driver; this machine has an AMD driver: install `agentgym-console[amd]` to see its GPUs",
            "GPU no GPU is read",
            "i this machine has an AMD driver",
            "install `agentgym-console[amd]` to see its GPUs",
        ),
    ],
)
def test_a_driver_that_cannot_be_used_has_a_sentence_and_a_next_step(
    cause: str, shown: str, text: str, step: str
) -> None:
    store = busy_store()
    machine(gpu_cause=cause)(store)
    lines = texts(store)
    assert shown in lines
    assert lines[lines.index(shown) + 1 :][:2] == [text, f"→ {step}"]


def test_the_disk_and_the_network_have_a_trend() -> None:
    store = busy_store()
    net = Network(sent_per_s=2_000.0, received_per_s=3_400_000.0)
    machine(2, disk_free=50 * 10**9, disk_total=10**11, net=net)(store)
    shown = texts(store)
    assert "disk 50 GB free of 100 GB · /srv/agentgym/data ▄▄" in shown
    assert "network 3.4 MB/s received · 2.0 kB/s sent ██" in shown


def test_a_console_that_cannot_send_commands_names_no_keys_for_them() -> None:
    store = busy_store()
    health(env_health("WebShop", "down", transport="http", cause="refused"))(store)
    store.mark_node_lost(NODE)
    store.set_link(BusLink("disconnected", "reset"))
    steps = [step for *_, step in problems(store, "watching only")]
    assert len(steps) == 3 and not any("press" in step for step in steps)


def test_problems_that_fail_come_first_and_the_cursor_goes_around_them() -> None:
    store = busy_store()
    busy_host(store, n=2)
    busy_host(store, cpu=100.0, n=1)
    assert problems(store) == [], "a short peak of the load is no problem"
    store = busy_store()
    busy_host(store, cpu=99.0)
    health(model_health("vllm", "down", "refused"))(store)
    assert [name for name, *_ in problems(store)] == ["vllm", "CPU"]
    rows = MachineRows(view_of(store), WIDTH)
    first = rows.next_problem(0, 1)
    assert first is not None and "the CPU is at 99%" in line_text(rows.line(first, WIDTH))
    second = rows.next_problem(first, 1)
    assert second is not None and "refused" in line_text(rows.line(second, WIDTH))
    assert rows.next_problem(second, 1) == first and rows.next_problem(first, -1) == second
    assert MachineRows(view_of(busy_store()), WIDTH).next_problem(0, 1) is None


def test_each_node_of_a_bus_has_a_section_and_their_number_is_bounded() -> None:
    store = busy_store()
    for n in range(MAX_NODES + 4):
        store.apply_events([live(heartbeat("its disk is full" if n == 12 else None), node=f"node{n}")])
    shown = texts(store)
    assert sum(each.startswith("Machine of ") for each in shown) == MAX_NODES
    assert shown[0] == "Machine of node12"
    assert "… and 5 more nodes" in shown


def test_long_sentences_are_wrapped_for_the_width() -> None:
    store = busy_store()
    health(model_health("vllm", "down", "no " * 40))(store)
    rows = MachineRows(view_of(store), 60)
    spans: list[Line] = [rows.line(index, 60) for index in range(len(rows)) if len(rows.line(index, 60)) == 1]
    assert max(len(line_text(line)) for line in spans) <= 60
    assert len({rows.key(index) for index in range(len(rows))}) == len(rows)


def test_hostile_texts_are_safe_and_marked() -> None:
    rows = MachineRows(view_of(hostile_store()), WIDTH)
    cells: list[Cell] = [cell for index in range(len(rows)) for cell in rows.line(index, WIDTH)]
    assert not any(has_unsafe_chars(cell.text) or "\n" in cell.text for cell in cells)
    marked = [cell for cell in cells if cell.raw]
    assert marked and all(cell.text.startswith("⚠") for cell in marked)
    assert not has_unsafe_chars(line_text(machine_summary(view_of(hostile_store()), 300)))


def test_no_secret_of_a_cause_an_address_or_a_step_is_shown() -> None:
    store, secret = busy_store(), "http://me:hunter22@host"
    store.set_link(BusLink("failed", f"{secret} refused", address=secret))
    store.apply_health(node_health(egress=secret, data_dir=secret))
    checked = env_health("WebShop", "wrong", transport="http", cause=secret)
    store.apply_events([live(model_health("vllm", "wrong", secret, hint=f"try {secret}"), checked)])
    store.apply_events([live(model_health(secret, "up", None)), live(heartbeat(f"{secret} is full"))])
    failed = timestep(4, 0, endpoint="tensorzero", model_s=1.0, warnings=(f"vllm: no connection to {secret}",))
    store.apply_events([live(started(4), failed, progress(seq=9, waiting_for=secret))])
    shown = "\n".join(texts(store, width=300))
    assert "hunter22" not in shown and shown.count("***@host") == 11


def test_trends_are_drawn_from_the_oldest_to_the_newest() -> None:
    assert sparkline((0.0, 50.0, None, 100.0), 10, 100.0) == "▁▄ █"
    assert sparkline((1.0, 2.0, 4.0), 2) == "▄█" and sparkline([], 10, 1.0) == ""
    assert sparkline((-1.7e308, 1e-300), 2) == "▁█" and sparkline((1.7e308, 0.0), 2, 100.0) == "█▁"
    assert sparkline((math.nan, math.inf, None), 5) == "" and sparkline((1.0,), 0) == ""
    store = busy_store()
    for cpu in (25.0, 50.0, 100.0):
        busy_host(store, cpu=cpu, n=1)
    assert any(each.startswith("CPU 100%") and each.endswith("▂▄█") for each in texts(store))


def test_trends_are_bounded() -> None:
    trends = Trends()
    for n in range(MAX_SERIES + 5):
        trends.add("cpu", str(n), 1.0)
        trends.add("cpu", "0", float(n))
    assert trends.get("cpu", "0")[-1] == MAX_SERIES + 4 and len(trends.get("cpu", "0")) == N_SAMPLES
    assert trends.get("cpu", "1") == () and trends.get("cpu", str(MAX_SERIES + 4)) == (1.0,)


def test_the_rate_of_live_items_is_sampled_by_the_clock() -> None:
    clock = FakeClock()
    store = busy_store(clock)
    for _ in range(3):
        clock.at += 2.0
        store.apply_events([live(heartbeat(), heartbeat())])
    assert store.trends.get("items", "")[-1] == 1.0
    assert any("1.0 items/s" in each for each in texts(store))


def test_an_external_broker_without_the_earlier_events_has_a_note_that_counts_as_no_problem() -> None:
    store = busy_store()
    store.apply_health(node_health(egress=f"nats://{HOSTILE}", n_held=1))
    shown = texts(store, width=200)
    place = next(place for place, text in enumerate(shown) if text.startswith("external ⚠ nats://"))
    assert shown[place + 1].startswith("i 1 earlier event was not sent to nats://")
    assert shown[place + 2] == '→ press ^p "Send earlier" to send them' and problems(store) == []
    assert not any(map(has_unsafe_chars, shown))
