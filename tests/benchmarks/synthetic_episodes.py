"""Live items of endless synthetic episodes that run in parallel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Final

from ulid import ULID

from runner.batch.observers import BatchItem, EpisodeStored, LiveItems
from runner.episode.live_items import ended_item, span_items, started_item, timestep_item, token_item
from runner.store.episode_file import episode_record
from runner.types import (
    Action,
    EpisodeHeader,
    Outcome,
    Span,
    StreamDelta,
    TimeStep,
    TimestepPlayed,
    Tokens,
    TokensStreamed,
    ToolCall,
)

ENVS: Final = ("Maze", "BabyAI", "TextCraft", "Wordle", "ALFWorld", "SQLGym", "WebShop", "Academia")
N_PARALLEL: Final = 32
"""Number of parallel episodes of a node."""

N_STEPS, N_SPANS, N_TOKENS = 100, 5, 14
"""Steps of an episode; spans and stream deltas of a step, which are 20 items with the step itself."""

_TEXTS: Final = [f"so the {number}th wall is behind me and " for number in range(N_TOKENS - 1)]
_DELTAS: Final = [
    StreamDelta(endpoint="local", model="load-7b"),
    *(StreamDelta(text=text, n=9, ttft_s=0.05) for text in _TEXTS),
]
_SPAN_NAMES: Final = ("timestep", "agent.act", "get_tool_schemas", "parse", "env.step")
_GOAL: Final = "The goal is at position 8, 6. Your current position is at position 1, {}. There are walls "
_SIDES: Final = ("to your left, above you, below you.", "above you, below you.", "to your left.", "around you.")


def synthetic_items(batch_id: str, node: str, n_parallel: int = N_PARALLEL) -> Iterator[BatchItem]:
    """Yield the items of parallel episodes in turn; each is a little further than the next, and replaced at its end."""
    numbers = itertools.count()
    episodes = [_episode(next(numbers), batch_id, node) for _ in range(n_parallel)]
    for n_ahead, episode in enumerate(reversed(episodes)):
        yield from itertools.islice(episode, 2 * n_ahead)
    while True:
        for slot, episode in enumerate(episodes):
            if (item := next(episode, None)) is not None:
                yield item
            else:
                episodes[slot] = _episode(next(numbers), batch_id, node)


def _episode(number: int, batch_id: str, node: str) -> Iterator[BatchItem]:
    header = EpisodeHeader(
        episode_id=str(ULID()),
        batch_id=batch_id,
        node=node,
        profile="load",
        env=ENVS[number % len(ENVS)],
        data_label="synthetic",
        task_index=number,
        agent="react",
        model="load-7b",
        started_at=_now(),
    )
    episode_id, seq = header.episode_id, itertools.count(1)
    yield started_item(_now(), 0, header)
    steps: list[TimeStep] = []
    for index in range(N_STEPS):
        for delta in _DELTAS:
            streamed = TokensStreamed(at=_now(), episode_id=episode_id, seq=next(seq), step=index, delta=delta)
            yield LiveItems("token", (token_item(streamed),))
        first, *_ = [next(seq) for _ in range(N_SPANS)]
        yield LiveItems("span", span_items(_now(), episode_id, first, _spans(index)))
        steps.append(_step(index))
        played = TimestepPlayed(at=_now(), episode_id=episode_id, seq=next(seq), step=steps[-1])
        yield LiveItems("timestep", (timestep_item(played),))
    record = episode_record(
        header,
        steps,
        ended_at=_now(),
        duration_s=0.3,
        outcome=Outcome.SUCCESS,
        success=True,
        reset_observation=[],
        tool_schemas=[],
        spans=[],
        flows=[],
    )
    yield EpisodeStored(record, ended_item(next(seq), record))


@cache
def _step(index: int) -> TimeStep:
    observation = _GOAL.format(index) + _SIDES[index % 4]
    text = "".join(_TEXTS)
    return TimeStep(
        index=index,
        chats=[[{"role": "user", "content": observation}, {"role": "assistant", "content": text}]],
        action=Action(text, [ToolCall("call_0", "move", '{"direction": "right"}')]),
        observation=[{"role": "user", "content": observation}],
        reward=0.0 if index < N_STEPS - 1 else 1.0,
        done=index == N_STEPS - 1,
        available_tool_schemas=[],
        model_s=0.8,
        env_s=0.002,
        endpoint="local",
        model="load-7b",
        ttft_s=0.05,
        tokens_per_s=60.0,
        tokens=Tokens(200, 40),
    )


@cache
def _spans(index: int) -> list[Span]:
    started, first = index * 1_000_000_000, index * N_SPANS + 1
    return [
        Span(
            id=first + number,
            parent=first if number else None,
            name=name,
            category="agent" if number == 1 else "environment",
            track="slot 0",
            start_ns=started + number * 1_000_000,
            end_ns=started + 900_000_000 - number * 1_000_000,
            attributes={"semantic": "environment"},
        )
        for number, name in enumerate(_SPAN_NAMES)
    ]


def _now() -> datetime:
    return datetime.now(UTC)
