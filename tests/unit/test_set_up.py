"""The first set-up says at once what it does, shows its progress, and explains a failure."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from scripts.build_sbom import ROOT, locked_packages
from scripts.set_up import DOWNLOAD_MB, PipProgress, cause_of, count_packages
from scripts.with_env import read_variables
from tests.support.terminal import Terminal

WAIT_S = 60.0


def make_wheel(name: str) -> bytes:
    """Return a wheel of version 1.0 with one empty module."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)  # its time is fixed
    return buffer.getvalue()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """Ignore a client that has gone."""


def make_lock(*names: str) -> str:
    """Return a lock file with the wheels of ``make_wheel`` and their hashes."""
    hashes = {name: hashlib.sha256(make_wheel(name)).hexdigest() for name in names}
    return "".join(f"{name}==1.0 \\\n    --hash=sha256:{digest}\n" for name, digest in hashes.items())


class PackageIndex:
    """A package index; use as a context manager.

    Args:
        names: names of the packages; each has the version 1.0.
        held: names of the packages whose pages wait for ``release``.
    """

    def __init__(self, *names: str, held: tuple[str, ...] = ()) -> None:
        self.wheels = {name: make_wheel(name) for name in names}
        self._held = {name: threading.Event() for name in held}
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/simple/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(*self._held)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def release(self, *names: str) -> None:
        for name in names:
            self._held[name].set()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        folder, _, name = request.path.strip("/").partition("/")
        if folder == "simple" and name in self.wheels:
            if name in self._held:
                self._held[name].wait(WAIT_S)
            file = f"{name}-1.0-py3-none-any.whl"
            self._send(request, "text/html", f'<!DOCTYPE html><a href="/files/{file}">{file}</a>'.encode())
        elif folder == "files" and (name := name.partition("-")[0]) in self.wheels:
            self._send(request, "application/octet-stream", self.wheels[name])
        else:
            request.send_error(404)

    def _send(self, request: BaseHTTPRequestHandler, kind: str, body: bytes) -> None:
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


SCRIPT = str(ROOT / "scripts" / "set_up.py")
TIMEOUT_S = 100.0


def find_pythons() -> list[str]:
    """Return this Python and the others that are supported and on the path; nothing runs while tests are collected."""
    others = [shutil.which(f"python3.{minor}") for minor in range(11, 15) if minor != sys.version_info.minor]
    return [sys.executable, *(command for command in others if command is not None)]


