"""Live names what the batch waits for, and an episode shows where the time of its steps went."""

from __future__ import annotations

from agentgym_tui.app import Console
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.run_store import RunStore
from runner.events.live import ModelMetrics
from runner.types import Phases
from tests.support.console.fake_session import FakeSession
from tests.support.console.live_items import (
    START,
    FakeClock,
    heartbeat,
    live,
    model_health,
    progress,
    started,
    timestep,
)
from tests.support.console.pilot import wait_for_no_text, wait_for_text
from tests.support.console.samples import PROFILE, batch_state, node_health, node_list

WAITING = Phases(queue=2.5, prefill=0.5, decode=0.75, model=3.75, env=0.2, own=0.05, about=True)


def slow_session() -> FakeSession:
    store = RunStore(now=FakeClock())
    store.set_link(BusLink(status="connected", address="127.0.0.1:4222"))
    store.apply_profile(PROFILE)
    store.apply_health(node_health(status="running"))
    store.apply_list(node_list(batch_state(agent="react", model="small")))
    store.apply_events([live(heartbeat(), model_health("lab", "up", None))])
    steps = [timestep(0, index, phases=WAITING, endpoint="lab", model="small", model_s=3.8) for index in range(3)]
    metrics = ModelMetrics(at=START, endpoint="lab", server="vllm", running=16.0, waiting=12.0, kv_cache=0.97)
    store.apply_events([live(started(model="small", agent="react"), progress(), *steps, metrics)])
    return FakeSession(store)


async def test_live_names_what_the_batch_waits_for_and_its_episode_the_shares() -> None:
    session = slow_session()
    async with Console(session).run_test(size=(120, 40)) as pilot:
        await wait_for_text(pilot, "waiting for the model: 12 requests queued at vLLM, KV cache 97%")
        await wait_for_text(pilot, "queue about 2.5 s · prefill about 500 ms ·")
        await pilot.press("tab", "enter")
        await wait_for_text(pilot, "time: queue about 62%, decode about 19%, prefill about 12%, environment 5%")
        await pilot.press("escape")
        await wait_for_text(pilot, "waiting for the model")
        session.store.apply_events([live(progress(seq=1, paused=True))])
        await wait_for_no_text(pilot, "waiting for the model")
