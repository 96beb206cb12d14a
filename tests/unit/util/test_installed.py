"""Entry points and versions read from folders are those of ``importlib.metadata``."""

from __future__ import annotations

import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from runner.plugins import EntryPoint, entry_points, installed_version

GROUP = "test.installed"
ENTRY_POINTS = "[other]\nx = y\n# no entry\n\n[test.installed]\none = some.module:Class.attribute [extra]\ntwo=module\n"


def write_package(folder: Path, stem: str, *, version: str = "1.0", points: str = ENTRY_POINTS) -> None:
    (folder / stem).mkdir(parents=True)
    (folder / stem / "entry_points.txt").write_text(points)
    header = f"Metadata-Version: 2.1\nName: some.package\nVersion: {version}"
    (folder / stem / "METADATA").write_text(f"{header}\n\nVersion: 9")


def by_metadata(group: str) -> list[tuple[str, str]]:
    return [(point.name, point.value) for point in metadata.entry_points(group=group)]


def test_all_installed_packages_are_found() -> None:
    groups = sorted(metadata.entry_points().groups)
    found = entry_points(groups)
    assert {group: sorted((point.name, point.value) for point in found[group]) for group in groups} == {
        group: sorted(by_metadata(group)) for group in groups
    }
    names = {name for each in metadata.distributions() if (name := each.metadata["Name"])}
    assert {name: installed_version(name) for name in names} == {name: metadata.version(name) for name in names}
    assert installed_version("no-such-package") is None


def test_the_first_package_of_a_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path / "first", "some_package-1.0.dist-info", version="1.0")
    write_package(tmp_path / "second", "Some.Package-2.0.dist-info", version="2.0", points="[test.installed]\nz = z")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), str(tmp_path / "missing")])
    points = entry_points([GROUP])[GROUP]
    assert [(point.name, point.module, point.attribute, point.package) for point in points] == [
        ("one", "some.module", "Class.attribute", "some.package"),
        ("two", "module", "", "some.package"),
    ]
    assert sorted((point.name, point.value) for point in points) == sorted(by_metadata(GROUP))
    assert installed_version("some-package") == metadata.version("some-package") == "1.0"


def test_a_package_in_a_zip_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path / "folder", "some_package-1.0.dist-info")
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (tmp_path / "folder").rglob("*"):
            file.write(path, path.relative_to(tmp_path / "folder"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(archive)])
    assert EntryPoint("two", "module", "some.package") in entry_points([GROUP])[GROUP]
    assert installed_version("some.package") == "1.0"


def test_the_source_folder_of_an_installed_package_is_no_second_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path / "source", "some_package.egg-info", version="1.1")
    write_package(tmp_path / "packages", "some_package-1.0.dist-info", points="[test.installed]\nz = z")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "source"), str(tmp_path / "packages")])
    assert sorted((point.name, point.value) for point in entry_points([GROUP])[GROUP]) == sorted(by_metadata(GROUP))
    assert installed_version("some-package") == metadata.version("some-package") == "1.1"


def test_bytes_that_are_no_text_harm_only_their_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "some_package-1.0.dist-info")
    (tmp_path / "some_package-1.0.dist-info" / "entry_points.txt").write_bytes(b"[test.installed]\n\xff = x\none = y\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert [point.name for point in entry_points([GROUP])[GROUP]] == ["\ufffd", "one"]


def test_an_entry_of_the_path_that_is_no_text_is_ignored_as_imports_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "some_package-1.0.dist-info")
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])
    assert installed_version("some.package") is None
    assert installed_version("pytest") == metadata.version("pytest")
