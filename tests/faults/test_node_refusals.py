"""What a node refuses: requests that cannot be met, and to start where it would be one too many."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from ulid import ULID

from runner.bus.connection import BusAddress
from runner.node.name_claim import check_name_is_free
from tests.support.nats_server import NatsServer
from tests.support.node_process import COMMAND, NodeProcess, clean_environ
from tests.support.publishing import nats_client

pytestmark = pytest.mark.timeout(120)


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
        ("submit_action", {"episode_id": "x", "step": 0, "action": "up"}, "not_human"),
        ("dance", {}, "bad_request"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_a_code(
    node: NodeProcess, op: str, args: dict[str, object], code: str
) -> None:
    async with await node.connect() as connection:
        reply = await node.request_reply(connection, op, **args)
    assert (reply["id"], reply["ok"], reply["error"]["code"]) == (f"test-{op}", False, code)
    assert reply["error"]["message"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("asked") / "data") as process:
        yield process


def test_a_second_node_refuses_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        second = subprocess.run(
            [COMMAND, "node", "--data-dir", str(tmp_path / "data")],
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 2
        assert f"belongs to the node with pid {node.pid}" in second.stderr
        assert "Traceback" not in second.stderr


async def test_a_listener_to_everything_does_not_make_a_name_doubtful(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def take(message: Msg) -> None:
        """It only listens."""

    with NatsServer(tmp_path / "shared") as shared:
        async with nats_client(shared) as client:
            await client.subscribe("agentgym.>", cb=take)
            await client.flush()
            with caplog.at_level(logging.INFO, "runner"):
                await check_name_is_free("n1", "boot", BusAddress(shared.url))
    assert "name" not in caplog.text


def test_a_name_that_answers_from_another_boot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profile.yaml").write_text("id: p\nenvironments: {lightweight: [{name: Maze}]}\n")
    profile = ("--config", str(tmp_path / "profile.yaml"))
    with NatsServer(tmp_path / "shared") as shared:
        env = clean_environ(NATS_URL=shared.url)
        with NodeProcess(tmp_path / "one", *profile, env=env, name="same"):
            second = subprocess.run(
                [COMMAND, "node", "--data-dir", str(tmp_path / "two"), "--node", "same", *profile],
                env=env,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
    assert second.returncode == 2
    assert "another node named same (boot 01" in second.stderr
    assert "choose another --node" in second.stderr
