"""Samples of running and finished episodes, friendly and hostile; live items are imported from here, too."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from msgspec.structs import replace

from agentgym_tui.state.episode import Episode, Spans, StepState, to_json
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.run_store import RunStore
from runner.events.live import LiveAction, LiveItem
from runner.store.index_schema import EpisodeRow
from runner.subscribe.messages import Notice
from runner.types import Outcome, Span, Tokens, ToolCall
from runner.types.machine import GpuState
from tests.support.console.live_items import (
    BOOT,
    ESCAPES,
    HOSTILE,
    HUGE,
    NEXT_BOOT,
    NODE,
    PROFILE,
    START,
    FakeClock,
    batch_completed,
    batch_id,
    batch_state,
    completed,
    durable,
    ended,
    env_health,
    episode_id,
    episode_items,
    field_status,
    heartbeat,
    host,
    live,
    machine,
    model_health,
    node_health,
    node_list,
    progress,
    span,
    span_closed,
    started,
    timestep,
    token,
    user,
)

__all__ = [
    "BOOT",
    "CONNECTION_REFUSED",
    "ESCAPES",
    "HOSTILE",
    "HUGE",
    "NEXT_BOOT",
    "NODE",
    "PROFILE",
    "START",
    "FakeClock",
    "batch_completed",
    "batch_id",
    "batch_state",
    "busy_store",
    "completed",
    "durable",
    "empty_store",
    "ended",
    "env_health",
    "episode",
    "episode_id",
    "episode_items",
    "error_store",
    "field_status",
    "heartbeat",
    "host",
    "hostile_episode",
    "hostile_store",
    "live",
    "machine",
    "model_health",
    "node_health",
    "node_list",
    "progress",
    "row",
    "span",
    "span_closed",
    "started",
    "step",
    "streaming_store",
    "timestep",
    "token",
    "user",
]


def step(index: int = 0, **fields: Any) -> StepState:  # noqa: ANN401
    defaults: dict[str, Any] = {
        "actor": "agent",
        "chats": [[user(f"observation {index}"), {"role": "assistant", "content": f"guess {index}"}]],
        "action": LiveAction(f"guess {index}", [ToolCall("call_0", "guess", '{"word": "crane"}')]),
        "valid": True,
        "observation": [user(f"observation {index + 1}")],
        "reward": 0.25,
        "done": False,
        "model_s": 1.25,
        "env_s": 0.004,
        "tokens": Tokens(120, 30),
    }
    defaults |= fields
    for name in ("chats", "observation"):
        defaults[f"raw_{name}"] = to_json(defaults.pop(name))
    return StepState(index=index, **defaults)


def episode(n: int = 0, n_steps: int = 3, **fields: Any) -> Episode:  # noqa: ANN401
    """Return a finished episode, or a running one with ``outcome=None``."""
    defaults: dict[str, Any] = {
        "batch_id": batch_id(0),
        "env": "Wordle",
        "started_at": START + timedelta(seconds=n),
        "node": NODE,
        "transport": "embedded",
        "data_label": "upstream",
        "task_index": n,
        "seed": 7,
        "agent": "oracle",
        "profile": "field-runner-4090",
        "outcome": "success",
        "success": True,
        "reward": 0.25 * n_steps,
        "rounds": n_steps,
        "duration_s": 3.75,
        "tokens": Tokens(120 * n_steps, 30 * n_steps),
        "reset_observation": [user("observation 0")],
        "steps": [step(index) for index in range(n_steps)],
        "spans": [span(1, end=4_000_000, name="episode"), span(2, parent=1, start=1_000_000, end=3_000_000)],
    }
    defaults |= fields
    spans = defaults.pop("spans")
    return Episode(**{"episode_id": episode_id(n), "spans": Spans(spans), **defaults})


def hostile_episode(n: int = 90, text: str = HOSTILE, **fields: Any) -> Episode:  # noqa: ANN401
    """Return an episode whose every text is ``text``, with messages of shapes that no client sends."""
    odd_messages: list[Any] = [
        {"role": text, "content": text, "reasoning_content": text},
        {"role": ["system"], "content": [{"type": "text", "text": text}, 7, None]},
        {"role": "assistant", "content": f"<think>{text}</think>{text}", "tool_calls": [{"function": 3}, text]},
        {"role": "tool", "content": {"deep": [[[text]]]}, text: text},
        {"tool_calls": [{"id": text, "function": {"name": text, "arguments": text}}]},
        {},
    ]
    action = LiveAction(text, [ToolCall(text, text, text)])
    steps = [
        step(i, chats=[odd_messages, []], action=action, observation=odd_messages, endpoint=text, model=text)
        for i in range(2)
    ]
    names = ("batch_id", "env", "node", "transport", "data_label", "agent", "model", "profile", "mode")
    errors = ("error_type", "error_message", "error_traceback")
    spans = [Span(id=1, parent=1, name=text, category=text, track=text, start_ns=5, end_ns=-5, attributes={text: text})]
    defaults: dict[str, Any] = dict.fromkeys((*names, *errors), text)
    defaults |= {
        "outcome": "error",
        "success": False,
        "reset_observation": odd_messages,
        "steps": steps,
        "spans": spans,
    }
    return episode(n, **{**defaults, **fields})


def row(n: int = 0, **fields: Any) -> EpisodeRow:  # noqa: ANN401
    defaults: dict[str, Any] = {
        "battery_id": None,
        "node": NODE,
        "profile": "field-runner-4090",
        "env": "Wordle",
        "transport": "embedded",
        "data_label": "upstream",
        "mode": "strict",
        "agent": "oracle",
        "model": None,
        "task_index": n,
        "seed": 7,
        "attempt": 0,
        "started_at": START + timedelta(seconds=n),
        "ended_at": START + timedelta(seconds=n + 4),
        "duration_s": 3.75,
        "outcome": Outcome.SUCCESS,
        "success": True,
        "reward": 0.75,
        "rounds": 3,
        "tokens_prompt": 360,
        "tokens_completion": 90,
        "tokens_reasoning": 0,
        "tokens_cached": 0,
        "cost": None,
        "error_type": None,
    }
    defaults["models"] = fields.get("model")
    return EpisodeRow(**{"episode_id": episode_id(n), "batch_id": batch_id(0), **defaults, **fields})


def busy_store(now: FakeClock | None = None, *, has_machine: bool = True) -> RunStore:
    """Return the store of a node that runs its fourth episode of ten; one has failed.

    ``has_machine``: with a sample of its machine.
    """
    store = RunStore(now=now or FakeClock())
    store.set_link(BusLink(status="connected", address="127.0.0.1:4222"))
    store.apply_profile(PROFILE)
    store.apply_health(node_health(status="running"))
    store.apply_list(node_list(batch_state()))
    store.apply_events([live(heartbeat(), model_health("tensorzero", "up", None))])
    failure = ended(1, 4, outcome=Outcome.FAILURE, success=False, reward=0.0)
    store.apply_events(
        [live(*episode_items(0)), live(*episode_items(1)[:-1], failure), live(*episode_items(2), progress())]
    )
    store.apply_events([live(started(3), timestep(3, 0), timestep(3, 1), token(3, 3, "the word may be ", 2))])
    if not has_machine:
        store.nodes[NODE].machine = None
    return store


CONNECTION_REFUSED: Final = "gateway: no connection: connection refused"


def streaming_store(now: FakeClock | None = None, *, fallback: bool = False) -> RunStore:
    """Return a store whose third step streams reasoning, text and a tool call; ``fallback``: from Ollama."""
    store = RunStore(now=now or FakeClock())
    store.set_link(BusLink(status="connected", address="127.0.0.1:4222"))
    store.apply_profile(PROFILE)
    store.apply_health(node_health(status="running"))
    store.apply_list(node_list(batch_state(agent="react", model="qwen35_9b")))
    gateway = model_health("gateway", "up", None, model="qwen35_9b")
    store.apply_events([live(heartbeat(), gateway, model_health("ollama", "up", None, model="qwen3:8b"))])
    spent: dict[str, Any] = {"tokens": Tokens(5_200, 840), "cost": 0.0042}
    store.apply_events(
        [live(*episode_items(0, agent="react", model="qwen35_9b"), progress(n_done=1, n_success=1, **spent))]
    )
    usage: dict[str, Any] = {"endpoint": "gateway", "model": "qwen35_9b", "ttft_s": 0.4, "tokens_per_s": 41.6}
    usage |= {"tokens": Tokens(1_200, 60, 20, 1_000), "cost": 0.00031}
    fallback_usage: dict[str, Any] = {
        **usage,
        "endpoint": "ollama",
        "model": "qwen3:8b",
        "cost": None,
        "warnings": [CONNECTION_REFUSED],
    }
    start = started(3, agent="react", model="qwen35_9b")
    store.apply_events(
        [live(start, timestep(3, 0, **usage), timestep(3, 1, **(fallback_usage if fallback else usage)))]
    )
    answering: dict[str, Any] = {"endpoint": "ollama", "model": "qwen3:8b"} if fallback else usage
    deltas: list[dict[str, Any]] = [{"failure": CONNECTION_REFUSED}] if fallback else []
    deltas += [{"endpoint": answering["endpoint"], "model": answering["model"]}]
    deltas += [{"part": "reasoning", "text": "Neither r nor n is in the word, so ", "n": 8, "ttft_s": 0.4}]
    deltas += [{"part": "reasoning", "text": "another vowel may help.", "n": 5}, {"text": "I try one ", "n": 3}]
    deltas += [{"text": "with an i.", "n": 4}, {"part": "call", "tool": "guess", "text": '{"word": "pi', "n": 6}]
    for seq, fields in enumerate(deltas, 3):
        item = token(3, seq, "", step=2, at=START + timedelta(seconds=0.25 * seq))
        store.apply_events([live(replace(item, **fields))])
    return store


def empty_store(now: FakeClock | None = None) -> RunStore:
    """Return the store of a node that has run nothing."""
    store = RunStore(now=now or FakeClock())
    store.set_link(BusLink(status="connected", address="127.0.0.1:4222"))
    store.apply_profile(PROFILE)
    store.apply_health(node_health())
    store.apply_list(node_list())
    return store


def fleet_store(now: FakeClock | None = None) -> RunStore:
    """Return the store of a watched bus with five nodes: one plays, one is lost, one stopped, one older, one waits."""
    clock = now or FakeClock()
    store = RunStore(now=clock)
    store.set_link(BusLink(status="connected", address="nats.lab:4222"))
    about = {"profile": "lab", "version": "0.1.0"}
    gpus = [GpuState(index=n, name="H200", util=80.0 + 10 * n) for n in range(2)]
    store.apply_events([live(heartbeat(status="idle", n_waiting=9, **about), progress(5), node="gpu-2")])
    clock.at += 20
    store.tick()
    checked: list[LiveItem] = [env_health("Maze"), env_health("WebShop", "down", transport="http", cause="refused")]
    checked += [env_health("ALFWorld", "down", cause="not installed")]
    playing: list[LiveItem] = [started(0), progress(0), replace(machine(), gpu=gpus)]
    store.apply_events(
        [
            live(heartbeat(status="running", n_waiting=2, **about), *playing, *checked, model_health(), node="gpu-1"),
            durable(field_status("stopped", node="gpu-3", config="lab")),
            live(heartbeat(), env_health("Maze"), model_health(status="up", cause=None), node="older"),
            live(heartbeat("the disk is full", status="idle", **about), node="a-node-with-a-long-name"),
        ]
    )
    return store


def error_store(now: FakeClock | None = None) -> RunStore:
    """Return the store of a node that was lost during a batch."""
    store = busy_store(now)
    store.set_link(BusLink(status="disconnected", cause="connection refused", address="127.0.0.1:4222"))
    store.apply_events([Notice(kind="disconnected", text="connection refused")])
    store.mark_node_lost(NODE)
    return store


def hostile_store(text: str = HOSTILE) -> RunStore:
    """Return a store whose every field with external text holds ``text``."""
    store = RunStore(now=FakeClock())
    store.set_link(BusLink(status="failed", cause=text, address=text))
    store.apply_profile([(text, text, text)])
    store.merge_episode(hostile_episode(text=text))
    items: list[LiveItem] = [
        *(started(91, env=text, agent=text, model=text), token(91, 1, text, failure=f"{text}x: {text}")),
        *(token(91, 2, "", endpoint=text, model=text), token(91, 3, text), token(91, 4, text, part="reasoning")),
        token(91, 5, text, part="call", tool=text),
    ]
    store.apply_events(
        [
            live(*items, node=text, boot=text),
            live(env_health(text, "down", cause=text, transport=text), model_health(text, "down", text)),
            durable(completed(1, env=text, model=text, reward=1.0, outcome=None, agent=None, batch_id=None, node=None)),
            Notice(kind="gap", text=text, count=3),
        ]
    )
    return store
