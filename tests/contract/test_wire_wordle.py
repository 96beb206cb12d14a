"""Wordle replays recorded exchanges of AgentGym's own server, including the drawn words."""

from __future__ import annotations

import pytest

from runner.envs.wordle import Wordle, filter_candidates
from runner.types import Action
from tests.support.recordings import load_recording


def task_for_seed(seed: object) -> int:
    """Return the task of a recorded seed; AgentGym's random generator ignores its sign."""
    assert isinstance(seed, int | str)
    return abs(int(seed))


def remaining_words(env: Wordle) -> list[str]:
    words = list(env.words)
    for guess, marks in env.history:
        words = filter_candidates(words, env.marking, guess, marks)
    return words


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wordle.jsonl", {"reset": 3, "step": 11, "filtered_vocab": 8, "detail": 2, "unseeded step": 1}),
        ("wordle_rng.jsonl", {"reset": 10, "step": 27, "filtered_vocab": 3}),
    ],
)
def test_every_recorded_reply_is_reproduced(name: str, expected: dict[str, int]) -> None:
    env = Wordle(mode="compat")
    compared = dict.fromkeys(expected, 0)
    observation, is_reset = None, False
    for exchange in load_recording(name):
        sent, received, kind = exchange.sent, exchange.received, exchange.kind
        match kind:
            case "reset":
                chat = env.reset(task_index=task_for_seed(sent["seed"]))
                observation, is_reset = chat[0]["content"], True
                assert observation == received["observation"]
            case "step" if not is_reset:
                kind = "unseeded step"  # the server also accepts steps before a reset, with an unknown seed
            case "step":
                chat, reward, done = env.step(Action(text=sent["action"]))
                observation = chat[0]["content"]
                assert {"observation": observation, "reward": reward, "done": done} == received
            case "filtered_vocab":
                assert remaining_words(env) == received
            case "detail":
                assert received.get("observation") == observation
            case "http error" | "server error" | "create":
                continue
            case other:
                pytest.fail(f"an exchange of unknown kind: {other}")
        compared[kind] += 1
    assert compared == expected
