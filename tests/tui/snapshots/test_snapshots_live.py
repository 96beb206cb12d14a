"""Live, its dialogs, and the machine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.screens.dialogs.texts import HexDumpDialog
from agentgym_tui.services import Message
from agentgym_tui.state.nodes import ProfileDifference
from agentgym_tui.state.run_store import RunStore
from runner.types import Outcome, WorkerCounts
from runner.types.machine import GpuProcess, GpuState, Machine, Network
from tests.support.console.fake_session import FakeSession, busy_session, empty_session, error_session
from tests.support.console.pilot import SIZE, SMALL, by_name, console_app
from tests.support.console.samples import (
    HOSTILE,
    NODE,
    START,
    FakeClock,
    batch_state,
    busy_store,
    completed,
    durable,
    env_health,
    episode_id,
    hostile_store,
    live,
    model_health,
    node_list,
    progress,
    row,
    span,
    span_closed,
    streaming_store,
    timestep,
)
from tests.support.console.snapshots import ALL_SIZES, LARGE, PicturesOf

REPLY = "The letters c and e are in the word, but not where you put them. That leaves fewer guesses. " * 2


def full_store() -> RunStore:
    """Return a store with a running episode of seven steps, its trace, and sixty finished episodes."""
    store = busy_store()
    for n in range(10, 70):
        success = n % 3 > 0
        outcome = Outcome.SUCCESS if success else Outcome.FAILURE
        event = completed(n, outcome=outcome, success=success, reward=n % 5 / 4, model="qwen35_9b")
        store.apply_events([durable(event)])
    for index in range(2, 7):
        reply = [{"role": "user", "content": REPLY}]
        reward = (0.0, 0.5, -1.0)[index % 3]
        store.apply_events([live(timestep(3, index, seq=10 * index, observation=reply, reward=reward))])
    start = 0
    for n in range(21):
        end = start + 300_000_000 + n % 4 * 150_000_000
        name = ("agent.act", "env.step", "timestep")[n % 3]
        store.apply_events([live(span_closed(span(n, start=start, end=end, name=name), 3, seq=100 + n))])
        start = end
    return store


async def test_screens_of_a_node_that_has_run_nothing(pictures_of: PicturesOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_KEY", raising=False)
    session = empty_session()
    session.fake_library.stored = []
    defaults = {"concurrency": 4, "workers": None, "max_rounds": 15, "max_duration_sec": 300.0}
    session.store.set_profile_defaults("field-runner-4090", defaults)
    async with pictures_of(console_app(session)) as pictures:
        await pictures.compare("live", texts=("Nothing is running yet", "not installed"))
        await pictures.compare("episodes", "2", texts=("0 episodes",))
        await pictures.compare("machine", "5", texts=("nothing is wrong",))
        await pictures.compare("runs", "6", texts=("Nothing has run yet.",))
        await pictures.compare("results", "7", texts=("No results yet.",))
        await pictures.show("1", texts=("not installed",))
        keys = ("R", "space", "tab", "tab", "tab", "0")
        await pictures.compare("run form", *keys, texts=("✗ at least 1", "✗ choose one"))
        await pictures.show("escape", texts=("not installed",))
        typed = [key for text in ("http://127.0.0.1:8000/v1", "qwen3-8b", "LAB_KEY") for key in (*text, "down")]
        texts = ("✗ The variable LAB_KEY", "→ set it")
        await pictures.compare("model form", "ctrl+o", *typed, "enter", "enter", texts=texts)


async def test_panes_of_live_are_turned_zoomed_and_resized(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(FakeSession(full_store()))) as pictures:
        await pictures.show(texts=("task 3", "guess 6"))
        await pictures.compare("trace", "v", texts=("▌Trace",))
        await pictures.compare("rewards", "v", texts=("▌Rewards",))
        texts = ("task 3", "guess 6", "following", "3/10")
        await pictures.compare("busy", "v", "tab", "tab", texts=texts, sizes=ALL_SIZES)
    async with pictures_of(console_app(FakeSession(full_store())), SIZE) as pictures:
        await pictures.compare("resized", "tab", "plus", "plus", "plus", texts=("task 3", "▌"), sizes=(SIZE,))
        await pictures.show("v", texts=("▌Trace",))
        await pictures.compare("zoomed", "z", texts=("▌Trace", "env.step"), sizes=(SIZE,))


def ended_session() -> FakeSession:
    session = empty_session()
    session.store.apply_stored([row(2), row(1, success=False, outcome=Outcome.FAILURE, reward=0.25), row(0)])
    return session


@pytest.mark.parametrize(
    ("session_of", "texts"),
    [
        (ended_session, ("last episode", "guess 2")),
        (lambda: FakeSession(RunStore()), ("Nothing is running yet", "opened files")),
        (lambda: FakeSession(streaming_store()), ("gateway · ≈ 18 tokens/s", "guess")),
        (error_session, ("✗ disconnected", "connection refused", "✗ node lost")),
    ],
    ids=["ended", "no node", "streaming", "node lost"],
)
async def test_live(pictures_of: PicturesOf, session_of: Callable[[], FakeSession], texts: tuple[str, ...]) -> None:
    async with pictures_of(console_app(session_of())) as pictures:
        await pictures.compare("live", texts=texts)


async def test_live_with_a_step_from_the_fallback_endpoint(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(FakeSession(streaming_store(fallback=True))), SIZE) as pictures:
        await pictures.show("tab", texts=("tokens/s",))
        await pictures.compare("live", "k", texts=("not following (G)", "step 1"), sizes=(SIZE,))


async def test_live_with_hostile_text(pictures_of: PicturesOf) -> None:
    session = FakeSession(hostile_store())
    session.title = HOSTILE
    async with pictures_of(console_app(session)) as pictures:
        await pictures.compare("live", texts=("␛[2J", "⚠"), sizes=(SMALL, SIZE))


async def test_dialogs_over_a_battery(pictures_of: PicturesOf) -> None:
    session = busy_session()
    battery = [batch_state(0, battery_id="battery"), batch_state(1, "queued", battery_id="battery", n_planned=0)]
    session.store.apply_list(node_list(*battery))
    paths = ("/home/you/.config/agentgym-console/configs/mine.yaml", "/srv/agentgym/configs/field-runner-4090.yaml")
    names = ("field-runner-4090", "mine")
    async with pictures_of(console_app(session)) as pictures:
        for name, key, text in (
            ("battery", "b", "everything"),
            ("quit", "q", "remaining"),
            ("cancel", "x", "1 more in this battery"),
            ("help", "question_mark", "This screen"),
            ("palette", "colon", "type part"),
        ):
            await pictures.compare(name, key, texts=(text,))
            await pictures.show("escape", texts=("task 3",))
        session.store.set_profile_difference(
            ProfileDifference("boot", "digest", False, (names[0], paths[1]), (names[1], paths[0]))
        )
        await pictures.compare("restart offer", texts=("Restart the node?",))


async def test_dialogs_of_one_batch(pictures_of: PicturesOf, monkeypatch: pytest.MonkeyPatch) -> None:
    cause = f"start: no model answers: gateway: no connection: {REPLY}\ngateway: start TensorZero's gateway"
    shown = [
        Message(START, "Maze completed, success 1 of 1\nM shows the summary", failed=False),
        Message(START, sanitize_message(cause), failed=True),
        Message(START, sanitize_message(HOSTILE), failed=False),
    ]
    monkeypatch.setattr("agentgym_tui.app.messages", lambda _app: shown)
    session = busy_session()
    session.fake_library.stored = [row(number) for number in range(1, 4)]
    session.store.apply_tags({episode_id(3): ("good", "loop"), episode_id(2): (HOSTILE,)})
    async with pictures_of(console_app(session)) as pictures:
        await pictures.compare("messages", "exclamation_mark", texts=("Messages",))
        await pictures.show("escape", texts=("task 3",))
        pictures.pilot.app.push_screen(HexDumpDialog(HOSTILE))
        await pictures.compare("hex dump", texts=("0000", "esc closes"))
        await pictures.show("escape", texts=("task 3",))
        await pictures.compare("stop the node", *by_name("node.stop"), texts=("Stop the node?",))
        await pictures.show("escape", texts=("task 3",))
        await pictures.compare("stop the server", "j", "j", "j", *by_name("env.stop"), texts=("Stop the server?",))
        await pictures.show("escape", texts=("task 3",))
        await pictures.compare("tags", "2", "j", "T", texts=("#good #loop", "Tags and notes of"))


def loaded_session() -> FakeSession:
    """Session of a node with a history of loads, a slow and a failed model server, and lost workers."""
    clock = FakeClock()
    store = busy_store(clock)
    store.nodes[NODE].machine = None
    for n in range(40):
        clock.at += 2.0
        cpu, ram = 30.0 + n * 41 % 60, 50.0 + n
        busy = GpuState(
            index=0,
            name="NVIDIA H100",
            util=40.0 + n * 23 % 60,
            mem_used=(50 + n // 2) << 30,
            mem_total=80 << 30,
            power_w=612.0,
            power_limit_w=700.0,
            temperature=84.0,
            throttled=("temperature",),
            processes=(GpuProcess(pid=4242, name="vllm", mem_used=60 << 30),),
        )
        at = START + timedelta(seconds=2 * n)
        net = Network(sent_per_s=2e3, received_per_s=1e5 * (n % 5))
        space: dict[str, Any] = {
            "disk_free": 41 * 10**9,
            "disk_total": 512 * 10**9,
            "n_cpus": 16,
            "ram_total": 64 << 30,
        }
        gpus = [busy, GpuState(index=1, name="NVIDIA H100", lost="the GPU is lost: it fell off the bus")]
        store.apply_events([live(Machine(at=at, gpu=gpus, cpu=cpu, ram=ram, net=net, **space))])
        store.apply_events([live(model_health("tensorzero", "up", None, model="qwen35_9b", latency_s=0.1 + n % 7 / 9))])
        workers = WorkerCounts(n=min(n, 4), lost=n // 39)
        store.apply_events([live(progress(seq=10 + n, workers=workers))])
    refused = model_health("ollama", "down", "http://127.0.0.1:11434: connection refused", hint="start `ollama serve`")
    store.apply_events([live(refused)])
    served: dict[str, Any] = {"transport": "http", "latency_s": 0.012, "open": 3}
    store.apply_events([live(env_health("BabyAI", "up", **served), env_health("SQLGym", "slow", **served))])
    store.apply_events([live(env_health("WebShop", "down", transport="http", cause="connection refused"))])
    return FakeSession(store)


async def test_machine_with_problems(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(loaded_session())) as pictures:
        texts = ("6 problems", "NVIDIA H100")
        await pictures.compare("machine", "5", texts=texts, sizes=(SMALL, LARGE))
        pictures.pilot.app.theme = "textual-light"
        await pictures.compare("light", texts=texts, sizes=(SIZE,))
