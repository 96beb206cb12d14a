"""Servers with a working directory and environment variables of their own, as real processes of a node."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runner.config import EnvironmentEntry, Environments, Profile
from runner.errors import ConfigError
from runner.node.env_servers import EnvServerManager, prepare_launch
from tests.support.command import run_agentgym
from tests.support.node_process import NodeProcess, clean_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

SECRET = "hush-hush-4f1d9c"
TEXTCRAFT = """#!{python}
# Like AgentGym's textcraft: it reads its recipes from a folder relative to the working directory.
import http.server, os, sys

print("recipes", os.listdir("agentenv_textcraft/recipes"), flush=True)
print("seed", os.environ["PYTHONHASHSEED"], "token", os.environ.get("DATA_HUB"), flush=True)

class Greeting(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'"This is environment TextCraft."'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Greeting).serve_forever()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of a server that starts only there, with its program in ``bin``."""
    folder = tmp_path / "agentenv-textcraft"
    (folder / "agentenv_textcraft" / "recipes").mkdir(parents=True)
    (folder / "agentenv_textcraft" / "recipes" / "stick.json").write_text("{}")
    (folder / "bin").mkdir()
    program = folder / "bin" / "textcraft"
    program.write_text(TEXTCRAFT.format(python=sys.executable))
    program.chmod(0o755)
    return folder


@pytest.fixture
def create_manager(tmp_path: Path, port: int) -> Iterator[Callable[..., EnvServerManager]]:
    """Return a factory of managers of one TextCraft server."""
    managers: list[EnvServerManager] = []

    def create(command: str, **options: object) -> EnvServerManager:
        entry = EnvironmentEntry(name="TextCraft", server_cmd=f"{command} {port}", port=port, **options)  # type: ignore[arg-type]
        profile = Profile(id="p", environments=Environments(lightweight=(entry,)))
        managers.append(EnvServerManager(profile, tmp_path / "logs"))
        return managers[-1]

    yield create
    for manager in managers:
        manager.close()


def start(manager: EnvServerManager) -> str | None:
    """Start the server; return why it failed, or None when it is ready."""
    manager.start("TextCraft")
    manager.wait_for("TextCraft", lambda: False)
    return manager.cause("TextCraft")


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "logs" / "server-TextCraft.log").read_text()


@pytest.mark.parametrize(
    ("command", "variables"),
    [("bin/textcraft", {}), ("textcraft", {"PATH": "bin:/usr/bin"}), ("{folder}/bin/textcraft", {})],
)
def test_a_server_runs_in_its_folder_with_its_variables(
    create_manager: Callable[..., EnvServerManager],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    variables: dict[str, str],
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "99")  # the profile's value replaces it
    env = {"PYTHONHASHSEED": "0", **variables}
    manager = create_manager(command.format(folder=folder), cwd=str(folder), env=env)
    assert start(manager) is None
    assert "recipes ['stick.json']\nseed 0 token None\n" in log_of(tmp_path)


def test_without_its_folder_that_server_fails(
    create_manager: Callable[..., EnvServerManager], folder: Path, tmp_path: Path
) -> None:
    cause = start(create_manager(f"{folder}/bin/textcraft", env={"PYTHONHASHSEED": "0"}))
    assert cause is not None
    assert "it ended with exit code 1" in cause
    assert "FileNotFoundError" in cause


def test_variables_reach_the_server_but_not_its_guard(
    create_manager: Callable[..., EnvServerManager], folder: Path
) -> None:
    loader = {"LD_LIBRARY_PATH": "/nonexistent", "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
    manager = create_manager("bin/textcraft", cwd=str(folder), env=loader)
    assert start(manager) is None
    (guard,) = (child for child in psutil.Process().children() if "process_guard.py" in " ".join(child.cmdline()))
    (server,) = guard.children()
    assert "LD_LIBRARY_PATH" not in guard.environ()
    assert {name: server.environ()[name] for name in loader} == loader


def test_the_values_of_variables_are_masked_in_the_log_and_in_the_cause(
    create_manager: Callable[..., EnvServerManager], folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = folder / "bin" / "textcraft"
    program.write_text(
        program.read_text().replace("class Greeting", "sys.exit(os.environ['TWO_LINES'])\nclass Greeting")
    )
    env = {"PYTHONHASHSEED": "0", "DATA_HUB": SECRET, "TWO_LINES": f"first-{SECRET}\nsecond-line-4f1d9c"}
    manager = create_manager("bin/textcraft", cwd=str(folder), env=env)
    cause = start(manager)
    assert cause is not None
    assert "seed 0 token *** | *** | ***" in cause
    shown = cause + log_of(tmp_path) + caplog.text + str(manager.stop("TextCraft")) + repr(manager.__dict__)
    assert "4f1d9c" not in shown


@pytest.mark.parametrize("missing", ["nowhere", "~/nowhere", "file"])
def test_a_missing_folder_is_an_error_with_its_path(
    create_manager: Callable[..., EnvServerManager], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "file").write_text("")
    manager = create_manager("bin/textcraft", cwd=missing, autostart=True)
    with pytest.raises(ConfigError) as caught:
        manager.start("TextCraft")
    shown = str(tmp_path / missing.replace("~", "home"))
    problem = "is not a folder that this user can enter" if missing == "file" else "does not exist"
    assert (
        str(caught.value) == f"cwd of TextCraft is {shown}, which {problem}; create it, or correct cwd in the profile"
    )
    manager.autostart()
    assert f"its server: it was not started: cwd of TextCraft is {shown}"[:150] in (manager.cause("TextCraft") or "")


def test_a_command_that_is_not_in_the_folder_is_an_error_with_both(
    create_manager: Callable[..., EnvServerManager], folder: Path
) -> None:
    with pytest.raises(ConfigError, match=r"starts bin/nothing, which is not installed here \(searched from its cwd /"):
        create_manager("bin/nothing", cwd=str(folder)).start("TextCraft")


def test_variables_of_the_profile_win_and_own_commands_stay_on_the_path() -> None:
    env = {"PATH": "/opt/bin", "A_TOKEN": SECRET}
    entry = EnvironmentEntry(name="Maze", server_cmd="agentgym-runner", env=env)
    environ = {"PATH": "/bin", "A_TOKEN": "of-the-node", "HOME": "/h"}
    launch = prepare_launch(entry, environ)
    own_commands = str(Path(sys.executable).parent)
    assert launch.environ == {"PATH": f"/opt/bin:{own_commands}", "A_TOKEN": SECRET, "HOME": "/h"}
    inherited = prepare_launch(EnvironmentEntry(name="Maze", server_cmd="agentgym-runner"), environ).environ
    assert inherited == {"PATH": f"/bin:{own_commands}", "HOME": "/h"}
    assert SECRET not in repr(launch)


def write_profile(tmp_path: Path, folder: Path, port: int) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(
        f"""
