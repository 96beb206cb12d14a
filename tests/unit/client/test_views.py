"""Foreign text in documents for programs: withheld unless it is requested, and then made safe."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.cli.ctl import find_batches
from runner.cli.terminal import ascii_json
from runner.client.follow import step_item
from runner.client.node_client import ControlRequestError
from runner.client.views import Document, Quotes, health_view, listing
from runner.events.control import BatchState, NodeHealth, NodeList
from runner.events.live import EnvHealth, ModelHealth
from runner.types import Action, TimeStep
from tests.support.console.samples import START

MARK = "needle"
FOREIGN = st.text(max_size=40).map(lambda text: f"\x1b[31m{text}{MARK}\u202e{text}")


def state(batch_id: str, battery_id: str | None = None, text: str | None = None) -> BatchState:
    return BatchState(
        batch_id=batch_id,
        battery_id=battery_id,
        env="Maze",
        agent="oracle",
        model=None,
        status="queued",
        n_done=0,
        n_planned=1,
        waiting_for=text,
        interruption=text,
        warning=text,
    )


def documents(text: str, *, content: bool) -> list[Document]:
    """Return documents with ``text`` in each foreign field."""
    quote = Quotes(content=content)
    listed = NodeList(batches=[state("a", text=text)], envs=[], agents=[], models=[], storage=text, queue=text)
    env = EnvHealth(at=START, env="Maze", status="down", latency_s=None, transport="http", open=None, cause=text)
    model = ModelHealth(at=START, endpoint="gateway", status="down", cause=text)
    health = NodeHealth(
        node="n",
        boot="b",
        pid=1,
        profile="p",
        version="1",
        status="idle",
        uptime_s=1.0,
        data_dir="/",
        egress=None,
        items=[env, model],
        indexing=text,
    )
    step = TimeStep(
        chats=[], action=Action(text=text), observation=[{"role": "user", "content": text}], reward=0, done=True
    )
    results = {
        "list": listing(listed, quote),
        "health": health_view(health, quote),
        "follow": step_item("e", step, quote),
    }
    return [Document(command=name, node="n", ok=True, result=result) for name, result in results.items()]


@given(FOREIGN)
def test_foreign_text_is_a_size_and_a_hash_unless_it_is_requested_and_then_safe(text: str) -> None:
    for document in documents(text, content=False):
        assert MARK not in ascii_json(document)
    shown = quoted_in(msgspec.to_builtins(documents(text, content=True)))
    assert len(shown) == 10
    for each in shown:
        assert MARK in each["text"] and each["foreign"] is True
        assert not {"\x1b", "\u202e"} & set(each["text"])
        assert each["chars"] == len(text)
        assert each["sha256"] == hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def quoted_in(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return [value] if "foreign" in value else [each for item in value.values() for each in quoted_in(item)]
    return [each for item in value for each in quoted_in(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("text", ["nothing", "", "a", "c"])
def test_an_id_names_what_begins_or_ends_with_it_alone(text: str) -> None:
    listed = NodeList(batches=[state("ABC", "BATTERY"), state("AXC", "BATTERY")], envs=[], agents=[], models=[])
    assert find_batches(listed, "ab")[0] == "ABC"
    assert [each.batch_id for each in find_batches(listed, "batt")[1]] == ["ABC", "AXC"]
    assert find_batches(listed, "last")[0] == "BATTERY"
    with pytest.raises(ControlRequestError) as raised:
        find_batches(listed, text)
    assert raised.value.code == ("not_found" if text in ("nothing", "") else "ambiguous")
