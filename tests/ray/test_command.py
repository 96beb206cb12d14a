"""The command over a cluster of this machine, which it starts and ends."""

from __future__ import annotations

import json
from pathlib import Path

from ulid import ULID

from tests.ray.test_killed_driver import marked
from tests.support.command import run_agentgym

PROFILE = """
id: two
environments:
  lightweight: [{name: Maze}, {name: BabyAI}]
"""


def test_the_batches_of_a_battery_share_one_cluster_that_ends_with_the_command(
    tmp_path: Path, session_folder: Path
) -> None:
    mark, folder = str(ULID()), session_folder / "b"
    folder.mkdir()
    (tmp_path / "two.yaml").write_text(PROFILE)
    options = ("--battery", "lightweight", "--agent", "oracle", "--repeat", "3", "--config", "two.yaml", "--json")
    environ = {"RAY_TMPDIR": str(folder), "AGENTGYM_TEST_MARK": mark, "HOME": str(tmp_path)}
    run = run_agentgym(tmp_path, *options, "--workers", "ray", "--concurrency", "4", environ=environ)
    assert run.returncode == 0, run.stderr
    batches = json.loads(run.stdout)["batches"]
    assert [(batch["env"], batch["status"], batch["n_success"]) for batch in batches] == [
        ("Maze", "completed", 3),
        ("BabyAI", "completed", 3),
    ]
    assert {episode["worker"]["kind"] for batch in batches for episode in batch["episodes"]} == {"ray"}
    assert all(batch["workers"]["lost"] == 0 for batch in batches)
    assert len(list((folder / "ray").glob("session_2*"))) == 1
    assert marked(mark) == []
