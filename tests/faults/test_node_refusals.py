"""Rejected control requests, and nodes that refuse to start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from ulid import ULID

from runner.bus.connection import BusAddress
from runner.node.node import check_name_is_free
from tests.support.command import run_agentgym
from tests.support.nats_server import NatsAccount
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.publishing import nats_client

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("op", "args", "code"),
    [
        ("start", {"batch_id": "../../etc", "envs": ["Maze"]}, "bad_request"),
        ("start", {"batch_id": str(ULID()), "envs": []}, "bad_request"),
        ("start", {"batch_id": str(ULID()), "envs": ["Maze"], "_target_": "os.system"}, "bad_request"),
        ("start", {"batch_id": str(ULID()), "envs": ["/etc/passwd"]}, "refused"),
        ("start", {"batch_id": str(ULID()), "envs": ["SciWorld"]}, "refused"),
        ("start", {"batch_id": str(ULID()), "envs": ["Maze"], "agent": "os.system"}, "unknown_agent"),
        ("start", {"batch_id": str(ULID()), "envs": ["Maze"], "model": "http://evil"}, "unknown_model"),
        ("start", {"batch_id": str(ULID()), "envs": ["Maze"], "repeat": 10**9}, "refused"),
        ("start", {"batch_id": str(ULID()), "envs": ["Maze"], "max_rounds": -1}, "refused"),
        ("cancel", {}, "bad_request"),
        ("cancel", {"batch_id": "nothing"}, "not_found"),
        ("pause", {"episode_id": "nothing"}, "not_found"),
        ("episode", {"episode_id": "../../node"}, "refused"),
        ("dance", {}, "bad_request"),
    ],
)
async def test_an_invalid_request_is_rejected_with_a_code(
    node: NodeProcess, op: str, args: dict[str, object], code: str
) -> None:
    async with await node.connect() as connection:
        reply = await node.request_reply(connection, op, **args)
    assert (reply["id"], reply["ok"], reply["error"]["code"]) == (f"test-{op}", False, code)
    assert reply["error"]["message"]


def test_a_second_node_of_a_state_directory_exits_with_the_pid_of_the_first(node: NodeProcess) -> None:
    second = run_agentgym(node.data_dir.parent, "node")
    assert second.returncode == 2
    assert f"belongs to the node with pid {node.pid}" in second.stderr
    assert "Traceback" not in second.stderr


async def test_a_subscriber_to_all_subjects_does_not_affect_the_name_check(
    bus: NatsAccount, caplog: pytest.LogCaptureFixture
) -> None:
    async def ignore(message: Msg) -> None:
        pass

    async with nats_client(bus) as client:
        await client.subscribe("agentgym.>", cb=ignore)
        await client.flush()
        with caplog.at_level(logging.INFO, "runner"):
            await check_name_is_free("n1", "boot", BusAddress(bus.url))
    assert "name" not in caplog.text


def test_a_second_node_with_the_same_name_exits(tmp_path: Path, bus: NatsAccount) -> None:
    (tmp_path / "profile.yaml").write_text("id: p\nenvironments: {lightweight: [{name: Maze}]}\n")
    profile = ("--config", str(tmp_path / "profile.yaml"))
    env = clean_environ(NATS_URL=bus.url)
    with NodeProcess(tmp_path / "one", *profile, env=env, name="same"):
        second = run_agentgym(tmp_path, "node", "--node", "same", *profile, environ=env)
    assert second.returncode == 2
    assert "another node named same (boot 01" in second.stderr
    assert "choose another --node" in second.stderr
