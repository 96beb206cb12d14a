"""The door for what comes from outside: texts are cut and numbers limited once, whatever their struct."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentgym_tui.state.normalize import (
    MAX_CAUSE_CHARS,
    MAX_COUNT,
    MAX_ENTRIES,
    MAX_ID_CHARS,
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    MAX_VALUE,
    bounded,
)
from agentgym_tui.state.run_store import RunStore
from runner.events.live import LiveAction, QueueChanged, WaitingBatch
from runner.types import Tokens, ToolCall
from tests.support.console.samples import (
    START,
    batch_completed,
    batch_state,
    completed,
    durable,
    ended,
    env_health,
    episode,
    live,
    node_health,
    node_list,
    started,
    timestep,
    token,
)

LONG, BIG = "x" * 100_000, 10**400
NAIVE = START.replace(tzinfo=None)
WAITING = WaitingBatch(batch_id="b", battery_id=LONG, env=LONG, agent="a", model=None, n_done=BIG, n_planned=-BIG)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (token(0, 1, LONG, step=-1, n=BIG), {"text": LONG[:MAX_TEXT_CHARS], "step": 0, "n": MAX_COUNT}),
        (token(0, 1, LONG), {"text": LONG[:MAX_TEXT_CHARS]}),
        (token(0, 1, "", endpoint=LONG, failure=LONG), {"endpoint": LONG[:MAX_NAME_CHARS]}),
        (token(0, 1, "", failure=LONG), {"failure": LONG[:MAX_CAUSE_CHARS]}),
        (token(0, 1, "a", at=NAIVE), {"at": NAIVE.replace(tzinfo=START.tzinfo)}),
        (token(0, 1, "as it is"), {"text": "as it is", "step": 0, "seq": 1}),
        (started(0, episode_id=LONG, env=LONG), {"episode_id": LONG[: MAX_ID_CHARS + 1], "env": LONG[:MAX_NAME_CHARS]}),
        (started(0, task_index=-BIG, attempt=-1), {"task_index": -(10**18), "attempt": 0}),
        (ended(0, reward=-1.7e308, duration_s=-1.0), {"reward": -MAX_VALUE, "duration_s": 0.0}),
        (ended(0, error={"type": "t", "message": LONG}), {"error": {"type": "t", "message": LONG[:MAX_TEXT_CHARS]}}),
        (timestep(0, tokens=Tokens(BIG, -1)), {"tokens": Tokens(MAX_COUNT, 0)}),
        (
            timestep(0, action=LiveAction(LONG, [ToolCall("c", LONG, LONG)])),
            {
                "action": LiveAction(
                    LONG[:MAX_TEXT_CHARS], [ToolCall("c", LONG[:MAX_NAME_CHARS], LONG[:MAX_TEXT_CHARS])]
                )
            },
        ),
        (timestep(0, warnings=[LONG] * 1_000), {"warnings": [LONG[:MAX_CAUSE_CHARS]] * 20}),
        (env_health(cause=LONG, latency_s=1e300), {"cause": LONG[:MAX_CAUSE_CHARS], "latency_s": MAX_VALUE}),
        (
            QueueChanged(at=START, batches=[replace(WAITING) for _ in range(1_000)], n_waiting=BIG),
            {
                "batches": [replace(WAITING, battery_id=LONG[:200], env=LONG[:200], n_done=MAX_COUNT, n_planned=0)]
                * MAX_ENTRIES,
                "n_waiting": MAX_COUNT,
            },
        ),
    ],
)
def test_what_comes_from_outside_is_bounded_whatever_its_struct(item: msgspec.Struct, expected: dict[str, Any]) -> None:
    shown = bounded(item)
    assert {name: getattr(shown, name) for name in expected} == expected


def test_every_way_into_the_store_is_bounded() -> None:
    store = RunStore()
    ended_batch = durable(batch_completed(0, env=LONG, node=LONG))
    store.apply_events([durable(completed(0, env=LONG)), ended_batch, live(started(1, env=LONG), node=LONG)])
    store.apply_list(node_list(batch_state(1, env=LONG)))
    store.apply_batches([batch_state(2, env=LONG)])
    store.apply_unlisted([batch_state(3, env=LONG)])
    store.apply_health(node_health(profile=LONG))
    store.merge_episode(episode(4, env=LONG))
    assert {len(batch.env) for batch in store.batches.values()} == {MAX_NAME_CHARS}
    assert {len(played.env) for played in store.episodes.values()} == {MAX_NAME_CHARS}
    assert max(map(len, [*store.nodes, *(node.profile for node in store.nodes.values())])) == MAX_NAME_CHARS
    assert (len(store.batches), len(store.episodes)) == (4, 3)
    assert max(map(len, store.envs)) == MAX_NAME_CHARS
