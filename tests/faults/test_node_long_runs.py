"""A node whose batch uses up its budget: it is interrupted, its command is started, and it goes on on request."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ulid import ULID

from tests.support.command import environ_with_environments
from tests.support.node_events import wait_until
from tests.support.node_process import NodeProcess, clean_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


async def test_a_used_up_budget_interrupts_the_batch_of_a_node_and_its_end_is_notified(tmp_path: Path) -> None:
    hook, ended = tmp_path / "hook.py", tmp_path / "ended.jsonl"
    hook.write_text(f"import sys\nopen({str(ended)!r}, 'a').write(sys.stdin.read() + '\\n')\n")
    entries = [{"name": "Hostile"}]
    settings = {"id": "p", "environments": {"lightweight": entries}, "notify": {"command": [sys.executable, str(hook)]}}
    profile = tmp_path / "profile.yaml"
    profile.write_text(json.dumps(settings))
    environ = environ_with_environments(tmp_path, "Hostile", agents={"up": "tests.support.fakes:UpAgent"})

    def notified() -> list[tuple[str, Any]]:
        lines = ended.read_text().splitlines() if ended.exists() else []
        return [(event["status"], event["interruption"]) for event in map(json.loads, lines)]

    with NodeProcess(tmp_path / "data", "--config", str(profile), env=clean_environ() | environ) as node:
        async with await node.connect() as connection:
            batch_id = str(ULID())
            request = {"batch_id": batch_id, "envs": ["Hostile"], "agent": "up", "repeat": 5, "workers": 0}
            await node.request(connection, "start", **request, budget={"errors_in_a_row": 2})
            batch = await node.wait_for_batch(connection, batch_id, "interrupted")
            assert batch["n_done"] == 2
            assert batch["interruption"].startswith("2 episodes in a row ended with an error; the last one: Runtime")
            await wait_until(lambda: len(notified()) == 1)
            await node.request(connection, "start", **request, budget={"errors_in_a_row": 9}, resume=True)
            assert (await node.wait_for_batch(connection, batch_id, "completed"))["n_done"] == 5
            await wait_until(lambda: len(notified()) == 2)
    assert notified() == [("interrupted", batch["interruption"]), ("completed", None)]
