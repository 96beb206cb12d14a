"""BabyAI replays recorded exchanges of AgentGym's own server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from runner.envs.babyai import BabyAI
from runner.types import Action

RECORDINGS = Path(__file__).parents[3] / "shared" / "agentgym-wire"
CHANGED_LEVELS = {3, 35, 36}
"""GoToObjS6, SynthLoc and SynthSeq are drawn differently since minigrid 3.2."""


class Exchange(NamedTuple):
    note: str
    path: str
    body: dict[str, int | str]
    observation: str
    reward: float
    done: bool


def recorded(name: str) -> list[Exchange]:
    """Return the exchanges of a file that carry an observation."""
    path = RECORDINGS / name
    if not RECORDINGS.is_dir():
        pytest.skip(f"no recordings: {RECORDINGS} is missing")
    return list(_exchanges(path.read_text(encoding="utf-8").splitlines()))


def _exchanges(lines: list[str]) -> Iterator[Exchange]:
    for line in lines:
        record = json.loads(line)
        request, reply = record["request"], record["response"]["body"]
        answer = json.loads(reply)
        if request["path"] in ("/reset", "/step") and "observation" in answer:
            body = json.loads(request["body"])
            values = answer["observation"], float(answer["reward"]), answer["done"]
            yield Exchange(record["note"] or "", request["path"], body, *values)


def step(env: BabyAI, text: str) -> tuple[str, float, bool]:
    chat, reward, done = env.step(Action(text=text))
    return str(chat[0]["content"]), reward, done


def test_recorded_episodes_replay() -> None:
    env = BabyAI(mode="compat")
    compared = 0
    for exchange in recorded("babyai.jsonl"):
        task = int(exchange.body.get("data_idx", env.task_index))
        if task % 40 in CHANGED_LEVELS:
            continue
        if exchange.path == "/reset":
            assert env.reset(task_index=task)[0]["content"] == exchange.observation
        else:
            expected = (exchange.observation, exchange.reward, exchange.done)
            assert step(env, str(exchange.body["action"])) == expected
        compared += 1
    assert compared == 8


def test_every_recorded_level_opens_with_the_recorded_text() -> None:
    env = BabyAI()
    resets = {
        int(exchange.body["data_idx"]): exchange.observation
        for exchange in recorded("babyai_late.jsonl")
        if exchange.path == "/reset"
    }
    assert resets.keys() == set(range(40))
    for task in sorted(resets.keys() - CHANGED_LEVELS):
        assert env.reset(task_index=task)[0]["content"] == resets[task], task


def test_late_success_replays_with_its_quirks() -> None:
    """Each group was recorded on task 0, after the number of left turns in its note."""
    env = BabyAI(mode="compat")
    wasted = None
    exchanges = [exchange for exchange in recorded("babyai_late.jsonl") if exchange.path == "/step"]
    for exchange in exchanges:
        group = re.fullmatch(r"late waste=(\d+)", exchange.note)
        if group and group[1] != wasted:
            wasted = group[1]
            env.reset(task_index=0)
            for _ in range(int(wasted)):
                env.step(Action(text="turn left"))
        assert step(env, str(exchange.body["action"])) == (exchange.observation, exchange.reward, exchange.done)
    assert len(exchanges) == 63


def test_an_evaluated_conversation_replays_in_both_modes() -> None:
    path = RECORDINGS / "client_results.jsonl"
    if not path.is_file():
        pytest.skip(f"no recordings: {RECORDINGS} is missing")
    results = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    result = next(result for result in results if result["item_id"] == "babyai_0")
    opening, answer, closing = [message["content"] for message in result["conversations"][2:5]]
    for env in (BabyAI(mode="strict"), BabyAI(mode="compat")):
        assert env.reset(task_index=0)[0]["content"] == opening
        assert step(env, answer.split("Action:\n")[1]) == (closing, result["reward"], True)
