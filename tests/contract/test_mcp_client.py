"""The official client of the Model Context Protocol calls the tools of ``agentgym-runner mcp`` on a real node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from runner.cli import main
from runner.cli.mcp import ORDERS, READING
from runner.util.clock import new_ulid
from tests.foreign_packages import NotInstalled, interpreter
from tests.support.command import REPOSITORY
from tests.support.node_process import COMMAND, NodeProcess, clean_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

CLIENT = str(REPOSITORY / "tests" / "support" / "mcp_client.py")
SCHEMA = jsonschema.Draft202012Validator(json.loads(Path("docs/schemas/agentgym.ctl.v1.json").read_text()))


def answers(python: str, node: NodeProcess, calls: Sequence[Sequence[Any]], *options: str) -> tuple[Any, list[Any]]:
    """Return what the client found out about the server, and its results: flag and document, or None and a code."""
    command = [python, "-P", CLIENT, json.dumps(calls), COMMAND, "mcp", "--data-dir", str(node.data_dir), *options]
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for is_error, document in found["results"]:
        if is_error is not None:
            SCHEMA.validate(document if document["command"] != "follow" else document | {"result": None})
    return found, found["results"]


def test_the_official_client_reads_orders_and_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        python = interpreter("mcp", "mcp==2.3.0")
    except NotInstalled as exc:
        pytest.skip(f"the package mcp cannot be installed: {exc}")
    with NodeProcess(tmp_path / "data") as node:
        batch_id, waiting_id = new_ulid(), new_ulid()
        submit = ["submit", "--run", "Maze", "--agent", "oracle", "--repeat", "2", "--batch-id", batch_id, "--wait"]
        assert main(["ctl", *submit, "--data-dir", str(node.data_dir)]) == 0
        assert main(["ctl", "episodes", "--json", "--data-dir", str(node.data_dir)]) == 0
        printed = capsys.readouterr().out
        ids = [each["episode_id"] for each in json.loads(printed[printed.index("{\n") :])["result"]["episodes"]]
        reading = [
            ["list", {}],
            ["show", {"id": ids[0]}],
            ["results", {"id": "last"}],
            ["episodes", {"query": "env:maze"}],
            ["compare", {"left": ids[0], "right": ids[1]}],
            ["follow", {"id": batch_id}],
        ]
        found, results = answers(python, node, [*reading, ["submit", {}], ["no tool", {}], ["show", {"id": 3}]])
        assert (found["protocol"], found["server"]) == ("2025-11-25", "agentgym-runner")
        assert list(found["schemas"]) == list(READING)
        for schema in found["schemas"].values():
            jsonschema.Draft202012Validator.check_schema(schema)
        assert [is_error for is_error, _ in results] == [False] * len(reading) + [None, None, True]
        assert [results[-3][1], results[-2][1], results[-1][1]["error"]["code"]] == [-32602, -32602, "invalid"]
        texts = list(quoted_in(results))
        assert any(each["chars"] for each in texts) and all(each["text"] is None for each in texts)

        start = {"run": "BabyAI", "agent": "random", "repeat": 5000, "batch_id": waiting_id}
        orders: list[list[Any]] = [
            ["submit", start],
            ["pause", {"id": waiting_id}],
            ["follow", {"id": waiting_id, "cursor": 100_000, "wait_s": 30}, 0.5],
            ["resume", {"id": waiting_id}],
            ["cancel", {"id": waiting_id}],
            ["again", {"id": batch_id}],
            *reading,
        ]
        found, results = answers(python, node, orders, "--allow-orders", "--content")
        assert list(found["schemas"]) == [*READING, *ORDERS]
        assert [is_error for is_error, _ in results] == [False, False, None, *[False] * (len(orders) - 3)]
        assert all(document["result"]["batches"][0]["batch_id"] == waiting_id for _, document in results[:2])
        assert all(bool(each["text"]) == bool(each["chars"]) for each in quoted_in(results))


def quoted_in(value: object) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value] if "foreign" in value else [each for item in value.values() for each in quoted_in(item)]
    return [each for item in value for each in quoted_in(item)] if isinstance(value, list) else []