def environ(index_url: str, home: Path) -> dict[str, str]:
    """Return variables with which pip uses only this index."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index_url,
        "PIP_RETRIES": "1",
        "PIP_DEFAULT_TIMEOUT": str(TIMEOUT_S),
    }


def has_venv(python: str, home: Path) -> bool:
    command = [python, "-m", "venv", "-h"]
    done = subprocess.run(command, env=environ("", home), capture_output=True, timeout=TIMEOUT_S, check=False)
    return done.returncode == 0


def run_set_up(folder: Path, url: str, python: str = sys.executable, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, SCRIPT, "venv", "test.lock", *options],
        cwd=folder,
        env=environ(url, folder),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_the_announced_number_of_packages_is_that_of_the_installed_lock() -> None:
    assert count_packages((ROOT / "requirements.lock").read_text("utf-8")) == len(locked_packages())


def test_the_locks_with_a_known_size_exist() -> None:
    assert [lock for lock in DOWNLOAD_MB if not (ROOT / lock).is_file()] == []


def test_the_progress_counts_what_is_looked_up_and_downloaded_and_installed(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "pip-23.2.1.dist-info").mkdir(parents=True)
    progress, texts = PipProgress(tmp_path, 3), []
    for line in (
        "Collecting hydra-core==1.3.2 (from -r requirements.lock (line 1))\n",
        "  Using cached hydra_core-1.3.2-py3-none-any.whl.metadata (5.5 kB)\n",
        "Processing /wheels/aiosignal-1.4.0-py3-none-any.whl (from -r requirements.lock (line 2))\n",
        "Requirement already satisfied: attrs==25.1 in ./site-packages\n",
        "  Downloading http://127.0.0.1/hydra_core-1.3.2-py3-none-any.whl (154 kB)\n",
        "Installing collected packages: hydra-core, aiosignal\n",
    ):
        progress.read(line)
        texts.append(progress.text())
    (packages / "aiosignal-1.4.0.dist-info").mkdir()
    assert texts == [
        "found 1/3 hydra-core",
        "found 1/3 hydra-core",
        "found 2/3 aiosignal",
        "found 3/3 attrs",
        "downloading 1/3 hydra_core (154 kB)",
        "installing 0/2",
    ]
    assert progress.text() == "installing 1/2"


def test_the_cause_of_a_failure_starts_at_its_first_error() -> None:
    lines = [
        "Collecting a\n",
        "WARNING: slow\n",
        "ERROR: no\x1b[31m file\n",
        "\n",
        "    Expected x\n",
        "[notice] new pip\n",
    ]
    assert cause_of(lines) == ["ERROR: no [31m file", "    Expected x"]
    assert cause_of(["one\n", "two\n"]) == ["one", "two"]


@pytest.mark.long
@pytest.mark.parametrize("python", find_pythons())
def test_a_set_up_without_a_terminal_is_short(python: str, tmp_path: Path) -> None:
    if not has_venv(python, tmp_path):
        pytest.skip(f"`{python} -m venv` fails: install its module venv; for a shim, put the real Python first on PATH")
    with PackageIndex("alpha", "beta") as index:
        (tmp_path / "test.lock").write_text(make_lock(*index.wheels))
        result = run_set_up(tmp_path, index.url, python)
    assert result.returncode == 0, result.stdout + result.stderr
    first, *rest, last = result.stdout.splitlines()
    assert first == "Setting up venv: 2 packages, usually under a minute; once"
    assert last.startswith("venv is ready after ")
    assert len(rest) <= TIMEOUT_S / 20 and all(line.startswith("  ") for line in rest)
    assert result.stderr == ""
    command = [str(tmp_path / "venv" / "bin" / "python"), "-c", "import alpha, beta"]
    assert subprocess.run(command, timeout=TIMEOUT_S, check=False).returncode == 0


@pytest.mark.long
def test_the_modules_of_this_package_are_compiled(tmp_path: Path) -> None:
    build_system = 'requires = []\nbuild-backend = "backend"\nbackend-path = ["."]'
    (tmp_path / "pyproject.toml").write_text(f"[build-system]\n{build_system}\n[project]\nname='mine'\nversion='1.0'")
    (wheel := tmp_path / "mine-1.0-py3-none-any.whl").write_bytes(make_wheel("mine"))
    copy = (
        f"import shutil\ndef build_editable(folder, *_): return shutil.copy({str(wheel)!r}, folder) and {wheel.name!r}"
    )
    (tmp_path / "backend.py").write_text(copy)
    (tmp_path / "mine" / "part").mkdir(parents=True)
    for name in ("__init__.py", "part/__init__.py"):
        (tmp_path / "mine" / name).write_text("A = 1")
    with PackageIndex("alpha") as index:
        (tmp_path / "test.lock").write_text(make_lock(*index.wheels))
        result = run_set_up(tmp_path, index.url, sys.executable, "--editable", ".")
    assert result.returncode == 0, result.stdout + result.stderr
    assert len([*tmp_path.glob("mine/__pycache__/*.pyc"), *tmp_path.glob("mine/part/__pycache__/*.pyc")]) == 2


@pytest.mark.long
def test_a_slow_index_leaves_no_silence_on_a_terminal(tmp_path: Path) -> None:
    with PackageIndex("alpha", "beta", "gamma", held=("alpha", "gamma")) as index:
        (tmp_path / "test.lock").write_text(make_lock(*index.wheels))
        command = [sys.executable, SCRIPT, "venv", "test.lock"]
        with Terminal(*command, env=environ(index.url, tmp_path), cwd=tmp_path) as terminal:
            terminal.wait_for("Setting up venv: 3 packages")
            terminal.wait_for("starting pip, ", TIMEOUT_S)
            index.release("alpha")
            terminal.wait_for("2/3 beta", TIMEOUT_S)
            terminal.wait_for(lambda: len(set(terminal.raw.split(b"2/3 beta")[1:])) > 2, TIMEOUT_S)  # the clock runs
            index.release("gamma")
            terminal.wait_for("venv is ready after ", TIMEOUT_S)
            assert terminal.wait_exit() == 0
            assert len([line for line in terminal.lines if line]) == 2


@pytest.mark.long
def test_a_file_that_is_not_that_of_the_lock_is_named_with_the_next_step(tmp_path: Path) -> None:
    with PackageIndex("alpha", "beta") as index:
        (tmp_path / "test.lock").write_text(make_lock(*index.wheels))
        index.wheels["beta"] = make_wheel("beta") + b"\n"
        result = run_set_up(tmp_path, index.url)
        assert result.returncode == 1
        assert "Setting up venv failed:\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES" in result.stdout
        assert "beta==1.0" in result.stdout and "Expected sha256" in result.stdout
        assert "use another index" in result.stdout.splitlines()[-1]
        assert str(Path("venv", "setup.log")) in result.stdout.splitlines()[-1]
        index.wheels["beta"] = make_wheel("beta")
        assert run_set_up(tmp_path, index.url).returncode == 0


@pytest.mark.long
def test_an_index_that_does_not_answer_is_reported_while_pip_tries_and_at_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://me:topsecret@127.0.0.1:{server.getsockname()[1]}/simple/"
    (tmp_path / "test.lock").write_text(make_lock("alpha"))
    result = run_set_up(tmp_path, url)
    assert result.returncode == 1
    assert "  pip tries again after connection broken by " in result.stdout
    assert "ERROR: No matching distribution found for alpha==1.0" in result.stdout
    assert "check the network" in result.stdout.splitlines()[-1]
    assert "topsecret" not in result.stdout + (tmp_path / "venv" / "setup.log").read_text()


@pytest.mark.long
def test_a_set_up_that_is_done_prints_nothing(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    result = subprocess.run(
        ["make", "--silent", "install"], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / ".venv" / ".installed").exists(), reason="make would set up .venv first")
def test_make_runs_under_both_names_with_the_variables_of_a_file(tmp_path: Path) -> None:
    secret = "sk-a-secret-of-the-file"
    lines = f"# local\n\nexport AGENTGYM_DATA_DIR='{tmp_path}/data' # here\nLAB_API_KEY={secret}$(id)\n"
    (tmp_path / "with space.env").write_text(lines)

    def make(*arguments: str) -> str:
        command = ["make", "-C", str(ROOT), *arguments, f"ENV_FILE={tmp_path}/with space.env"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    outputs = [make("agentgym-run", "ENV=Maze", "AGENT=oracle", "EPISODES=2"), make("agentgym-results")]
    assert outputs[1] == make("results")
    outputs.append(make("run", "ENV=Maze", "AGENT=oracle"))
    outputs.append(make("agentgym-run-lightweight", "AGENT=oracle"))
    assert len([*tmp_path.glob("data/runs/*/*.json")]) == 7
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".env")
    assert secret.encode() not in stored
    assert secret not in "".join(outputs)


@pytest.mark.parametrize(
    ("line", "value"),
    [("KEY=a$b`c`$(d)", "a$b`c`$(d)"), ("KEY='a b' # c", "a b"), ('export KEY="a#b"', "a#b"), ("KEY=", "")],
)
def test_a_file_of_variables_is_not_evaluated(line: str, value: str) -> None:
    assert read_variables(f"# KEY=x\n\n{line}\n") == {"KEY": value}


@pytest.mark.parametrize("line", ["KEY= sk-secret", "KEY=sk secret", "sk-secret", "KEY='sk-secret", "1KEY=sk-secret"])
def test_an_invalid_line_of_a_file_of_variables_is_named_without_its_text(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 is not NAME=VALUE") as caught:
        read_variables(f"A=b\n{line}\n")
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the checkout")
def test_git_ignores_what_the_console_writes_into_the_current_folder() -> None:
    episode = "01HZXM3Q5S7D9F1G3H5J7K9M1N"
    names = [
        ".env",
        "data/node.key",
        "agentgym-20260101-120000.svg",
        "agentgym-20260101-120000-2.svg",
        "episodes-20260101T120000Z.zip",
    ]
    names += ["episodes.jsonl", "episodes.parquet", "episodes/manifest.json", f"{episode}.json", f"{episode}-2.json"]
    done = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == names
