"""Detection of a full disk, with injected errors and sizes; real disks are in tests/faults."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from runner.errors import StoreError
from runner.node import storage
from runner.node.storage import StorageWatch, require_storage, storage_problem, storage_required

MIB = 1 << 20


class FakeDisk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.n_files_free, self.write_error = 100 * MIB, 10, 0
        self.n_probes = 0
        monkeypatch.setattr(os, "statvfs", self.statvfs)
        monkeypatch.setattr(storage, "_write_probe", self.write)

    def statvfs(self, _path: Path) -> os.statvfs_result:
        blocks, files = self.free // 4096, self.n_files_free
        return os.statvfs_result((4096, 4096, 1 << 20, blocks, blocks, 100, files, files, 0, 255))

    def write(self, _folder: Path) -> None:
        self.n_probes += 1
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    return FakeDisk(monkeypatch)


def test_a_disk_is_full_below_one_mebibyte_and_has_room_above_four(disk: FakeDisk, tmp_path: Path) -> None:
    changes: list[Any] = []
    watch = StorageWatch(tmp_path, lambda: changes.append(watch.problem))
    for free, is_full in [(100, False), (2, False), (0, True), (2, True), (4, False), (2, False)]:
        disk.free = free * MIB
        assert (watch.check() is not None) == is_full, free
    assert changes == [f"nothing can be stored in {tmp_path}: its disk is full (0 KiB are free)", None]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EDQUOT, os.strerror(errno.EDQUOT)),
        (errno.EROFS, "Read-only file system"),
        (errno.EFBIG, "a size limit is reached"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_failed_write_is_tried_again_until_it_succeeds(
    disk: FakeDisk, tmp_path: Path, code: int, reason: str
) -> None:
    watch = StorageWatch(tmp_path, lambda: None)
    disk.write_error = code
    assert watch.check() is None
    assert disk.n_probes == 0, "an idle node writes nothing"
    assert watch.check(write=True) == f"nothing can be stored in {tmp_path}: {reason}"
    assert watch.check() == watch.problem
    disk.write_error = 0
    assert watch.check() is None
    assert disk.n_probes == 3


def test_a_disk_without_room_for_another_file_is_full(disk: FakeDisk, tmp_path: Path) -> None:
    disk.n_files_free = 0
    assert (found := storage_problem(tmp_path)) is not None
    assert found.text == f"nothing can be stored in {tmp_path}: its disk has no room for another file"


def test_files_that_ran_out_are_reported_with_their_own_advice(
    disk: FakeDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.write_error = errno.EMFILE
    watch = StorageWatch(tmp_path, lambda: None)
    assert watch.check(write=True) == f"nothing can be stored in {tmp_path}: Too many open files"
    assert "raise it with ulimit -n" in caplog.text
    assert "disk" not in caplog.text.replace(str(tmp_path), "")


def test_a_missing_folder_is_checked_at_its_parent(tmp_path: Path) -> None:
    require_storage(tmp_path / "new" / "data")
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_a_file_is_that_of_its_disk_while_nothing_can_be_stored(disk: FakeDisk, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^the queue is broken$"), storage_required(tmp_path):
        raise StoreError("the queue is broken")
    with pytest.raises(StoreError, match=r"its disk is full .* --data-dir"), storage_required(tmp_path):
        disk.free = 3 * MIB
        raise StoreError("the queue is broken")


def test_the_start_of_a_node_needs_room(disk: FakeDisk, tmp_path: Path) -> None:
    disk.free = 3 * MIB
    with pytest.raises(
        StoreError, match=r"its disk is full \(3,072 KiB are free\); free disk space there .* --data-dir"
    ):
        require_storage(tmp_path)
