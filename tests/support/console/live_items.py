"""Bus messages of running episodes, a fake clock, and hostile texts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from runner.events.codec import DurableRow, LiveRow
from runner.events.control import BatchState, NodeHealth, NodeList
from runner.events.durable import BatchCompleted, DurableEvent, EpisodeCompleted, FieldStatus
from runner.events.live import (
    EnvHealth,
    EpisodeEnded,
    EpisodeStarted,
    Gpu,
    Heartbeat,
    Host,
    LazyBatch,
    LazyItem,
    LazySpan,
    LazyTimestep,
    LiveAction,
    LiveItem,
    ModelHealth,
    SpanClosed,
    Timestep,
    TokenText,
)
from runner.subscribe.messages import BusMessage
from runner.types import BatchProgress, Outcome, Span, Tokens, ToolCall
from runner.types.machine import GpuState, Machine

NODE: Final = "pmoves-4090"
BOOT: Final = "01J0000000BBBBBBBBBBBBBBBB"
NEXT_BOOT: Final = "01J1000000BBBBBBBBBBBBBBBB"
START: Final = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
PROFILE: Final = [
    ("lightweight", "BabyAI", "110 MiB"),
    ("lightweight", "TextCraft", "66 MiB"),
    ("lightweight", "Maze", "100 MiB"),
    ("lightweight", "Wordle", "100 MiB"),
    ("moderate", "ALFWorld", ""),
    ("moderate", "SQLGym", "65 MiB"),
    ("moderate", "WebShop", ""),
]

ESCAPES: Final = [
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x/\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;cHduZWQ=\x07",
    "\x9b2J\x90q\x9c\x85",
    "\u202egnp.exe\u2066\u200f",
    "zero\u200bwidth\ufeff\u00ad",
    "\x00nul\x08\x7f",
    "\ud800lone",
    "[/][/foo] arr[i]=[/] [@click=app.quit]press[/] [bold red]x",
    "👩‍👩‍👧 wide 漢字 e\u0301",
    "line\nbreak\r\ttab\u2028\u2029",
]
HOSTILE: Final = "".join(ESCAPES)
HUGE: Final = "\x1b[2J" + "A" * 1_000_000


class FakeClock:
    """A clock whose seconds pass when a test changes ``at``."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def episode_id(n: int) -> str:
    return f"01J0000000EEEEEEEEEEE{n:05d}"


def batch_id(n: int) -> str:
    return f"01J0000000AAAAAAAAAAA{n:05d}"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def live(*items: LiveItem, node: str = NODE, boot: str = BOOT, dropped: int = 0) -> BusMessage:
    batch = LazyBatch(node=node, boot=boot, dropped=dropped, items=[*map(lazy_item, items)])
    return BusMessage(subject="agentgym.live.x", headers={}, decoded=LiveRow(batch=batch))


def lazy_item(item: LiveItem) -> LazyItem:
    """Return the item as the codec decodes it, even with texts that JSON on a bus cannot hold."""
    if not isinstance(item, Timestep | SpanClosed):
        return item
    fields = msgspec.structs.asdict(item)
    for name in {"chats", "observation", "reset_observation", "world", "reset_world", "span"} & fields.keys():
        fields[name] = msgspec.Raw(json.dumps(msgspec.to_builtins(fields[name])).encode())
    return (LazyTimestep if isinstance(item, Timestep) else LazySpan)(**fields)


def durable(event: DurableEvent, event_id: str = "") -> BusMessage:
    row = DurableRow(event=event, id=event_id, type="")
    return BusMessage(subject="s", stream="AGENTGYM_EVENTS", sequence=1, time=START, headers={}, decoded=row)


def started(n: int = 0, **fields: Any) -> EpisodeStarted:  # noqa: ANN401
    defaults: dict[str, Any] = {
        "at": START + timedelta(seconds=n),
        "episode_id": episode_id(n),
        "seq": 0,
        "batch_id": batch_id(0),
        "battery_id": None,
        "env": "Wordle",
        "mode": "strict",
        "transport": "embedded",
        "data_label": "upstream",
        "task_index": n,
        "seed": 7,
        "attempt": 0,
        "agent": "oracle",
        "model": None,
        "profile": "field-runner-4090",
    }
    return EpisodeStarted(**{**defaults, **fields})


def timestep(n: int = 0, index: int = 0, **fields: Any) -> Timestep:  # noqa: ANN401
    defaults: dict[str, Any] = {
        "at": START + timedelta(seconds=n + index),
        "episode_id": episode_id(n),
        "seq": index + 1,
        "index": index,
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
        "reset_observation": [user("observation 0")] if index == 0 else None,
    }
    return Timestep(**{**defaults, **fields})


def ended(n: int = 0, seq: int = 4, **fields: Any) -> EpisodeEnded:  # noqa: ANN401
    defaults: dict[str, Any] = {
        "at": START + timedelta(seconds=n + seq),
        "episode_id": episode_id(n),
        "seq": seq,
        "outcome": Outcome.SUCCESS,
        "success": True,
        "reward": 0.75,
        "rounds": 3,
        "duration_s": 3.75,
    }
    return EpisodeEnded(**{**defaults, **fields})


def token(number: int = 0, seq: int = 1, text: str = "thinking ", step: int = 0, **fields: Any) -> TokenText:  # noqa: ANN401
    return TokenText(
        **{"at": START, "episode_id": episode_id(number), "seq": seq, "step": step, "text": text, **fields}
    )


