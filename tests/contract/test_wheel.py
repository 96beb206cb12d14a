"""Wheel and source archive are reproducible and complete: installed elsewhere, they run every embedded environment."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from runner import __version__

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
EMBEDDED = ["ALFWorld", "BabyAI", "Maze", "SQLGym", "TextCraft", "WebShop", "Wordle"]


def run(command: list[str], cwd: Path) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    completed = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert completed.returncode == 0, f"{command} failed:\n{completed.stdout}\n{completed.stderr}"
    return completed.stdout


def build(source: Path, target: Path, umask: int = 0o022) -> dict[str, str]:
    """Build wheel and source archive; return the hash of each file."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    environ = {"PATH": os.environ["PATH"], "HOME": str(target), "SOURCE_DATE_EPOCH": "1796000000"}
    subprocess.run(command, cwd=source, env=environ, umask=umask, capture_output=True, timeout=100, check=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in target.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with wheel and source archive of this checkout."""
    folder = tmp_path_factory.mktemp("built")
    build(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a virtual environment with the wheel and this one's libraries, but not the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = built.glob("*.whl")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
    (site_packages,) = (folder / "venv").glob("lib/python*/site-packages")
    # A path line adds only the libraries; .pth files in that folder, such as the checkout's, are ignored.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(folder / "venv" / "bin" / "python")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel)], folder)
    return folder / "venv" / "bin"


def test_the_source_archive_has_what_git_has_and_builds_the_same_files_elsewhere(built: Path, tmp_path: Path) -> None:
    ((archive,), (wheel,)) = built.glob("*.tar.gz"), built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened_wheel:
        folders = {name.partition("/")[0].partition("-")[0] for name in opened_wheel.namelist()}
    assert folders == {"runner", "agentgym_tui", "agentgym_console"}
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "new", filter="data")
    source, copy = tmp_path / "new" / archive.name.removesuffix(".tar.gz"), tmp_path / "copy"
    if (ROOT / ".git").exists():
        tracked = run(["git", "ls-files"], ROOT).splitlines()
        names = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
        assert names >= {"PKG-INFO", *(name for name in tracked if (ROOT / name).exists())}
    shutil.copytree(source, copy, copy_function=shutil.copy)  # other times
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built.iterdir()}
    assert len(hashes) == 2 and build(source, tmp_path / "first") == hashes
    assert build(copy, tmp_path / "second", umask=0o077) == hashes


@pytest.mark.timeout(400)
def test_the_wheel_plays_every_embedded_environment_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    python, command = str(installed / "python"), str(installed / "agentgym-runner")
    where = run([python, "-c", "import runner; print(runner.__file__)"], tmp_path)
    assert not Path(where.strip()).is_relative_to(ROOT)
    played = json.loads(
        run(
            [
                command,
                "--battery",
                "all",
                "--agent",
                "oracle",
                "--repeat",
                "2",
                "--max-rounds",
                "100",
                "--allow-longer",
                "--json",
            ],
            tmp_path,
        )
    )
    assert sorted(batch["env"] for batch in played["batches"]) == EMBEDDED
    assert all(batch["outcomes"] == {"success": 2} for batch in played["batches"])
    assert played["data_dir"] == str(tmp_path / ".local" / "share" / "agentgym-console")
    run([command, "export", "env:maze", "--format", "html", "--output", "page.html"], tmp_path)
    assert "</script>" in (tmp_path / "page.html").read_text()


def test_the_wheel_carries_profiles_licences_and_both_commands(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(run([str(installed / "agentgym-runner"), "--list-envs", "--json"], tmp_path))
    assert listed["profile"] == "field-runner-4090"
    code = (
        "from runner.util.files import package_resource\n"
        "for name in ('alfworld', 'sqlgym', 'textcraft', 'webshop', 'wordle'):\n"
        "    print(len(package_resource('data', name, 'LICENSE').read_text()) > 100)"
    )
    assert run([str(installed / "python"), "-c", code], tmp_path).split() == ["True"] * 5
    console = subprocess.run(
        [str(installed / "agentgym-tui"), "launch"], capture_output=True, text=True, timeout=60, check=False
    )
    for command in ("agentgym-runner", "agentgym-tui"):
        assert run([str(installed / command), "--version"], tmp_path) == f"{command} {__version__}\n"
    assert console.returncode == 2
    assert "agentgym-runner" in console.stderr
