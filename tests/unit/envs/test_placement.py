"""Placement of batches on real servers, and its record in the episodes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import plugins
from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.config import EnvironmentEntry, Environments, Profile
from runner.envs.availability import Availability, availability_of, server_addresses
from runner.envs.base import data_label_of, missing_data
from runner.envs.http.server import BUSY, ServerAddress, ServerState, probe_servers
from runner.envs.placement import Placement, choose_placement, find_environment, resolve_environment
from runner.envs.wordle import Wordle
from runner.errors import ConfigError, ServerBusy
from runner.types import Mode
from tests.conftest import Install
from tests.support.batches import resolved_batch
from tests.support.rude_env_server import ReceivedRequest, RudeServer, http_response, json_response
from tests.support.serving import serve_environments

AGENTGYM_REPLIES = {"/": json_response("This is environment lmrl-gym.")}


@pytest.fixture(scope="module")
def maze_url() -> Iterator[str]:
    with serve_environments(["Maze"]) as urls:
        yield urls["Maze"]


def serve_replies(server: RudeServer, replies: dict[str, bytes]) -> str:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(replies.get(request.path, http_response("no", 404)))
        writer.write_eof()

    server.reset(answer)
    return server.url


def env_entry(url: str | None, transport: str = "auto", name: str = "Maze", **more: Any) -> EnvironmentEntry:  # noqa: ANN401
    return EnvironmentEntry(name=name, base_url=url, transport=transport, **more)  # type: ignore[arg-type]


def place(listed: EnvironmentEntry | None, env: str, mode: Mode, *, wait_s: float = 0.0) -> Placement:
    return choose_placement(listed, find_environment(env), mode, wait_s=wait_s)


@pytest.fixture(scope="module")
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_without_a_server_the_placement_is_embedded(closed_port: int) -> None:
    plain = Placement(data_label="local catalogue")
    assert place(None, "WebShop", "strict") == plain
    assert place(EnvironmentEntry(name="WebShop"), "WebShop", "strict") == plain
    assert place(EnvironmentEntry(name="WebShop", port=closed_port), "WebShop", "strict") == plain
    assert place(None, "Maze", "compat") == Placement(mode="compat")
    modes: tuple[Mode, ...] = ("strict", "compat")
    assert [place(None, "Wordle", mode).data_label for mode in modes] == ["local words", ""]
    assert [Wordle(mode=mode).data_label for mode in modes] == ["local words", ""]


def test_auto_selects_a_running_server(maze_url: str) -> None:
    placement = place(env_entry(maze_url, timeout_sec=3.0), "Maze", "strict")
    assert placement.address == ServerAddress(maze_url, 3.0, n_tasks=25, lists_actions=True, places=64)
    assert (placement.transport, placement.mode, placement.data_label) == ("http", "strict", "")
    assert placement.note == f"over HTTP at {maze_url} (AgentGym Console, strict rules, as published)"
    assert place(env_entry(maze_url, "embedded"), "Maze", "strict") == Placement()


def test_only_a_batch_on_a_server_waits_for_it(maze_url: str, closed_port: int) -> None:
    assert place(env_entry(maze_url), "Maze", "strict", wait_s=5.0).wait_s == 5.0
    assert place(env_entry(f"http://127.0.0.1:{closed_port}"), "Maze", "strict", wait_s=5.0).wait_s == 0.0


def test_a_busy_server_is_never_replaced_by_other_data() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:  # accepts connections
        url = f"http://127.0.0.1:{busy.getsockname()[1]}"
        listed = env_entry(url)
        with pytest.raises(ServerBusy) as caught:
            place(listed, "Maze", "strict", wait_s=5.0)
        state = probe_servers({"Maze": ServerAddress(url)}, 0.2)["Maze"]
    assert (caught.value.server, caught.value.wait_s) == (f"{url}: {BUSY}", 5.0)
    assert str(caught.value) == (
        f"Maze cannot be played at {url}: busy: it accepts connections, but does not reply in time. "
        "Wait until it is free, or check its log; set transport to embedded to do without it"
    )
    assert availability_of(listed, state) == Availability(status="slow", transport="http", cause=BUSY)


def test_an_agentgym_server_has_compat_rules_and_its_own_label(rude_server: RudeServer) -> None:
    url = serve_replies(rude_server, AGENTGYM_REPLIES)
    modes: tuple[Mode, ...] = ("strict", "compat")
    for mode in modes:
        placement = place(env_entry(url), "Maze", mode)
        assert (placement.transport, placement.mode, placement.data_label) == ("http", "compat", "AgentGym server")


def test_requested_rules_are_enforced(maze_url: str) -> None:
    placement = place(env_entry(maze_url), "Maze", "compat")
    assert (placement.transport, placement.mode) == ("embedded", "compat")
    assert "strict rules" in placement.note
    with pytest.raises(ConfigError, match="strict rules, but --compat was requested"):
        place(env_entry(maze_url, "http"), "Maze", "compat")


@pytest.mark.parametrize(
    "reply", [json_response("This is environment BabyAI."), json_response("hello"), http_response("no", 404)]
)
def test_auto_reports_why_a_server_is_rejected(rude_server: RudeServer, reply: bytes) -> None:
    placement = place(env_entry(serve_replies(rude_server, {"/": reply})), "Maze", "strict")
    assert placement.transport == "embedded"
    assert placement.note.startswith(f"embedded: at {rude_server.url}: ")


def test_http_fails_with_advice_and_takes_an_unidentified_server(rude_server: RudeServer, closed_port: int) -> None:
    with pytest.raises(ConfigError) as caught:
        place(EnvironmentEntry(name="Maze", port=closed_port, transport="http"), "Maze", "strict")
    assert str(caught.value) == (
        f"Maze cannot be played at http://127.0.0.1:{closed_port}: nothing listens there. Start its server, e.g. with: "
        f"agentgym-runner serve Maze --port {closed_port}; or set its transport to auto or embedded"
    )
    wrong_url = serve_replies(rude_server, {"/": json_response("This is environment BabyAI.")})
    with pytest.raises(ConfigError, match=r"returned HTTP 200: .This is environment BabyAI"):
        place(env_entry(wrong_url, "http"), "Maze", "strict")
    with pytest.raises(ConfigError, match="set its port or base_url"):
        place(EnvironmentEntry(name="Maze", transport="http"), "Maze", "strict")
    unidentified = env_entry(serve_replies(rude_server, {"/": json_response("hello")}), "http")
    placement = place(unidentified, "Maze", "strict")
    assert (placement.transport, placement.mode, placement.data_label) == ("http", "compat", "unknown server")


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("http://127.0.0.1:{port}", "agentgym-runner serve Maze --port {port}; or set its transport"),
        ("http://:hunter22-token@localhost:{port}/", "agentgym-runner serve Maze --port {port}; or set its transport"),
        ("http://127.0.0.1:{port}/behind/a/proxy", "Start its server; or set its transport"),
        ("https://127.0.0.1:{port}", "Start its server; or set its transport"),
    ],
)
def test_the_error_suggests_a_start_command_for_local_addresses(closed_port: int, url: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place(env_entry(url.format(port=closed_port), "http"), "Maze", "strict")
    assert advice.format(port=closed_port) in str(caught.value)
    assert "hunter22" not in str(caught.value)


def test_a_wrong_token_fails_with_advice_on_where_to_set_it(closed_port: int) -> None:
    with serve_environments(["Maze"], token="a-token-of-the-tests") as urls, pytest.raises(ConfigError) as caught:
        place(env_entry(urls["Maze"].replace("//", "//:wrong-hunter22@"), "http"), "Maze", "strict")
    assert "HTTP 401" in str(caught.value)
    assert "http://:TOKEN@HOST" in str(caught.value)
    assert "agentgym-runner serve" not in str(caught.value)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "variable", "marker"),
    [("ALFWorld", "ALFWORLD_DATA", "json_2.1.1"), ("SQLGym", "AGENTENV_SQLGYM_BIRD_PATH", "dev/dev.json")],
)
def test_missing_configured_data_is_reported_before_the_batch(
    env: str, variable: str, marker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing_data(env, {}) is None
    assert marker in (missing_data(env, {variable: str(tmp_path)}) or "")
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ConfigError, match=variable):
        place(None, env, "strict")
    (tmp_path / marker).mkdir(parents=True)
    assert missing_data(env.lower(), {variable: str(tmp_path)}) is None
    with pytest.raises(ConfigError):  # the folder is empty
        place(None, env, "strict")
    monkeypatch.delenv(variable)
    assert place(None, env, "strict").transport == "embedded"


def test_an_environment_that_is_not_embedded_needs_a_server(rude_server: RudeServer) -> None:
    url = serve_replies(rude_server, {"/": json_response("This is environment ScienceWorld.")})
    profile = Profile(id="p", environments=Environments(moderate=(env_entry(url, name="SciWorld"),)))
    assert resolve_environment(profile, "sciworld").name == "SciWorld"
    placement = place(profile.environments.moderate[0], "SciWorld", "strict")
    assert (placement.transport, placement.data_label) == ("http", "AgentGym server")
    planned = resolved_batch(placement, env="SciWorld", agent="scripted", script=("look",))
    assert planned.setup.build_factory(None).env_cfg["env"] == "SciWorld"
    with pytest.raises(ConfigError, match="has no oracle"):
        resolved_batch(placement, env="SciWorld", agent="oracle")
    unserved = Profile(id="p", environments=Environments(moderate=(EnvironmentEntry(name="SciWorld"),)))
    with pytest.raises(ConfigError, match="is played only on a server, but its entry has neither port nor base_url"):
        resolve_environment(unserved, "SciWorld")


def test_credentials_are_never_shown(maze_url: str) -> None:
    address = maze_url.replace("//", "//user:hunter22@")
    placements = [place(env_entry(address), "Maze", mode) for mode in ("strict", "compat")]
    assert placements[0].transport == "http"
    assert "hunter22" not in repr(placements)


def test_episodes_record_transport_mode_and_data_label(maze_url: str, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="n", profile="p")
    placement = place(env_entry(maze_url), "Maze", "strict")
    planned = resolved_batch(placement, env="Maze", agent="oracle", repeat=2, task_index=24)
    result = Batch(planned, workspace).run()
    compat = Batch(planned.placed(Placement(mode="compat")), workspace).run()
    workspace.close()
    assert (result.success_rate, result.mode, result.data_label, result.problems) == (1.0, "strict", "", [])
    assert (compat.success_rate, compat.mode) == (1.0, "compat")
    files = [json.loads(path.read_bytes()) for path in tmp_path.glob(f"runs/{result.batch_id}/*.json")]
    assert {(file["transport"], file["mode"], file["data_label"]) for file in files} == {("http", "strict", "")}
    assert all("http://" not in path.read_text() for path in tmp_path.glob("runs/*/*.json"))


def test_the_oracle_uses_an_embedded_twin_with_the_mode_of_the_server(maze_url: str) -> None:
    address = ServerAddress(maze_url)
    placement = Placement(transport="http", address=address, mode="compat")
    runner = resolved_batch(placement, env="Maze", agent="oracle").setup.build_factory(None)
    assert runner.env_cfg == {"_target_": plugins.HTTP_ENVIRONMENT, "env": "Maze", "address": address, "mode": "compat"}
    assert runner.agent_cfg["twin"] == {"_target_": "runner.envs.maze.Maze", "mode": "compat"}


@pytest.mark.parametrize("environ", [{}, {"ALFWORLD_DATA": "/d", "AGENTENV_SQLGYM_BIRD_PATH": "/d"}])
def test_data_labels_equal_those_of_the_classes(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    names = [name for name in plugins.registered_names(plugins.ENVS) if plugins.is_built_in(plugins.ENVS, name)]
    assert len(names) >= 7
    for name in [*names, "gymnasium:FrozenLake-v1"]:
        assert data_label_of(name, environ) == plugins.load(plugins.ENVS, name).data_label


def probe_entry(listed: EnvironmentEntry) -> ServerState | None:
    profile = Profile(id="p", environments=Environments(lightweight=(listed,)))
    return probe_servers(server_addresses(profile)).get(listed.name)


def test_the_availability_matches_the_chosen_placement(
    maze_url: str, rude_server: RudeServer, closed_port: int, install: Install
) -> None:
    install(envs={"Theirs": "tests.support.fakes:Counter"})
    wrong_url = serve_replies(rude_server, {"/": json_response("This is environment BabyAI.")})
    cases: list[tuple[EnvironmentEntry, tuple[object, ...]]] = [
        (env_entry(maze_url), ("up", "http", "", True)),
        (env_entry(maze_url, "http"), ("up", "http", "", True)),
        (env_entry(maze_url, "embedded"), ("embedded", "embedded", "", True)),
        (env_entry(wrong_url), ("wrong", "embedded", "", True)),
        (env_entry(wrong_url, "http"), ("wrong", "http", None, False)),
        (EnvironmentEntry(name="SQLGym", port=closed_port), ("embedded", "embedded", "local databases", True)),
        (EnvironmentEntry(name="SQLGym", port=closed_port, transport="http"), ("down", "http", None, False)),
        (EnvironmentEntry(name="SQLGym", transport="http"), ("down", "embedded", None, False)),
        (EnvironmentEntry(name="SciWorld", port=closed_port), ("down", "http", None, False)),
        (EnvironmentEntry(name="Nowhere", base_url=maze_url), ("down", "embedded", None, False)),
        (EnvironmentEntry(name="Maze", deps=("no-such-thing",)), ("down", "embedded", None, False)),
        (EnvironmentEntry(name="Theirs"), ("embedded", "embedded", None, True)),
        (EnvironmentEntry(name="gymnasium:FrozenLake-v1"), ("embedded", "embedded", "Gymnasium", True)),
    ]
    for listed, expected in cases:
        availability = availability_of(listed, probe_entry(listed))
        actual = (availability.status, availability.transport, availability.data_label, availability.playable)
        assert actual == expected, listed
        assert availability.playable or availability.cause
        if availability.playable:
            assert place(listed, listed.name, "strict").transport == availability.transport
    assert availability_of(EnvironmentEntry(name="Maze", port=closed_port, transport="http"), None).status == "unknown"
