"""The command end to end: real processes, files and signals."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run_agentgym, start_agentgym

pytestmark = pytest.mark.long


@pytest.fixture
def profile_with_missing_env(tmp_path: Path) -> str:
    """Path of a profile that names an environment which is not installed."""
    environments = {"lightweight": [{"name": "Maze"}], "moderate": [{"name": "Nowhere"}]}
    (tmp_path / "odd.yaml").write_text(json.dumps({"id": "odd", "environments": environments}))
    return str(tmp_path / "odd.yaml")


def test_a_run_is_stored_and_summarized(tmp_path: Path) -> None:
    completed = run_agentgym(tmp_path, "--run", "mAzE", "--agent", "oracle", "--repeat", "3", "--json")
    assert completed.returncode == 0, completed.stderr
    (batch,) = json.loads(completed.stdout)["batches"]
    assert (batch["env"], batch["agent"], batch["baseline"], batch["outcomes"]) == (
        "Maze",
        "oracle",
        True,
        {"success": 3},
    )
    files = list((tmp_path / "data" / "runs" / batch["batch_id"]).iterdir())
    assert sorted(file.stem for file in files) == sorted(episode["episode_id"] for episode in batch["episodes"])
    assert "Maze · oracle: 3/3 episodes, success 100%" in completed.stderr
    assert oct((tmp_path / "data").stat().st_mode & 0o777) == "0o700"
    output = run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle").stdout
    assert "oracle (baseline, no model)" in output
    assert "│ oracle │ baseline │" in run_agentgym(tmp_path, "--results").stdout


def test_attempts_seed_and_the_random_agent_are_reproducible(tmp_path: Path) -> None:
    options = ("--run", "Maze", "--agent", "random", "--attempts", "2", "--seed", "7", "--task-index", "3", "--json")
    results = [json.loads(run_agentgym(tmp_path, *options).stdout)["batches"][0] for _ in range(2)]
    action_lists = [[actions_of(tmp_path, batch, episode) for episode in batch["episodes"]] for batch in results]
    assert action_lists[0] == action_lists[1]
    assert action_lists[0][0] != action_lists[0][1]
    assert [episode["task_index"] for episode in results[0]["episodes"]] == [3, 3]


def actions_of(cwd: Path, batch: dict[str, Any], episode: dict[str, Any]) -> list[str]:
    path = cwd / "data" / "runs" / batch["batch_id"] / f"{episode['episode_id']}.json"
    return [step["action"]["text"] for step in json.loads(path.read_bytes())["timesteps"]]


def test_a_script_runs_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("move up\n\nmove down\n${oc.env:HOME}\n")
    options = ("--run", "Maze", "--agent", "scripted", "--script", "script", "--max-rounds", "3", "--json")
    completed = run_agentgym(tmp_path, *options)
    (batch,) = json.loads(completed.stdout)["batches"]
    assert completed.returncode == 0
    assert actions_of(tmp_path, batch, batch["episodes"][0]) == ["move up", "move down", "${oc.env:HOME}"]


def test_an_episode_that_ends_in_an_error_exits_1_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("move up\n")
    completed = run_agentgym(tmp_path, "--run", "Maze", "--agent", "scripted", "--script", "script")
    assert completed.returncode == 1
    assert "agent_fault: The script has only 1 actions, but the episode is not over" in completed.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--run", "babyia"), "There is no environment named 'babyia'. Did you mean BabyAI?"),
        (("--run", "sciworld"), "SciWorld is skipped in profile field-runner-4090: needs a Java"),
        (("--run", "sciworld"), "- {name: SciWorld, transport: http, port: 8000}"),
        (("--run", "searchqa"), "- {name: SearchQA, transport: http, port: 8000}"),
        (
            ("--run", "Nothing"),
            "Played only on a server (transport: http and port or base_url in the profile): Academia",
        ),
        (("serve", "SciWorld"), "Environments that can be served: BabyAI, TextCraft"),
        (("preflight", "--env", "SciWrld"), "Did you mean SciWorld?"),
        (("--run", "Maze", "--agent", "orakel"), "no agent named 'orakel'. Did you mean oracle?"),
        (("--run", "Maze", "--config", "nowhere"), "nowhere"),
        (("--run", "Maze", "--node", "no spaces"), "--node: expected a name"),
        (("--run", "Maze", "--script", "x"), "The script x cannot be read"),
        (("--run", "Maze", "--repeat", "0"), "0 is below 1"),
        (("--run", "Maze", "--max-duration", "nan"), "not a positive number"),
        (("--run", "Maze", "--results"), "not allowed with argument"),
        (("--run", "Maze", "--env", "Maze"), "--env is only valid with --results"),
        (("--dry-run", "--results"), "--dry-run requires --run or --battery"),
        (
            ("--results", "--repeat", "1", "--concurrency", "2"),
            "--concurrency, --repeat cannot be combined with --results",
        ),
        (("--results", "--verbose"), "--verbose is only valid with --list-envs"),
        (("--run", "Maze", "--max-rounds", "16"), "max_rounds is 16, above the limit 15 of the profile"),
        (("--battery", "all", "--max-duration", "300.5"), "or give --allow-longer"),
        (("--battery", "all", "--agent", "orakel"), "no agent named 'orakel'. Did you mean oracle?"),
        (("watch", "--run", "Maze"), "unrecognized arguments: --run Maze"),
        ((), "one of the arguments --run --battery --list-envs --results is required"),
    ],
)
def test_invalid_usage_exits_2_with_a_hint(tmp_path: Path, options: tuple[str, ...], expected: str) -> None:
    completed = run_agentgym(tmp_path, *options)
    assert completed.returncode == 2
    assert expected in completed.stderr
    assert "Traceback" not in completed.stderr
    assert completed.stdout == ""
    assert not (tmp_path / "data").exists()


def test_limits_of_a_run_may_exceed_the_profile_only_if_that_is_allowed(tmp_path: Path) -> None:
    limits = ("--max-rounds", "40", "--max-duration", "301", "--allow-longer")
    (tmp_path / "script").write_text("move left\n" * 60)
    completed = run_agentgym(tmp_path, "--run", "Maze", "--agent", "scripted", "--script", "script", *limits, "--json")
    assert completed.returncode == 0, completed.stderr
    (batch,) = json.loads(completed.stdout)["batches"]
    assert (batch["mean_rounds"], batch["limits"]) == (40, "40 rounds 301 s")
    assert run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle").returncode == 0
    results = json.loads(run_agentgym(tmp_path, "--results", "--json").stdout)["results"]
    assert [(row["agent"], row["limits"]) for row in results] == [("oracle", ""), ("scripted", "40 rounds 301 s")]
    assert "Maze · 40 rounds 301 s" in run_agentgym(tmp_path, "--results").stdout
    for query, n in (('limits:"40 rounds 301 s"', 1), ("limits:none", 1)):
        assert len(run_agentgym(tmp_path, "episodes", query, "--json").stdout.splitlines()) == n


def test_a_dry_run_resets_a_task_and_stores_nothing(tmp_path: Path) -> None:
    completed = run_agentgym(tmp_path, "--battery", "lightweight", "--agent", "oracle", "--dry-run", "--json")
    checked = json.loads(completed.stdout)
    assert completed.returncode == 0
    assert checked["ok"]
    steps = [f"{env} with oracle" for env in ("BabyAI", "TextCraft", "Maze", "Wordle")]
    assert [check["what"] for check in checked["checks"][1:]] == ["workers", *steps]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wait", ["await asyncio.sleep(100)", "time.sleep(100)"])
def test_a_dry_run_fails_where_a_reset_does_not_end(tmp_path: Path, wait: str) -> None:
    (tmp_path / "hanging.py").write_text(
        "import asyncio, time\n"
        "class Hanging:\n"
        f"    {'async ' if 'await' in wait else ''}def reset(self, **kwargs):\n        {wait}\n"
        "    def step(self, action): ...\n"
        "    def get_tool_schemas(self): return []\n"
        "    def get_episode_id(self): return ''\n"
    )
    options = ("--run", "hanging:Hanging", "--agent", "random", "--dry-run", "--max-duration", "1")
    completed = run_agentgym(tmp_path, *options)
    assert completed.returncode == 1
    assert "the reset of task 0 did not end within 1 s" in completed.stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--run", "Nowhere"), "no environment of that name is installed"),
        (("--run", "Maze", "--data-dir", "/proc/nothing"), "cannot be written"),
        (("--battery", "moderate"), "no environment of that name is installed"),
    ],
)
def test_dry_run_exits_1_with_the_reason(
    tmp_path: Path, profile_with_missing_env: str, options: tuple[str, ...], expected: str
) -> None:
    completed = run_agentgym(tmp_path, "--config", profile_with_missing_env, *options, "--agent", "oracle", "--dry-run")
    assert completed.returncode == 1
    assert expected in completed.stdout + completed.stderr


def test_list_envs_shows_health_or_the_reason(tmp_path: Path) -> None:
    rows = {
        row["name"]: row for row in json.loads(run_agentgym(tmp_path, "--list-envs", "--json").stdout)["environments"]
    }
    assert (rows["Maze"]["port"], rows["Maze"]["tier"], rows["Maze"]["playable"]) == (36003, "lightweight", True)
    assert rows["BabyAI"]["deps"] == ["minigrid"]
    assert rows["Maze"]["health"] == "installed (embedded)"
    assert rows["WebArena"]["tier"] == "skip"
    assert all(row["playable"] for name, row in rows.items() if row["tier"] != "skip")
    plain = run_agentgym(tmp_path, "--list-envs", "--data-dir", "x", "--node", "n", "--verbose").stdout
    assert all(name in plain for name in rows)
    needs = plain[plain.index("external dependencies") :]
    for name in (name for name, row in rows.items() if row["tier"] in ("lightweight", "moderate")):
        line = next(line for line in needs.splitlines() if f" {name} " in line)
        assert re.search(rf"{rows[name]['tier']} .* [0-9-]+ [MG]iB .* {rows[name]['port']} ", line), line


def test_list_envs_names_environments_that_are_played_only_on_a_server(tmp_path: Path) -> None:
    moderate = [{"name": "SciWorld", "port": 1}, {"name": "WebArena"}, {"name": "Wether"}]
    (tmp_path / "p.yaml").write_text(json.dumps({"id": "p", "environments": {"moderate": moderate}}))
    options = ("--list-envs", "--config", "p.yaml")
    listed = json.loads(run_agentgym(tmp_path, *options, "--json").stdout)
    assert listed["server_only"] == ["Academia", "Movie", "SearchQA", "Sheet", "Todo", "Weather", "WebArena"]
    health = {row["name"]: row["health"] for row in listed["environments"]}
    assert health["WebArena"] == "played only on a server, but its entry has neither port nor base_url"
    assert health["Wether"] == "not installed. Did you mean Weather?"
    plain = run_agentgym(tmp_path, *options).stdout
    assert "Played only on a server: Academia, Movie, SearchQA, Sheet, Todo, Weather, WebArena. Add to" in plain


def test_results_can_be_filtered_and_name_damaged_files(tmp_path: Path) -> None:
    run_agentgym(tmp_path, "--battery", "lightweight", "--agent", "oracle")
    (batch,) = json.loads(run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle", "--json").stdout)["batches"]
    damaged = tmp_path / "data" / "runs" / batch["batch_id"] / f"{batch['episodes'][0]['episode_id']}.json"
    damaged.write_bytes(b"{")
    completed = run_agentgym(tmp_path, "--results", "--env", "maze", "--json")
    output = json.loads(completed.stdout)
    assert [(row["env"], row["n"]) for row in output["results"]] == [("Maze", 1)]
    assert [file["path"] for file in output["damaged"]] == [str(damaged)]
    assert str(damaged) in completed.stderr


def test_results_without_episodes_are_empty_and_suggest_a_command(tmp_path: Path) -> None:
    empty = run_agentgym(tmp_path, "--results")
    assert (empty.returncode, "No episodes in " in empty.stderr) == (0, True)
    assert "agentgym-runner --battery lightweight" in empty.stderr
    run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle")
    unplayed, unknown = (run_agentgym(tmp_path, "--results", "--env", name) for name in ("wordle", "Mase"))
    assert (unplayed.returncode, unplayed.stdout) == (0, "")
    assert "No episodes of Wordle in " in unplayed.stderr
    assert unknown.returncode == 2
    assert "There is no environment named 'Mase'. Did you mean Maze?" in unknown.stderr
    served = run_agentgym(tmp_path, "--results", "--env", "sciworld")
    assert (served.returncode, served.stdout) == (0, "")
    assert re.search(
        "No episodes of SciWorld in .* played only on a server.* transport: http, port: 8000", served.stderr
    )


def test_a_battery_skips_and_names_missing_environments(tmp_path: Path, profile_with_missing_env: str) -> None:
    none = run_agentgym(tmp_path, "--config", profile_with_missing_env, "--battery", "moderate")
    assert (none.returncode, none.stdout) == (2, "")
    assert "Nowhere is in profile odd, but no environment of that name" in none.stderr
    assert not (tmp_path / "data").exists()
    battery = ("--battery", "all", "--agent", "oracle", "--max-rounds", "1", "--json")
    completed = run_agentgym(tmp_path, "--config", profile_with_missing_env, *battery)
    assert completed.returncode == 0
    assert [batch["env"] for batch in json.loads(completed.stdout)["batches"]] == ["Maze"]
    assert "Skipped: Nowhere is in profile odd" in completed.stderr
    listed = run_agentgym(tmp_path, "--list-envs", "--config", profile_with_missing_env, "--json").stdout
    rows = {row["name"]: (row["playable"], row["health"]) for row in json.loads(listed)["environments"]}
    assert (rows["Nowhere"], rows["Maze"]) == ((False, "not installed"), (True, "installed (embedded)"))


def test_nothing_hostile_and_no_secret_reaches_the_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07[/][red]\u202e\x9b2J"
    (tmp_path / "profile.yaml").write_text(
        json.dumps({"id": hostile, "environments": {"skip": [{"name": hostile, "reason": hostile}]}})
    )
    for options in (("--list-envs",), ("--run", hostile), ("--results",), ("--run", "Maze", "--env", hostile)):
        completed = run_agentgym(tmp_path, "--config", "profile.yaml", *options)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", completed.stdout + completed.stderr), options
    masked = run_agentgym(tmp_path, "--run", "sesame-street-1", environ={"MY_API_KEY": "sesame-street-1"})
    assert "sesame-street-1" not in masked.stdout + masked.stderr and "***" in masked.stderr


def test_an_interrupted_run_is_stored_and_summarized(tmp_path: Path) -> None:
    options = ("--run", "BabyAI", "--agent", "oracle", "--repeat", "2000", "--json")
    with start_agentgym(tmp_path, *options) as (process, _, errors):
        assert sum(" task " in errors.readline() for _ in range(1 + 3)) == 3  # the first line is the placement
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopping after the current steps; press Ctrl-C again to stop immediately." in stderr
    (batch,) = json.loads(stdout)["batches"]
    assert batch["status"] == "cancelled"
    assert 3 <= batch["n_episodes"] < 2000
    files = list((tmp_path / "data" / "runs" / batch["batch_id"]).iterdir())
    assert len(files) == batch["n_episodes"]
    assert all(file.suffix == ".json" for file in files)


def test_an_interrupted_battery_says_what_was_cancelled_and_not_begun(tmp_path: Path) -> None:
    options = ("--battery", "lightweight", "--agent", "oracle", "--repeat", "2000")
    with start_agentgym(tmp_path, *options) as (process, _, errors):
        assert next(line for line in errors if "BabyAI · oracle: task 2" in line)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout.lstrip().startswith("Results of oracle (baseline, no model), cancelled\n")
    assert re.search(r"^BabyAI: cancelled after \d+ of 2000 episodes$", stderr, re.MULTILINE)
    assert "Not begun: TextCraft, Maze, Wordle\n" in stderr
    with closing(sqlite3.connect(tmp_path / "data" / "outbox.sqlite")) as outbox:
        ((event,),) = outbox.execute("SELECT payload FROM events WHERE id LIKE 'battery:%'")
    assert b'"n_cancelled":4' in event
