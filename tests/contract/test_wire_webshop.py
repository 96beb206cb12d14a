"""WebShop replays recorded exchanges of AgentGym's own server on our catalogue."""

from __future__ import annotations

import json

from runner.envs.webshop import WebShop
from runner.types import Action
from tests.support.recordings import load_rows


def test_every_recorded_reply_is_reproduced() -> None:
    visits: dict[str, WebShop] = {}
    compared = {"/reset": 0, "/step": 0, "/available_actions": 0}
    for row in load_rows("webshop.jsonl"):
        kind, sent, received = row["path"].partition("?")[0], row["body"] and json.loads(row["body"]), row["reply"]
        if kind not in compared:
            continue
        env = visits.setdefault(row["env"], WebShop(mode="compat"))
        if kind == "/reset":
            observation = env.reset(task_index=sent["session_id"])[0]["content"]
            assert [observation, None] == json.loads(received)
        elif kind == "/step":
            chat, reward, done = env.step(Action(text=sent["action"]))
            ours = {"state": chat[0]["content"], "reward": reward, "done": done, "info": None}
            assert ours == json.loads(received), row
        else:
            page = json.loads(received)
            assert (env.has_search_bar, env.clickables) == (page["has_search_bar"], page["clickables"]), row
        compared[kind] += 1
    assert compared == {"/reset": 23, "/step": 170, "/available_actions": 104}


def test_a_search_for_random_products_finds_as_many_as_any() -> None:
    env = WebShop(mode="compat")
    env.reset(task_index=3)
    text = str(env.step(Action(text="search[<r>]"))[0][0]["content"])
    assert "Page 1 (Total results: 50) [SEP] Next >" in text