def span(number: int, *, parent: int | None = None, start: int = 0, end: int = 1_000_000, name: str = "step") -> Span:
    return Span(id=number, parent=parent, name=name, category="agent", track="main", start_ns=start, end_ns=end)


def span_closed(closed: Span, n: int = 0, seq: int = 1) -> SpanClosed:
    return SpanClosed(at=START, episode_id=episode_id(n), seq=seq, span=closed)


def episode_items(n: int = 0, n_steps: int = 3, **fields: Any) -> list[LiveItem]:  # noqa: ANN401
    """Return all items of an episode; ``fields`` go to its ``EpisodeStarted``."""
    steps = [timestep(n, index) for index in range(n_steps)]
    return [started(n, **fields), *steps, ended(n, n_steps + 1, rounds=n_steps)]


def progress(n: int = 0, **fields: Any) -> BatchProgress:  # noqa: ANN401
    defaults: dict[str, Any] = {"n_done": 3, "n_planned": 10, "n_success": 2, "mean_reward": 0.5, "eta_s": 201.0}
    return BatchProgress(**{"at": START, "batch_id": batch_id(n), "seq": 0, **defaults, **fields})


def env_health(env: str = "Wordle", status: str = "embedded", **fields: Any) -> EnvHealth:  # noqa: ANN401
    defaults: dict[str, Any] = {"latency_s": None, "transport": "embedded", "open": None, "cause": None}
    return EnvHealth(**{"at": START, "env": env, "status": status, **defaults, **fields})


def model_health(
    endpoint: str = "tensorzero",
    status: str = "down",
    cause: str | None = "refused",
    **fields: Any,  # noqa: ANN401
) -> ModelHealth:
    defaults: dict[str, Any] = {"endpoint": endpoint, "status": status, "cause": cause}
    return ModelHealth(**{"at": START, **defaults, **fields})


def host() -> Host:
    gpu = Gpu(name="RTX 4090", util=34.0, mem_used=5 << 30, mem_total=16 << 30)
    return Host(at=START, cpu=12.0, ram=40.0, gpu=[gpu])


def machine() -> Machine:
    gpu = GpuState(index=0, name="RTX 4090", util=34.0, mem_used=5 << 30, mem_total=16 << 30)
    return Machine(at=START, cpu=12.0, ram=40.0, gpu=[gpu])


def heartbeat(storage: str | None = None, indexing: str | None = None, **fields: Any) -> Heartbeat:  # noqa: ANN401
    return Heartbeat(**{"at": START, "storage": storage, "indexing": indexing, **fields})


def completed(n: int = 0, **fields: Any) -> EpisodeCompleted:  # noqa: ANN401
    defaults: dict[str, Any] = {
        "episode_id": episode_id(n),
        "env": "Wordle",
        "reward": 0.75,
        "rounds": 3,
        "duration_s": 3.75,
        "success": True,
        "score": 0.75,
        "duration_sec": 3.75,
        "outcome": Outcome.SUCCESS,
        "agent": "oracle",
        "model": None,
        "task_index": n,
        "tokens": Tokens(360, 90),
        "batch_id": batch_id(0),
        "node": NODE,
        "profile": "field-runner-4090",
    }
    return EpisodeCompleted(**{**defaults, **fields})


def batch_completed(n: int = 0, **fields: Any) -> BatchCompleted:  # noqa: ANN401
    defaults: dict[str, Any] = {"env": "Wordle", "n_episodes": 10, "mean_reward": 0.5, "success_rate": 0.7}
    more_defaults: dict[str, Any] = {
        "status": "completed",
        "agent": "oracle",
        "model": None,
        "node": NODE,
        "battery_id": None,
    }
    return BatchCompleted(**{"batch_id": batch_id(n), **defaults, **more_defaults, **fields})


def field_status(status: str = "idle", boot: str = BOOT, **fields: Any) -> FieldStatus:  # noqa: ANN401
    defaults: dict[str, Any] = {"node": NODE, "config": "field-runner-4090", "role": "node", "pid": 4242}
    return FieldStatus(**{"status": status, "boot": boot, **defaults, **fields})


def batch_state(n: int = 0, status: str = "running", **fields: Any) -> BatchState:  # noqa: ANN401
    defaults: dict[str, Any] = {"battery_id": None, "env": "Wordle", "agent": "oracle", "model": None}
    return BatchState(**{"batch_id": batch_id(n), "status": status, "n_done": 0, "n_planned": 10, **defaults, **fields})


def node_list(*batches: BatchState) -> NodeList:
    names = [name for _, name, _ in PROFILE]
    return NodeList(batches=list(batches), envs=names, agents=["oracle", "random", "scripted"], models=["qwen35_9b"])


def node_health(boot: str = BOOT, **fields: Any) -> NodeHealth:  # noqa: ANN401
    defaults: dict[str, Any] = {"node": NODE, "pid": 4242, "profile": "field-runner-4090", "version": "0.3.0"}
    more_defaults: dict[str, Any] = {
        "status": "idle",
        "uptime_s": 12.0,
        "data_dir": "/srv/agentgym/data",
        "egress": None,
    }
    items = [env_health(name) for _, name, _ in PROFILE[:4]]
    down = [env_health(name, "down", cause="not installed") for _, name, _ in PROFILE[4:]]
    return NodeHealth(**{"boot": boot, "items": [machine(), *items, *down], **defaults, **more_defaults, **fields})
