"""The list of scenarios, read from source files, against the package; the example of ``docs/build/environments.md``."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from runner.config import ARESettings
from runner.envs.are.catalog import is_offline, read_catalog
from runner.envs.are.client import warm_process
from tests.are.conftest import PYTHON
from tests.are.test_scenarios import evaluation_of, play_oracle
from tests.support.command import REPOSITORY


def test_the_listed_scenarios_are_those_that_are_registers(settings: ARESettings) -> None:
    catalog = read_catalog(settings)
    assert sorted(catalog.scenarios) == sorted(f"are:{id}" for id in warm_process(settings).ready.scenarios)
    assert (catalog.version, sum(map(is_offline, catalog.scenarios))) == ("1.2.0", 5)


def test_ids_that_are_computed_are_left_to_the_process(own_settings: ARESettings) -> None:
    assert not read_catalog(own_settings).is_complete


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> ARESettings:
    """The package, and the module of ``docs/build/environments.md`` registered by its entry point."""
    text = (REPOSITORY / "docs/build/environments.md").read_text(encoding="utf-8")
    code, points = (re.findall(f"```{kind}\n(.*?)```", text, re.DOTALL)[-1] for kind in ("python", "toml"))
    folder = tmp_path_factory.mktemp("documented")
    subprocess.run([str(PYTHON), "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    python = folder / "bin" / "python"
    packages = site_packages(python)
    (packages / "are.pth").write_text(f"{site_packages(PYTHON)}\n")
    (packages / "lab_scenarios.py").write_text(code)
    info = packages / "lab_scenarios-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-scenarios\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points.replace('project.entry-points."', "").replace('"', ""))
    return ARESettings(python=str(python))


def site_packages(python: Path) -> Path:
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([str(python), "-c", query], check=True, capture_output=True, text=True, timeout=60)
    return Path(found.stdout.strip())


async def test_the_documented_scenario_is_listed_and_solved(documented: ARESettings) -> None:
    assert "are:scenario_hello" in read_catalog(documented).scenarios
    assert evaluation_of(await play_oracle("scenario_hello", documented))["success"] is True
