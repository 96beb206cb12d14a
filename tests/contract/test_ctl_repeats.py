"""A command that is given once more, whose reply is lost, or whose options are wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import nats
import pytest
from anyio.from_thread import start_blocking_portal
from nats.aio.msg import Msg

from runner.cli import main
from runner.events.control import ControlReply, NodeList
from runner.util.clock import is_ulid, new_ulid
from tests.support.ctl import HELD_PROFILE, Ctl, held_environ
from tests.support.held_steps import StepGate
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess
from tests.support.waiting_batch import wait_until


@pytest.mark.long
def test_what_is_cancelled_or_stopped_once_more_stays_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (profile := tmp_path / "held.yaml").write_text(HELD_PROFILE)
    with StepGate() as gate:
        environ = held_environ(tmp_path) | gate.environ
        with NodeProcess(tmp_path / "data", "--config", str(profile), env=environ) as node:
            ctl, first, second = Ctl(capsys, "--data-dir", str(node.data_dir)), new_ulid(), new_ulid()
            ctl.result("submit", "--run", "EndlessSteps", "--agent", "up", "--batch-id", first)
            gate.next().release()
            step = gate.next()
            ctl.result("submit", "--run", "EndlessSteps", "--agent", "up", "--batch-id", second)
            ctl.result("cancel", first)
            step.release()
            wait_until(lambda: ctl.result("show", first)["batches"][0]["status"] == "cancelled")
            (episode,) = ctl.result("episodes", f"batch:{first}")["episodes"]
            assert ctl.result("cancel", episode["episode_id"])["changed"] is False
            assert ctl.failure("cancel", new_ulid()) == "not_found"
            step = gate.next()
            assert ctl.result("stop", "--drain")["changed"] is True
            assert ctl.result("stop", "--drain")["changed"] is False
            assert ctl.result("health")["status"] == "stopping"
            assert ctl.result("stop")["changed"] is False
            step.release()
            assert node.process is not None and node.process.wait(60) == 0
            assert ctl.result("stop")["changed"] is False


@asynccontextmanager
async def node_without_replies(url: str) -> AsyncIterator[None]:
    """Run what answers nothing but requests for the list."""

    async def answer(message: Msg) -> None:
        request = msgspec.json.decode(message.data)
        if request["op"] == "list":
            listed = NodeList(batches=[], envs=["Maze"], agents=["oracle"], models=[])
            reply = ControlReply(id=request["id"], ok=True, result=msgspec.Raw(msgspec.json.encode(listed)))
            await message.respond(msgspec.json.encode(reply))

    async with await nats.connect(url) as client:
        await client.subscribe("agentgym.control.mute", cb=answer)
        await client.flush()
        yield


@pytest.mark.long
def test_the_error_about_a_lost_reply_has_the_id_with_which_the_command_is_safe_to_repeat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        NatsServer(tmp_path / "nats") as server,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(node_without_replies(server.url)),
    ):
        ctl = Ctl(capsys, "--nats", server.url, "--node", "mute")
        (document,) = ctl.documents("submit", "--run", "Maze", "--agent", "oracle")
    hint, _, batch_id = document["error"]["hint"].rpartition(" ")
    assert ctl.code == 1 and hint.endswith("repeat the command with --batch-id") and is_ulid(batch_id)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["submit", "--run", "Maze", "--tasks", "1,2", "--repeat", "3"], "--repeat cannot be combined with --tasks"),
        (["submit", "--run", "Maze", "--until-width", "0.1"], "--until-width requires --repeat N"),
        (["episodes", "--limit", "500"], "500 is not from 1 to 200"),
        (["logs", "--lines", "0"], "0 is not from 1 to 500"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["ctl", *arguments])
    assert exited.value.code == 2 and problem in capsys.readouterr().err
