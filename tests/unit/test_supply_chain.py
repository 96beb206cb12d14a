"""What is installed is what the lock has, under known licences, and the bill of materials lists it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from runner.envs.are.catalog import VERSION
from runner.envs.are.scenario_scan import DISTRIBUTION
from scripts import build_sbom, set_up
from scripts.build_sbom import LEFT_OUT, LOCK, PACKAGE, ROOT, is_allowed, licence, locked_packages, read_lock
from tests.support.network_references import url_references

HASH = "0123456789abcdef" * 4


def test_every_entry_of_the_lock_has_an_exact_version_and_hashes() -> None:
    packages = read_lock(LOCK.read_text("utf-8"))
    assert len(packages) > 80
    assert [package.name for package in packages if not package.hashes] == []
    assert LEFT_OUT.isdisjoint(package.name for package in packages)


def test_the_fuzzer_is_no_part_of_the_default_install_and_has_hashes() -> None:
    (fuzzer,) = read_lock((ROOT / "tests" / "fuzz" / "requirements.lock").read_text("utf-8"))
    assert fuzzer.name == "atheris" and fuzzer.hashes
    assert fuzzer.name not in locked_packages()


def test_are_has_a_lock_of_its_own_with_hashes_and_the_version_of_the_extra() -> None:
    packages = {
        package.name: package
        for package in read_lock((ROOT / "tests" / "are" / "requirements.lock").read_text("utf-8"))
    }
    assert [name for name, package in packages.items() if not package.hashes] == []
    assert packages[DISTRIBUTION].version == VERSION and DISTRIBUTION not in locked_packages()
    assert f'are = ["{DISTRIBUTION}=={VERSION}"]' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_installed_versions_are_those_of_the_lock() -> None:
    locked = locked_packages()
    installed = {name: metadata.version(name) for name in locked}
    assert installed == {name: package.version for name, package in locked.items()}


def test_the_lock_has_the_whole_default_install() -> None:
    graph = build_sbom.requirement_graph()
    assert graph.keys() - locked_packages().keys() == {PACKAGE}
    assert {"textual", "minigrid", "numpy"} <= graph.keys()
    assert "pytest" not in graph


def test_the_default_install_has_no_copyleft_licence() -> None:
    licences = {name: licence(name) for name in build_sbom.requirement_graph()}
    assert {name: each for name, each in licences.items() if not is_allowed(each)} == {}
    assert [name for name, each in licences.items() if "MPL" in each] == ["certifi", "shtab"]


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("LGPL-2.1-only", False),
        ("LGPL v2.1", False),
        ("MIT AND GPL-3.0-or-later", False),
        ("MIT OR GPL-2.0-only", True),
        ("(MIT OR Apache-2.0) AND LGPL-3.0-only", False),
        ("(MIT OR Apache-2.0) AND BSD-3-Clause", True),
        ("unknown", False),
    ],
)
def test_a_copyleft_or_unknown_licence_is_found(expression: str, allowed: bool) -> None:
    assert is_allowed(expression) is allowed


def test_the_checked_in_table_has_the_licences_of_the_default_install() -> None:
    table = (ROOT / "docs/reference/licences.md").read_text("utf-8").splitlines()
    missing = [line for line in build_sbom.licence_table().splitlines() if line not in table]
    assert missing == [], "run: python -m scripts.build_sbom docs/reference/licences.md"


def test_the_bill_of_materials_is_complete_and_reproducible() -> None:
    document = build_sbom.sbom()
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    names = {component["name"] for component in document["components"]}
    assert names == build_sbom.requirement_graph().keys() - {PACKAGE}
    refs = {component["bom-ref"] for component in document["components"]}
    for component in document["components"]:
        locked = locked_packages()[component["name"]]
        assert component["purl"] == f"pkg:pypi/{locked.name}@{locked.version}"
        assert [each["content"] for each in component["hashes"]] == list(locked.hashes)
        assert component["licenses"][0]["expression"]
    assert {each for node in document["dependencies"] for each in node["dependsOn"]} <= refs
    assert build_sbom.sbom() == document
    assert url_references(json.dumps(document).encode()) == []


def test_an_entry_without_an_exact_version_is_refused() -> None:
    entry = (
        f"some-package==1.2 ; python_version >= '3' \\\n    --hash=sha256:{HASH} \\\n    --hash=sha256:{HASH[::-1]}\n"
    )
    (package,) = read_lock(f"# a comment\n{entry}")
    assert (package.name, package.version, len(package.hashes)) == ("some-package", "1.2", 2)
    with pytest.raises(ValueError, match=r"some-package>=1 in .* has no exact version"):
        read_lock("some-package>=1\n")


@pytest.mark.long
def test_make_install_verifies_the_hashes() -> None:
    command = ["make", "--dry-run", "--always-make", "install"]
    recipe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    (from_lock,) = (line for line in recipe.splitlines() if "requirements.lock" in line)
    assert from_lock.split()[1:] == ["scripts/set_up.py", ".venv", "requirements.lock", "--editable", "."]


def test_a_lock_is_installed_with_its_hashes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []
    monkeypatch.setattr(set_up, "run", lambda command, *arguments: commands.append(command))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    set_up.set_up(tmp_path, LOCK, ".", [], set_up.Reporter())
    _, from_lock, own, _ = commands  # the last one compiles
    assert {"--require-hashes", "--no-deps", str(LOCK)} <= set(from_lock) and "--no-deps" in own


@pytest.mark.long  # it starts pip
@pytest.mark.timeout(60)
def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thing-1.0.tar.gz").write_bytes(b"not the locked file")
    (tmp_path / "lock").write_text(f"thing==1.0 --hash=sha256:{HASH}\n")
    options = [
        "--require-hashes",
        "--no-deps",
        "--no-index",
        "--find-links",
        str(tmp_path),
        "--dest",
        str(tmp_path / "to"),
    ]
    (tmp_path / "to").mkdir()
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(tmp_path / "lock")]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert completed.returncode != 0
    assert "DO NOT MATCH THE HASHES" in completed.stderr


@pytest.mark.long
def test_babyai_needs_no_pygame() -> None:
    code = """
import sys
sys.modules["pygame"] = None  # an import fails as if it were not installed
from runner.envs.babyai.levels import make_world
make_world(3)
assert "pygame" not in sys.modules and "pygame.freetype" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


def test_ray_is_no_part_of_the_default_install_and_has_hashes() -> None:
    packages = {each.name: each for each in read_lock(Path(ROOT, "tests/ray/requirements.lock").read_text("utf-8"))}
    assert "ray" in packages and all(each.hashes for each in packages.values())
    assert packages.keys().isdisjoint(locked_packages())


def test_an_ordinary_run_collects_no_test_of_ray(pytestconfig: pytest.Config) -> None:
    folder = Path(ROOT, "tests", "ray")
    for path in (folder, folder / "test_remote_runner.py"):
        assert path.exists()
        assert pytestconfig.hook.pytest_ignore_collect(collection_path=path, config=pytestconfig) is True
