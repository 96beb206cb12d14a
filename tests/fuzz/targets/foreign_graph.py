"""A message graph of verifiers: its episodes are the paths from the root to each leaf, the newest leaf first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.formats.foreign_values import message_of, own_fields
from runner.formats.reading import LIMITS, Place, decode_item
from runner.formats.verifiers import FORMAT, TraceInfo, decode_trace
from runner.util.json_accessors import as_dict, as_list
from tests.fuzz.foreign_items import check_path, messages_of
from tests.fuzz.oracles import scratch_folder

SHARE = 2
TOKENS = (
    *(b'"version":1,"id":"a","task":{"type":"', b'"agent":{"config":{"model":"', b'"nodes":[', b'"parent":0'),
    *(
        b'"message":{"role":"assistant","content":"',
        b'"sampled":true',
        b'"calls":[{"node":1',
        b'"usage":{"prompt_tokens":',
    ),
    *(
        b'"rewards":{"r":{"score":1.0,"weight":',
        b'"info":{"agentgym":{"steps":[',
        b'"info":{"agentgym":{"forks":[',
        b'"errors":[{"type":"',
        b'"timing":{',
    ),
)
PATH = scratch_folder("foreign_graph") / "traces.jsonl"


def check(data: bytes) -> None:
    line = data.replace(b"\n", b" ")
    PATH.write_bytes(line)
    check_path(PATH, FORMAT)
    try:
        trace = as_dict(decode_item(line, LIMITS))
        drafts = list(decode_trace(trace, Place(Path("traces.jsonl"), 1)))
    except ValueError:
        return
    nodes = [as_dict(node) for node in as_list(trace.get("nodes"))]
    own = own_fields(trace.get("info"), TraceInfo)
    if not nodes or (own is not None and own.forks):  # the branches of our own trace are one episode
        assert len(drafts) == 1
        return
    parents = [node["parent"] if type(node.get("parent")) is int else None for node in nodes]
    leaves = [number for number in range(len(nodes)) if number not in parents][::-1]
    assert len(drafts) == len(leaves)
    for leaf, draft in zip(leaves, drafts, strict=True):
        assert messages_of(draft.transcript) == _path(leaf, parents, nodes)


def _path(leaf: int, parents: list[int | None], nodes: list[dict[str, Any]]) -> list[Any]:
    parent = parents[leaf]
    before = [] if parent is None else _path(parent, parents, nodes)
    return [*before, message_of(nodes[leaf].get("message"))]
