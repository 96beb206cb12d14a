from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import runner
from scripts.build_sbom import ROOT, locked_packages, read_lock

NEEDS_RAY = {"runner.worker.remote_runner"}


def test_every_other_module_is_imported_without_ray() -> None:
    modules = {each.name for each in pkgutil.walk_packages(runner.__path__, "runner.") if ".shipped" not in each.name}
    assert modules >= NEEDS_RAY
    names = sorted(name for name in modules - NEEDS_RAY if not name.endswith("__main__"))
    code = f"""
import importlib, sys
sys.modules["ray"] = None  # an import fails as if it were not installed
for name in {names!r}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_ray_is_no_part_of_the_default_install_and_has_hashes() -> None:
    packages = {each.name: each for each in read_lock(Path(ROOT, "tests/ray/requirements.lock").read_text("utf-8"))}
    assert "ray" in packages and all(each.hashes for each in packages.values())
    assert packages.keys().isdisjoint(locked_packages())


def test_an_ordinary_run_collects_no_test_of_ray(pytestconfig: pytest.Config) -> None:
    folder = Path(ROOT, "tests", "ray")
    for path in (folder, folder / "test_remote_runner.py"):
        assert path.exists()
        assert pytestconfig.hook.pytest_ignore_collect(collection_path=path, config=pytestconfig) is True