id: p
environments:
  lightweight:
    - name: TextCraft
      server_cmd: bin/textcraft {port}
      cwd: ./{folder.name}
      env: {{ PYTHONHASHSEED: 0, DATA_HUB: "${{HUB_ACCESS}}" }}
      port: {port}
    - {{ name: Maze, server_cmd: agentgym-runner serve Maze, cwd: ./nowhere, port: {port + 1} }}
"""
    )
    return path


async def test_a_node_starts_a_server_in_its_folder_and_keeps_its_secrets(
    tmp_path: Path, folder: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profile, environ = write_profile(tmp_path, folder, port), {"HUB_ACCESS": SECRET}
    outputs: list[str] = []
    with NodeProcess(tmp_path / "data", "--config", str(profile), env=clean_environ(**environ)) as node:
        async with await node.connect() as connection:
            outputs.append(str(await node.request_reply(connection, "server_start", env="TextCraft")))
            refused = await node.request_reply(connection, "server_start", env="Maze")
            assert refused["error"]["message"].startswith("cwd of Maze is /")
            deadline = time.monotonic() + 60
            while "'status': 'up'" not in (health := str(await node.request(connection, "health"))):
                assert time.monotonic() < deadline, health
                await asyncio.sleep(0.1)
            outputs.append(health)
        outputs.append(node.terminate()[1])
    for command in (("--list-envs", "--json"), ("preflight", "--agent", "oracle", "--json")):
        completed = run_agentgym(tmp_path, *command, "--config", str(profile), environ=environ)
        assert json.loads(completed.stdout)
        outputs.append(completed.stdout + completed.stderr)
    files = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert SECRET.encode() not in b"".join([*files, *(text.encode() for text in outputs)])
    assert "seed 0 token ***" in (tmp_path / "data" / "logs" / "server-TextCraft.log").read_text()
