"""Tests through the real package: ``make test-are`` installs it into ``.venv-are``; every other run leaves them out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from runner.config import ARESettings
from runner.envs.are.client import close_processes
from runner.envs.are.environment import AREEnvironment

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("AGENTGYM_ARE_PYTHON") or HERE.parents[1] / ".venv-are" / "bin" / "python")
"""Interpreter with ARE; the variable names that of another virtual environment."""

Create = Callable[..., AREEnvironment]


@pytest.fixture(scope="session")
def settings() -> Iterator[ARESettings]:
    """The installed package; its process stays warm between the tests."""
    assert PYTHON.exists(), f"{PYTHON} is missing; run: make test-are"
    yield ARESettings(python=str(PYTHON))
    close_processes()


@pytest.fixture(scope="session")
def own_settings(tmp_path_factory: pytest.TempPathFactory, settings: ARESettings) -> ARESettings:
    """The installed package, and ``own_scenarios`` as a package that registers them by ARE's entry point."""
    python = create_venv(tmp_path_factory.mktemp("venv"), site_packages(PYTHON))
    info = site_packages(python) / "own_scenarios-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-scenarios\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[are.simulation.scenarios]\nown = own_scenarios:register\n")
    (info.parent / "own_scenarios.py").write_text((HERE / "own_scenarios.py").read_text())
    return ARESettings(python=str(python), memory_mib=300, step_timeout_sec=20.0)


def create_venv(folder: Path, *paths: Path) -> Path:
    """Create a virtual environment that has the packages of other folders; return its interpreter."""
    subprocess.run([str(PYTHON), "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    python = folder / "bin" / "python"
    (site_packages(python) / "paths.pth").write_text("".join(f"{path}\n" for path in paths))
    return python


def site_packages(python: Path) -> Path:
    """Return the folder of an interpreter's packages."""
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    completed = subprocess.run([python, "-c", query], check=True, capture_output=True, text=True, timeout=60)
    return Path(completed.stdout.strip())


@pytest_asyncio.fixture
async def create(settings: ARESettings) -> AsyncIterator[Create]:
    """A function that returns an environment for a scenario; all are cleaned up at the end of the test."""
    created: list[AREEnvironment] = []

    def build(scenario: str, own: ARESettings | None = None) -> AREEnvironment:
        created.append(AREEnvironment(id=scenario, settings=own or settings))
        return created[-1]

    yield build
    for environment in created:
        environment.cleanup()
    assert "are" not in sys.modules
