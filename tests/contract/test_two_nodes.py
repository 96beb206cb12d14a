"""Two nodes on one external broker, as real processes: each order of ``ctl`` reaches the node that it names, only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import psutil
import pytest

from runner.util.clock import new_ulid
from tests.support.ctl import HELD_PROFILE, Ctl, held_environ
from tests.support.env_server_process import free_port
from tests.support.held_steps import HeldStep, StepGate
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess
from tests.support.waiting_batch import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

NAMES = ("left", "right")


class Pair(NamedTuple):
    """The nodes by name, their broker, the gate of their steps, and the step at which each node waits."""

    server: NatsServer
    nodes: dict[str, NodeProcess]
    gate: StepGate
    steps: dict[str, HeldStep]

    def ctl(self, capsys: pytest.CaptureFixture[str], name: str) -> Ctl:
        return Ctl(capsys, "--nats", self.server.url, "--node", name)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with NatsServer(folder / "nats") as server, StepGate() as gate:
        environ = held_environ(folder, NATS_URL=server.url) | gate.environ
        nodes = {}
        for name in NAMES:
            port, profile = free_port(), folder / f"{name}.yaml"
            wordle = f"{{name: Wordle, port: {port}, server_cmd: agentgym-runner serve Wordle --port {port}}}"
            profile.write_text(HELD_PROFILE.replace("{name: Wordle}", wordle))
            nodes[name] = NodeProcess(folder / name, "--config", str(profile), env=environ, name=name)
        with nodes["left"], nodes["right"]:
            yield Pair(server, nodes, gate, {})


def play(ctl: Ctl, pair: Pair, name: str) -> str:
    """Start a batch without end, and wait for its first step; return its id."""
    batch_id = new_ulid()
    order = ctl.result("submit", "--run", "EndlessSteps", "--agent", "up", "--batch-id", batch_id)
    assert [each["batch_id"] for each in order["batches"]] == [batch_id]
    pair.steps[name] = pair.gate.next()
    assert pair.steps[name].pid == pair.nodes[name].pid
    return batch_id


def servers_of(node: NodeProcess) -> list[int]:
    children = psutil.Process(node.pid).children(recursive=True)
    return [child.pid for child in children if "serve" in child.cmdline()]


def test_each_order_reaches_the_named_node_only(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    ctls = {name: pair.ctl(capsys, name) for name in NAMES}
    playing = {name: play(ctl, pair, name) for name, ctl in ctls.items()}
    for name, other in (NAMES, NAMES[::-1]):

        def order(*arguments: str, name: str = name, other: str = other) -> list[dict[str, Any]]:
            """Give an order to the one node; return its batches. The list of the other stays as it was."""
            before = ctls[other].result("list")
            found = ctls[name].result(*arguments)
            assert found["changed"], arguments
            assert ctls[other].result("list") == before
            return list(found["batches"])

        endless, single, battery, replayed = playing[name], new_ulid(), new_ulid(), new_ulid()
        options = ("--agent", "oracle", "--repeat", "3", "--batch-id")
        (started,) = order("submit", "--run", "Maze", *options, single)
        assert (started["batch_id"], started["status"]) == (single, "queued")
        assert len(order("submit", "--battery", "lightweight", *options, battery)) == 3
        assert len(order("move", battery, "--to", "0")) == 3
        listed = [each["battery_id"] for each in ctls[name].result("list")["batches"]]
        assert listed == [None, battery, battery, battery, None]
        assert {each["concurrency"] for each in order("set", battery, "--concurrency", "2")} == {2}
        assert {each["n_planned"] for each in order("extend", battery, "--repeat", "4")} == {4}
        assert [each["paused"] for each in order("pause", battery)] == [True] * 3
        assert [each["paused"] for each in order("resume", battery)] == [False] * 3
        assert [each["status"] for each in order("pause", endless)] == ["paused"]
        pair.steps[name].release()
        order("step", endless)
        pair.steps[name] = pair.gate.next()
        assert (pair.steps[name].pid, pair.steps[name].index) == (pair.nodes[name].pid, 1)
        assert [each["status"] for each in order("resume", endless)] == ["running"]
        order("pause", "--all")
        order("resume", "--all")
        assert [each["status"] for each in order("cancel", battery)] == ["cancelled"] * 3
        assert {each["battery_id"] for each in order("again", battery, "--batch-id", replayed)} == {replayed}
        order("cancel", replayed)
        order("cancel", single)
    assert pair.gate.is_empty


def test_an_id_of_the_other_node_names_nothing(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = (pair.ctl(capsys, name) for name in NAMES)
    batch_id = new_ulid()
    submit = ("submit", "--run", "Maze", "--agent", "oracle", "--batch-id", batch_id)
    assert right.result(*submit)["changed"] is True
    before = [ctl.result("list") for ctl in (left, right)]
    for verb in ("pause", "resume", "cancel", "step", "move", "again"):
        assert left.failure(verb, batch_id) == "not_found"
    assert left.failure("again", batch_id, "--batch-id", new_ulid()) == "not_found"
    assert [ctl.result("list") for ctl in (left, right)] == before
    assert left.result(*submit)["changed"] is True  # the same id at another node is another batch
    assert right.result(*submit)["changed"] is False


def test_an_environment_server_is_started_and_stopped_at_the_named_node_only(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = (pair.nodes[name] for name in NAMES)
    ctl = pair.ctl(capsys, "left")
    assert ctl.result("env", "start", "Wordle")["env"] == "Wordle"
    wait_until(lambda: servers_of(left))
    server = servers_of(left)[0]
    assert pair.ctl(capsys, "right").failure("env", "stop", "Wordle") == "refused"
    assert server in servers_of(left) and servers_of(right) == []
    ctl.result("env", "stop", "Wordle")
    wait_until(lambda: servers_of(left) == [])
    assert servers_of(right) == []


def test_without_a_name_the_error_names_both_and_only_the_named_node_stops(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    (document,) = Ctl(capsys, "--nats", pair.server.url).documents("cancel", "--all")
    assert document["error"]["code"] == "unreachable"
    assert document["error"]["message"].endswith("has several nodes: left, right")
    assert document["error"]["hint"] == "name one with --node"
    left, right = (pair.ctl(capsys, name) for name in NAMES)
    before = right.result("list")
    assert left.result("stop", "--dry-run")["changed"] is False
    assert left.result("stop")["changed"] is True
    stopped = pair.nodes["left"].process
    assert stopped is not None
    pair.steps["left"].release()
    assert stopped.wait(60) == 0
    assert left.failure("list") == "unreachable"
    assert right.result("list") == before
    assert Ctl(capsys, "--nats", pair.server.url).result("list") == before
