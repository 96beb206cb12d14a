"""The job of a coding agent with nothing but the commands of ``SKILL.md`` and ``--json``."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runner.util.clock import new_ulid
from tests.support.model_server import ModelServer
from tests.support.node_process import COMMAND, NodeProcess, clean_environ

pytestmark = pytest.mark.long

PROFILE = """
id: job
agent:
  mode: local
  local_fallback: null
  model: test-echo
  format: react
  endpoints:
    - {{name: lab, url: "{url}/v1", kind: openai}}
    - {{name: spare, url: "{url}/v1", kind: openai, model: test-oracle}}
environments:
  lightweight:
    - name: Maze
    - name: Wordle
"""


def test_a_battery_is_started_its_failures_found_played_by_another_model_compared_and_exported(tmp_path: Path) -> None:
    skill = run("skill").stdout
    for line in ("name: agentgym:run", "disable-model-invocation: true"):
        assert re.search(f"^{line}$", skill, re.MULTILINE)
    profile, data_dir = tmp_path / "profile.yaml", tmp_path / "data"
    with ModelServer() as server:
        profile.write_text(PROFILE.format(url=server.url))
        with NodeProcess(data_dir, "--config", str(profile)):
            first, second, where = new_ulid(), new_ulid(), ("--json", "--data-dir", str(data_dir))
            start = ("submit", "--battery", "lightweight", "--agent", "react", "--model", "test-echo", "--repeat", "2")
            ended = run("ctl", *start, "--batch-id", first, "--wait", *where, skill=skill)
            assert [each["status"] for each in kinds(ended.stdout, "batch")] == ["completed"] * 2
            found = run("ctl", "results", first, *where, skill=skill)
            clusters = json.loads(found.stdout)["result"]["clusters"]
            assert sum(cluster["n"] for cluster in clusters) == 4
            query = (f"battery:{first} env:maze -outcome:success", "--limit", "200")
            listed = json.loads(run("ctl", "episodes", *query, *where, skill=skill).stdout)["result"]["episodes"]
            tasks = ",".join(sorted({str(each["task_index"]) for each in listed}))
            assert tasks == "0,1"
            shown = run("ctl", "show", listed[0]["episode_id"], "--steps", "5", *where, skill=skill)
            assert json.loads(shown.stdout)["result"]["episode"]["episode"]["outcome"] == listed[0]["outcome"]
            again = ("submit", "--run", "Maze", "--agent", "react", "--model", "test-oracle", "--tasks", tasks)
            better = run("ctl", *again, "--batch-id", second, "--wait", *where, skill=skill)
            assert [each["success_rate"] for each in kinds(better.stdout, "batch")] == [1.0]
        compared = run("--results", "--batch", second, "--against", first, *where, skill=skill)
        assert json.loads(compared.stdout)["comparison"]["lost"] == []
        output = tmp_path / "successes"
        export = ("--format", "sharegpt", "--output", str(output), f"batch:{second} outcome:success")
        exported = json.loads(run("export", *export, *where, skill=skill).stdout)
    assert output.exists() and "2" in json.dumps(exported)


def run(*arguments: str, skill: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command that ``skill`` names, which must succeed."""
    words = " ".join(arguments[: 2 if arguments[0] == "ctl" else 1])
    assert not skill or f"agentgym-runner {words}" in skill
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=clean_environ(), timeout=120)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done


def kinds(text: str, kind: str) -> list[Any]:
    results = [json.loads(line)["result"] for line in text.splitlines()]
    return [each for each in results if each.get("kind") == kind]
