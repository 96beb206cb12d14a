"""``agentgym-runner ctl`` drives a real node; each of its documents matches the schema."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.bus.address import address_of_node
from runner.cli import main
from runner.client.blocking import open_node
from runner.client.follow import BatchItem, EpisodeItem
from runner.client.node_folder import LaunchOptions
from runner.client.target import Target
from runner.events.control import StartArgs
from runner.util.clock import new_ulid
from tests.support.ctl import Ctl
from tests.support.node_process import COMMAND, NodeProcess, clean_environ

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("ctl") / "data") as process:
        yield process


@pytest.fixture
def ctl(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> Ctl:
    return Ctl(capsys, "--data-dir", str(node.data_dir))


def test_a_batch_is_started_followed_shown_and_played_again(ctl: Ctl) -> None:
    batch_id = new_ulid()
    submit = ("submit", "--run", "maze", "--agent", "oracle", "--repeat", "3", "--batch-id", batch_id)
    assert ctl.result(*submit, "--dry-run") == {"changed": False, "dry_run": True, "batches": [], "n_episodes": 3}
    order, *items = [document["result"] for document in ctl.documents(*submit, "--follow")]
    assert (ctl.code, order["batches"][0]["batch_id"]) == (0, batch_id)
    episodes = [item for item in items if item["kind"] == "episode"]
    assert [(each["task_index"], each["outcome"]) for each in episodes] == [(n, "success") for n in range(3)]
    for each in episodes:
        steps = [item for item in items if item.get("episode_id") == each["episode_id"] and item["kind"] == "step"]
        assert [step["index"] for step in steps] == list(range(each["rounds"]))
        assert all(step["action"]["text"] is None and step["action"]["chars"] for step in steps)
    assert [(item["kind"], item.get("n_episodes")) for item in items][-1] == ("batch", 3)
    repeated = ctl.result(*submit)
    assert (repeated["changed"], [each["status"] for each in repeated["batches"]]) == (False, ["completed"])
    assert [each["batch_id"] for each in ctl.result("list")["batches"]] == [batch_id]
    for name in ("last", batch_id[-6:].lower(), batch_id):
        assert ctl.result("show", name)["batches"][0]["n_done"] == 3
    shown = ctl.result("show", episodes[0]["episode_id"], "--steps", "2", "--content")["episode"]
    assert [step["index"] for step in shown["steps"]] == [episodes[0]["rounds"] - 2, episodes[0]["rounds"] - 1]
    assert shown["steps"][0]["action"]["text"].startswith("move ")
    assert [(row["n"], row["n_success"]) for row in ctl.result("results", "last")["rows"]] == [(3, 3)]
    listed = ctl.result("episodes", "env:maze", "outcome:success", "--limit", "2")["episodes"]
    assert [each["task_index"] for each in listed] == [2, 1]
    older = ctl.result("episodes", "-outcome:failure", "--before", listed[-1]["episode_id"])["episodes"]
    assert [each["task_index"] for each in older] == [0]
    assert ctl.failure("episodes", "reward>>1") == "bad_request"
    assert [ctl.result("again", "last", "--dry-run", *more)["n_episodes"] for more in ((), ("--errors",))] == [3, 0]
    assert ctl.failure("again", "last", "--errors") == "nothing_left"
    assert [document["result"].get("kind") for document in ctl.documents("again", "last", "--wait")][-1] == "batch"
    assert ctl.code == 0 and len(ctl.result("list")["batches"]) == 2


def test_failed_episodes_are_grouped(ctl: Ctl) -> None:
    ctl.documents("submit", "--run", "Wordle", "--agent", "random", "--repeat", "3", "--wait")
    assert ctl.code == 0
    found, listed = ctl.result("results", "last"), ctl.result("episodes", "env:wordle", "-outcome:success")["episodes"]
    assert found["rows"][0]["n"] - found["rows"][0]["n_success"] == len(listed) > 0
    assert {name for each in found["clusters"] for name in each["episodes"]} == {each["episode_id"] for each in listed}
    assert all(each["observation"]["text"] is None and each["id"] for each in found["clusters"])


def test_every_part_of_adaptive_repeats_is_followed_and_an_ended_one_from_its_beginning(ctl: Ctl) -> None:
    run_id = new_ulid()
    submit = ("submit", "--run", "Maze", "--agent", "oracle", "--repeat", "300", "--until-width", "0.03")
    for command in ((*submit, "--batch-id", run_id, "--wait"), ("follow", run_id)):
        items = [document["result"] for document in ctl.documents(*command)]
        assert ctl.code == 0
        ended = [item["episode_id"] for item in items if item.get("kind") == "episode"]
        (row,) = ctl.result("results", run_id)["rows"]
        assert len(ended) == len(set(ended)) == row["n"] > 64
        steps = [(item["episode_id"], item["index"]) for item in items if item.get("kind") == "step"]
        assert len(steps) == len(set(steps))
    assert ctl.result("show", ended[0][-8:])["episode"]["episode"]["episode_id"] == ended[0]
    assert ctl.failure("again", run_id, "--batch-id", run_id) == "refused"


def test_what_waits_is_moved_paused_resumed_stepped_and_cancelled_once(ctl: Ctl) -> None:
    ids = [new_ulid() for _ in range(3)]
    for batch_id in ids:
        ctl.result("submit", "--run", "BabyAI", "--agent", "random", "--repeat", "5000", "--batch-id", batch_id)
    assert ctl.result("move", ids[2], "--to", "0", "--dry-run")["changed"] is False
    assert ctl.result("move", ids[2])["changed"] is True
    assert ctl.result("pause", ids[0])["batches"][0]["status"] == "paused"
    assert ctl.result("step", ids[0])["changed"] is True
    assert ctl.result("pause", ids[2])["batches"][0]["paused"] is True
    assert ctl.result("resume", ids[2])["batches"][0]["paused"] is False
    assert ctl.result("cancel", ids[1])["batches"][0]["status"] == "cancelled"
    assert ctl.result("cancel", ids[1])["changed"] is False
    assert ctl.result("cancel", "--all", "--dry-run")["dry_run"] is True
    ctl.result("cancel", "--all")
    items = [document["result"] for document in ctl.documents("follow", ids[2])]
    assert (items[-1]["kind"], items[-1]["status"], ctl.code) == ("batch", "cancelled", 1)


def test_a_run_is_changed_and_extended_while_it_plays_and_after_its_end(ctl: Ctl) -> None:
    batch_id = new_ulid()
    ctl.result("submit", "--run", "BabyAI", "--agent", "random", "--repeat", "60", "--batch-id", batch_id)
    ctl.result("pause", batch_id)
    change = ("set", batch_id, "--concurrency", "3", "--budget-tokens", "9", "--requests-per-minute", "6")
    for arguments, changed in (((*change, "--dry-run"), False), (change, True), (change, False)):
        order = ctl.result(*arguments)
        assert (order["changed"], order["n_episodes"], order["batches"][0]["concurrency"]) == (changed, 0, 3)
    assert ctl.failure("set", batch_id, "--max-rounds", "16", "--dry-run") == "refused"
    assert ctl.result("extend", batch_id, "--repeat", "80")["n_episodes"] == 20
    ctl.result("resume", batch_id)
    ctl.documents("follow", batch_id)
    assert ctl.failure("set", batch_id, "--workers", "0") == "not_running"
    assert ctl.failure("extend", batch_id, "--repeat", "79") == "refused"
    for options, changed, n_episodes in ((["--dry-run"], False, 2), ([], True, 2), ([], False, 0)):
        order = ctl.result("extend", batch_id, "--repeat", "82", *options)
        assert (order["changed"], order["n_episodes"]) == (changed, n_episodes)
    assert [batch["extends"] for batch in order["batches"]] == [None, batch_id]
    ended = [document["result"] for document in ctl.documents("follow", batch_id)]
    assert sorted(each["task_index"] for each in ended if each["kind"] == "episode") == list(range(82))
    assert [row["n"] for row in ctl.result("results", batch_id)["rows"]] == [82]
    assert len(ctl.result("episodes", f"battery:{batch_id}", "--limit", "200")["episodes"]) == 82


def test_what_a_node_does_not_have_and_what_no_request_may_name_is_refused(
    ctl: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.failure("submit", "--run", "Mase") == "invalid"
    assert ctl.failure("submit", "--run", "Maze", "--agent", "orakel") == "invalid"
    assert ctl.failure("show", "nothing") == ctl.failure("show", "") == "not_found"
    assert ctl.failure("env", "start", "Mase", "--dry-run") == "invalid"
    assert ctl.result("env", "stop", "maze", "--dry-run") == {
        "env": "Maze",
        "status": "stopped",
        "cause": None,
        "dry_run": True,
    }
    assert ctl.failure("show", new_ulid()) == "refused"
    health = ctl.result("health")
    assert {each["env"] for each in health["envs"]} >= {"Maze", "Wordle"} and health["node"] == "n1"
    assert "nats-server.log" in ctl.result("logs")["names"] and ctl.result("logs")["lines"]["text"] is None
    assert "Server is ready" in ctl.result("logs", "nats-server.log", "--lines", "500", "--content")["lines"]["text"]
    assert ctl.failure("logs", "../node.json") == "not_found"
    refused = ("--script", "--endpoint", "--key-env", "--tracing")
    for option in refused:
        with pytest.raises(SystemExit) as exited:
            main(["ctl", "submit", "--run", "Maze", option, "off"])
        assert exited.value.code == 2
        assert f"{option} is refused" in capsys.readouterr().err
    for option in ("--data-dir", "--config"):
        assert main(["ctl", "list", "--nats", "nats://127.0.0.1:1", option, "x"]) == 2
        assert f"{option} chooses a node of this machine" in capsys.readouterr().err


def test_the_only_node_of_another_bus_is_found_and_others_are_named(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = address_of_node(node.data_dir)
    assert address is not None and address.user and address.password
    monkeypatch.setenv("NATS_USER", address.user)
    monkeypatch.setenv("NATS_PASSWORD", address.password)
    for option in ([], ["--node", "n1"]):
        assert main(["ctl", "health", "--nats", address.url, *option, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["node"] == "n1"
    assert main(["ctl", "list", "--all", "--nats", address.url, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["result"]["nodes"]
    assert (entry["node"], entry["n_waiting"]) == ("n1", 0)
    assert main(["ctl", "health", "--nats", address.url, "--node", "n2", "--json"]) == 1
    assert "node n2 does not answer" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert main(["ctl", "list", "--data-dir", str(tmp_path / "empty"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unreachable"


def test_a_program_without_an_event_loop_follows_all_of_a_battery_and_ends_it_when_it_wants(node: NodeProcess) -> None:
    with open_node(Target(LaunchOptions(data_dir=str(node.data_dir)))) as client:

        def reads() -> bool:
            return any("Subscription._run" in repr(task.get_coro()) for task in client.portal.call(asyncio.all_tasks))

        started = client.start(StartArgs(batch_id=new_ulid(), envs=["Maze", "Wordle"], agent="random", repeat=2))
        run_id = started[0].battery_id or ""
        items = client.follow(run_id, steps=False)
        assert isinstance(next(items), EpisodeItem) and reads()
        items.close()
        assert not reads()
        ended = {item.batch_id for item in client.follow(run_id, steps=False) if isinstance(item, BatchItem)}
        assert ended == {batch.batch_id for batch in started}


def test_a_follower_gets_each_ended_episode_once_over_a_killed_node_and_its_broker(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        options = ("--data-dir", str(node.data_dir), "--json")
        submit = ("submit", "--run", "BabyAI", "--agent", "random", "--repeat", "400", "--concurrency", "1")
        assert main(["ctl", *submit, *options]) == 0
        command = [COMMAND, "ctl", "follow", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environ()) as following:
            assert following.stdout is not None
            items = [json.loads(following.stdout.readline())["result"]]
            node.kill()
            node.start()
            items += [json.loads(line)["result"] for line in following.stdout]
        assert following.returncode == 130
        assert (items[-1]["kind"], items[-1]["status"]) == ("batch", "interrupted")
        episodes = [item["episode_id"] for item in items if item["kind"] == "episode"]
        stored = {path.stem for path in node.data_dir.glob("runs/*/*.json")}
        assert len(episodes) == len(set(episodes)) and set(episodes) == stored
        steps = [(item["episode_id"], item["index"]) for item in items if item["kind"] == "step"]
        assert len(steps) == len(set(steps))
        rounds = {item["episode_id"]: item["rounds"] for item in items if item["kind"] == "episode"}
        n_gaps = sum(item["kind"] == "gap" for item in items)
        assert n_gaps or all(sum(each == name for name, _ in steps) == n for each, n in rounds.items())
