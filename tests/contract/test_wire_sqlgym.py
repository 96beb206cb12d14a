"""SQLGym replays recorded exchanges of AgentGym's own server with an invented database in BIRD's layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.envs.sqlgym import SQLGym
from runner.types import Action
from tests.support.bird_sample import write_bird
from tests.support.recordings import load_recording

FIRST_OF_DEV = 9428
"""Index of the first task of BIRD's second split; in the sample each split has one task."""


def test_every_recorded_reply_is_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_SQLGYM_BIRD_PATH", str(write_bird(tmp_path)))
    env = SQLGym(mode="compat")
    compared = {"reset": 0, "step": 0}
    for exchange in load_recording("sqlgym_fakebird.jsonl"):
        kind, sent, received = exchange.kind, exchange.sent, exchange.received
        if kind not in compared:
            continue
        if kind == "reset":
            chat = env.reset(task_index={0: 0, FIRST_OF_DEV: 1}[sent["item_id"]])
            assert [chat[0]["content"], None] == received
        else:
            chat, reward, done = env.step(Action(text=sent["action"]))
            del received["info"]  # contains the gold query, which our environment never returns
            assert {"state": chat[0]["content"], "reward": reward, "done": done} == received
        compared[kind] += 1
    assert compared == {"reset": 2, "step": 6}
