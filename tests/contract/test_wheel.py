"""The wheel is complete: installed away from the checkout, it runs every embedded environment."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
EMBEDDED = ["ALFWorld", "BabyAI", "Maze", "SQLGym", "TextCraft", "WebShop", "Wordle"]


def run(command: list[str], cwd: Path) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    completed = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert completed.returncode == 0, f"{command} failed:\n{completed.stdout}\n{completed.stderr}"
    return completed.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a virtual environment with the wheel and this one's libraries, but not the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (wheel,) = folder.glob("*.whl")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
    (site_packages,) = (folder / "venv").glob("lib/python*/site-packages")
    # A path line adds only the libraries; .pth files in that folder, such as the checkout's, are ignored.
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(folder / "venv" / "bin" / "python")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel)], folder)
    return folder / "venv" / "bin"


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
    assert console.returncode == 2
    assert "agentgym-runner" in console.stderr
