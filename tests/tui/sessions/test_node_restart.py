"""The node's profile: differences from the console's, and stopping and restarting a real node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from agentgym_tui.sessions import bus_session
from agentgym_tui.sessions.node import profile_difference
from runner.client.node_client import ControlRequestError
from runner.client.node_folder import LaunchOptions, StateLocator, read_node_file
from runner.config import profile_digest
from runner.node.state_lock import is_node_alive
from runner.util.files import replace_file
from tests.support.console.running_session import RunningSession, node_session, running
from tests.support.model_server import ModelServer
from tests.support.node_process import COMMAND, NodeProcess, clean_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def write_profile(path: Path, profile_id: str, *envs: str) -> Path:
    entries = "".join(f"    - name: {env}\n" for env in envs)
    path.write_text(f"id: {profile_id}\nenvironments:\n  lightweight:\n{entries}")
    return path


def boot_of(data_dir: Path) -> str:
    node_file = read_node_file(data_dir)
    assert node_file is not None
    return node_file.boot


def tier_of(console: RunningSession, env: str) -> str:
    known = console.store.envs.get(env)
    return "" if known is None else known.tier


def status_of(console: RunningSession, batch_id: str) -> str:
    batch = console.store.batches.get(batch_id)
    return "" if batch is None else batch.status


def status_of_endpoint(console: RunningSession, name: str) -> str:
    endpoint = console.store.endpoints.get(name)
    return "" if endpoint is None else endpoint.status


async def test_another_profile_than_the_nodes_is_reported_and_a_restart_loads_it(
    data_dir: Path, tmp_path: Path
) -> None:
    running_profile = write_profile(tmp_path / "a.yaml", "first", "Maze")
    wanted_profile = write_profile(tmp_path / "b.yaml", "second", "Wordle")
    with NodeProcess(data_dir, "--config", str(running_profile)):
        async with running(node_session(data_dir, config=str(wanted_profile))) as console:
            await console.wait_until(lambda: console.store.profile_difference is not None)
            difference = console.store.profile_difference
            assert difference is not None
            assert not difference.is_changed
            assert difference.running == ("first", str(running_profile))
            assert difference.wanted == ("second", str(wanted_profile))
            await console.session.restart_node()
            await console.wait_until(lambda: console.store.nodes["n1"].profile == "second")
            await console.wait_until(lambda: console.store.profile_difference is None)
            assert console.store.profile_defaults


async def test_a_console_without_a_profile_of_its_own_follows_the_node_to_another_one(
    data_dir: Path, tmp_path: Path
) -> None:
    profiles = [write_profile(tmp_path / f"{env}.yaml", env.lower(), env) for env in ("Maze", "Wordle")]
    with ExitStack() as first:
        first.enter_context(NodeProcess(data_dir, "--config", str(profiles[0])))
        async with running(node_session(data_dir)) as console:
            await console.wait_until_connected()
            await console.wait_until(lambda: tier_of(console, "Maze") == "lightweight")
            await console.control.fetch_health()  # meanwhile the console finds that it need not start a node
            await asyncio.to_thread(first.close)
            with NodeProcess(data_dir, "--config", str(profiles[1])):
                await console.wait_until(lambda: tier_of(console, "Wordle") == "lightweight")
                assert console.store.nodes["n1"].profile == "wordle"
                assert console.store.profile_difference is None
                assert console.store.profile_defaults


async def test_a_node_that_answers_before_it_has_written_its_file_is_followed_once_it_has(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_session, "POLL_INTERVAL_S", 3_600)
    before, now = (write_profile(tmp_path / f"{env}.yaml", env.lower(), env) for env in ("Maze", "Wordle"))
    with NodeProcess(data_dir, "--config", str(now)):
        node_file = read_node_file(data_dir)
        assert node_file is not None
        node_file.boot, node_file.profile_path, node_file.profile_digest = "", str(before), profile_digest(before) or ""
        replace_file(data_dir / "node.json", msgspec.json.encode(node_file))  # the node soon writes its own again
        async with running(node_session(data_dir)) as console:
            await console.wait_until_connected()
            await console.wait_until(lambda: tier_of(console, "Wordle") == "lightweight")
            assert console.store.profile_difference is None


async def test_a_restart_with_a_changed_profile_resumes_what_ran_unless_it_is_invalid(
    data_dir: Path, tmp_path: Path
) -> None:
    profile = write_profile(tmp_path / "p.yaml", "mine", "Maze", "Wordle")
    with NodeProcess(data_dir, "--config", str(profile)):
        async with running(node_session(data_dir)) as console:  # without --config it uses the profile of the node
            await console.wait_until_connected()
            tiers = ["lightweight", "lightweight"]
            await console.wait_until(lambda: [env.tier for env in console.store.envs.values()] == tiers)
            before = console.store.profile_difference
            assert before is None
            playing = await console.start("Maze", repeat=2_000)
            waiting = await console.start("Wordle", repeat=2)
            await console.wait_until(lambda: len(console.finished(playing)) > 2)
            write_profile(profile, "mine", "Maze", "Wordle", "BabyAI")
            await console.control.command("pause", batch_id=playing)  # a command is followed by a poll
            await console.wait_until(lambda: console.store.profile_difference is not None)
            difference = console.store.profile_difference
            assert difference is not None and difference.is_changed
            await console.control.command("resume", batch_id=playing)
            await console.wait_until(lambda: status_of(console, playing) == "running")
            boot, n_before = boot_of(data_dir), len(console.finished(playing))
            await console.session.restart_node()
            await console.wait_until(
                lambda: console.store.profile_difference is None and "BabyAI" in console.store.envs
            )
            assert boot_of(data_dir) != boot
            await console.wait_until(lambda: status_of(console, playing) == "running")
            await console.wait_until(lambda: len(console.finished(playing)) > n_before)
            await console.wait_until(lambda: status_of(console, waiting) == "queued")
            await console.control.command("cancel", batch_id=playing)
            await console.wait_until(lambda: status_of(console, waiting) == "completed")
            boot = boot_of(data_dir)
            profile.write_text("id: [")
            with pytest.raises(ControlRequestError, match=r"was not restarted: .*p\.yaml"):
                await console.session.restart_node()
            assert boot_of(data_dir) == boot and is_node_alive(data_dir)


async def test_a_changed_key_is_reported_and_a_restart_uses_it(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(models=("m",), token="the-right-key-of-the-lab") as server:
        profile = tmp_path / "p.yaml"
        endpoint = f"{{url: {server.url}, name: lab, kind: openai, api_key_env: LAB_KEY}}"
        profile.write_text(f"id: p\nagent: {{mode: local, model: m, local_fallback: null, endpoints: [{endpoint}]}}\n")
        with NodeProcess(data_dir, "--config", str(profile), env=clean_environ(LAB_KEY="a-wrong-key")):
            node_file = read_node_file(data_dir)
            location = StateLocator(LaunchOptions(data_dir=str(data_dir)), environ={}).find()
            assert node_file is not None and list(node_file.variables) == ["LAB_KEY"]
            assert profile_difference(location, node_file, {}) is None  # another shell, whose node would lack the key
            assert profile_difference(location, node_file, {"LAB_KEY": "a-wrong-key"}) is None
            monkeypatch.setenv("LAB_KEY", "the-right-key-of-the-lab")
            async with running(node_session(data_dir)) as console:
                await console.wait_until(lambda: console.store.profile_difference is not None)
                await console.wait_until(lambda: status_of_endpoint(console, "lab") == "wrong")
                difference = console.store.profile_difference
                assert difference is not None and not difference.is_changed and not difference.is_other
                assert difference.variables == (("LAB_KEY", "changed"),)
                await console.session.restart_node()
                await console.wait_until(lambda: status_of_endpoint(console, "lab") == "up")
                await console.wait_until(lambda: console.store.profile_difference is None)


async def test_a_stopped_node_starts_again_resumes_its_batches_and_drains(data_dir: Path) -> None:
    async with running(node_session(data_dir)) as console:
        await console.wait_until_connected()
        playing = await console.start("Maze", repeat=2_000)
        waiting = await console.start("Wordle", repeat=2)
        await console.wait_until(lambda: len(console.finished(playing)) > 1)
        await console.session.stop_node()
        await console.wait_until(lambda: "has stopped" in console.store.link.cause)
        assert not is_node_alive(data_dir)
        await console.session.start_node()
        await console.wait_until_connected()
        await console.wait_until(lambda: status_of(console, waiting) == status_of(console, playing) == "interrupted")
        n_before = len(console.finished(playing))
        for batch_id in (waiting, playing):
            await console.control.command("resume", batch_id=batch_id)
        await console.wait_until(lambda: status_of(console, waiting) == "completed")
        await console.wait_until(lambda: len(console.finished(playing)) > n_before)
        with contextlib.suppress(ControlRequestError):  # on a busy machine the node has played the rest by now
            await console.control.command("cancel", batch_id=playing)
        drained = [await console.start(env, repeat=3) for env in ("Maze", "Wordle")]
        await console.session.stop_node(drain=True)
        await console.wait_until(lambda: "has stopped" in console.store.link.cause)
        assert [status_of(console, each) for each in drained] == ["completed", "completed"]


async def test_the_node_is_shown_running_while_it_plays_and_its_log_can_be_opened(data_dir: Path) -> None:
    async with running(node_session(data_dir)) as console, running(node_session(data_dir)) as other:
        for each in (console, other):
            await each.wait_until_connected()
            await each.wait_until(lambda: each.store.nodes["n1"].status == "idle")  # noqa: B023
        batch_id = await console.start("Maze", repeat=2_000)
        for each in (console, other):
            await each.wait_until(lambda: bool(each.store.running_episodes()))  # noqa: B023
            assert each.store.node_status(each.store.nodes["n1"]) == "running"
        await console.control.command("cancel", batch_id=batch_id)
        for each in (console, other):
            await each.wait_until(lambda: each.store.nodes["n1"].status == "idle")  # noqa: B023
        assert console.session.has_node_logs
        logs = console.session.open_logs()
        assert [log.path.name for log in logs][:2] == ["runner.log", "node-start.log"]
        logs[0].advance()
        assert batch_id.encode() in logs[0].read(0, 100_000)
        assert console.session.open_logs() == logs


def test_a_node_without_a_known_profile_has_no_difference(tmp_path: Path) -> None:
    location = StateLocator(LaunchOptions(data_dir=str(tmp_path / "state")), environ={}).find()
    with NodeProcess(tmp_path / "state"):
        node_file = read_node_file(tmp_path / "state")
    assert node_file is not None and profile_difference(location, node_file, {}) is None
    changed = {"TENSORZERO_API_KEY": "set now"}
    difference = profile_difference(location, node_file, changed)
    assert difference is not None and difference.variables == (("TENSORZERO_API_KEY", "set"),)
    node_file.variables = {}  # as earlier versions wrote it
    assert profile_difference(location, node_file, changed) is None
    node_file.profile_digest = ""
    assert profile_difference(location, node_file, changed) is None


async def test_the_server_of_an_environment_is_started_and_stopped(data_dir: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    profile = tmp_path / "p.yaml"
    command = f"{COMMAND} serve Maze --port {port}"
    profile.write_text(
        "id: p\nenvironments:\n  lightweight:\n"
        f"    - {{name: Maze, port: {port}, server_cmd: {command}}}\n    - {{name: Wordle}}\n"
    )
    async with running(node_session(data_dir, config=str(profile))) as console:
        await console.wait_until_connected()
        assert (await console.control.start_server("Maze")).status in ("starting", "running")
        await console.wait_until(lambda: console.store.envs["Maze"].transport == "http")
        assert (await console.control.stop_server("Maze")).env == "Maze"
        await console.wait_until(lambda: console.store.envs["Maze"].transport == "embedded")
        with pytest.raises(ControlRequestError, match="Wordle"):
            await console.control.start_server("Wordle")
        assert any(log.path.name == "server-Maze.log" for log in console.session.open_logs())
