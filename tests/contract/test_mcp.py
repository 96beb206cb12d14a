"""``agentgym-runner mcp`` answers a client with tools; what may change anything is there only on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from runner.cli import main
from runner.util.clock import new_ulid
from tests.support.mcp_process import McpProcess
from tests.support.node_process import NodeProcess

pytestmark = pytest.mark.long

READING = ["list", "show", "results", "episodes", "compare", "follow"]
ORDERS = ["submit", "again", "pause", "resume", "cancel"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("mcp") / "data") as process:
        yield process


def test_an_agent_that_may_only_read_gets_no_tool_that_changes_anything_and_no_foreign_text(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    batch_id = new_ulid()
    submit = ["ctl", "submit", "--run", "Maze", "--agent", "oracle", "--repeat", "2", "--batch-id", batch_id, "--wait"]
    assert main([*submit, "--data-dir", str(node.data_dir)]) == 0
    capsys.readouterr()
    with McpProcess("--data-dir", str(node.data_dir)) as client:
        started = client.request("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={})["result"]
        assert (started["protocolVersion"], started["serverInfo"]["name"]) == ("2025-06-18", "agentgym-runner")
        tools = client.request("tools/list")["result"]["tools"]
        assert [tool["name"] for tool in tools] == READING
        for tool in tools:
            jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
            assert tool["inputSchema"]["additionalProperties"] is False
            assert "content" not in tool["inputSchema"]["properties"]
        assert client.request("tools/call", name="submit", arguments={})["error"]["code"] == -32602
        assert client.request("resources/list")["error"]["code"] == -32601
        assert client.call("list")["result"]["batches"][0]["batch_id"] == batch_id
        assert client.call("results", id="last")["result"]["rows"][0]["n_success"] == 2
        first, second = (each["episode_id"] for each in client.call("episodes", query="env:maze")["result"]["episodes"])
        steps = client.call("show", id=first)["result"]["episode"]["steps"]
        assert steps and all(step["action"]["text"] is None for step in steps)
        assert client.call("compare", left=first, right=second)["result"]["divergence"] is not None
        for wrong in ({}, {"id": 3}, {"id": "last", "content": True}):
            assert client.call("show", **wrong)["error"]["code"] == "invalid"
        assert client.call("show", id="nothing")["error"]["code"] == "not_found"
        assert client.end() == 0


def test_orders_and_foreign_text_are_there_if_the_person_allows_them(node: NodeProcess) -> None:
    with McpProcess("--data-dir", str(node.data_dir), "--allow-orders", "--content") as client:
        assert [tool["name"] for tool in client.request("tools/list")["result"]["tools"]] == READING + ORDERS
        batch_id = new_ulid()
        started = client.call("submit", run="maze", agent="oracle", batch_id=batch_id)
        assert started["result"]["batches"][0]["batch_id"] == batch_id
        items, cursor, ended = list[Any](), 0, False
        while not ended:
            followed = client.call("follow", id=batch_id, cursor=cursor)["result"]
            items, cursor, ended = items + followed["items"], followed["cursor"], followed["ended"]
        assert [item["kind"] for item in items][-2:] == ["episode", "batch"] and cursor == len(items)
        assert items[0]["action"]["text"].startswith("move ")
        again = client.call("submit", run="maze", agent="oracle", batch_id=batch_id)["result"]
        assert (again["changed"], again["batches"][0]["status"]) == (False, "completed")
        assert client.call("cancel", id=batch_id)["result"]["changed"] is False
        assert client.end() == 0


def test_a_cancelled_call_is_not_answered_and_what_is_no_message_is_left_out(node: NodeProcess) -> None:
    run_id = new_ulid()
    with McpProcess("--data-dir", str(node.data_dir), "--allow-orders") as client:
        client.call("submit", run="BabyAI", agent="random", repeat=5000, batch_id=run_id)
        client.call("pause", id=run_id)
        follow = {"name": "follow", "arguments": {"id": run_id, "cursor": 100_000, "wait_s": 30}}
        client.send("tools/call", follow, id="waits")
        client.send("notifications/cancelled", {"requestId": "waits"})
        for line in ("", "[]", "{", "[" * 100_000, '{"id": 1}', '{"id": {}, "method": "ping"}', "x" * (2 << 20)):
            client.write(line)
        client.send("notifications/cancelled", {"requestId": [{}]})
        client.send("notifications/cancelled", None)
        assert client.request("ping")["result"] == {}
        for parameters in list[object]((None, [], {"name": []}, {"name": None})):
            client.send("tools/call", parameters, id="odd")
            assert client.read()["error"]["code"] == -32602
        for arguments in list[object]((5, [1], "x")):
            client.send("tools/call", {"name": "show", "arguments": arguments}, id="odd")
            assert client.read()["result"]["isError"] is True
        assert client.call("cancel", id=run_id)["ok"] is True
        rest, _ = client.process.communicate(timeout=20)  # less than the cancelled call would wait
        assert (rest, client.process.returncode) == ("", 0)
