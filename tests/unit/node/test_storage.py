"""The state directory: a full disk, with injected errors and sizes (real disks are in tests/faults), and its lock."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ulid import ULID

from runner.errors import ConfigError, StoreError
from runner.node import storage
from runner.node.state_lock import NodeFile, StateLock, variable_digests
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


LATER = str(ULID.from_datetime(datetime(2060, 1, 1, tzinfo=UTC)))
LAST = "7" + "Z" * 25


def boot_of(data_dir: Path) -> ULID:
    """Lock and release the directory, and return the id that the lock gave to the process."""
    lock = StateLock(data_dir)
    lock.release()
    return ULID.from_str(lock.boot)


def node_file(boot: str) -> NodeFile:
    started_at = datetime(2026, 1, 1, tzinfo=UTC)
    return NodeFile(node="n", boot=boot, pid=1, url="", credential_file="", started_at=started_at, version="1")


def write_node_file(data_dir: Path, boot: str) -> None:
    lock = StateLock(data_dir)
    lock.write_node_file(node_file(boot))
    lock.release()


def test_the_id_of_a_process_sorts_after_the_id_in_the_lock_file(tmp_path: Path) -> None:
    (tmp_path / "node.lock").write_text(f"1\n{LATER}\n")
    boots = [boot_of(tmp_path) for _ in range(3)]
    assert ULID.from_str(LATER) < boots[0] < boots[1] < boots[2]


def test_the_id_of_a_process_sorts_after_the_id_in_the_node_file_if_the_lock_file_was_deleted(tmp_path: Path) -> None:
    write_node_file(tmp_path, LATER)
    (tmp_path / "node.lock").unlink()
    assert boot_of(tmp_path) > ULID.from_str(LATER)


@pytest.mark.parametrize("content", [b"", b"1", b"1\n\n", b"1\nnot an id\n", b"\xff\x00\n\x00" * 20])
def test_a_damaged_lock_file_gives_an_id_of_now(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.lock").write_bytes(content)
    (tmp_path / "node.json").write_bytes(content)
    assert abs((boot_of(tmp_path).datetime - datetime.now(UTC)).total_seconds()) < 3600


def test_an_id_at_the_end_of_time_still_allows_a_start(tmp_path: Path) -> None:
    (tmp_path / "node.lock").write_text(f"1\n{LAST}\n")
    assert len(str(boot_of(tmp_path))) == 26


def test_a_node_file_that_cannot_be_written_is_restored_later(tmp_path: Path) -> None:
    lock, path = StateLock(tmp_path), tmp_path / "node.json"
    path.mkdir()
    lock.write_node_file(node_file(lock.boot))
    with pytest.raises(OSError, match=r"node\.json"):
        lock.restore_node_file()
    path.rmdir()
    assert lock.restore_node_file()
    assert msgspec.json.decode(path.read_bytes(), type=NodeFile) == node_file(lock.boot)
    lock.release()


def test_digests_of_variables_depend_on_value_name_and_a_private_key(tmp_path: Path) -> None:
    environ = {"A": "secret", "B": "secret", "SPACED": " secret\n", "BLANK": " "}
    names = [*environ, "UNSET"]
    lock, key = StateLock(tmp_path), tmp_path / "node.key"
    digests = lock.digest_variables(names, environ)
    assert variable_digests(tmp_path, names, environ) == digests
    assert variable_digests(tmp_path, ["SPACED"], {"SPACED": "secret"})["SPACED"] == digests["SPACED"]
    assert (digests["BLANK"], digests["UNSET"]) == ("", "")
    assert len({digests["A"], digests["B"], variable_digests(tmp_path, ["A"], {"A": "other"})["A"]}) == 3
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read it"):
        variable_digests(tmp_path, names, environ)
    assert lock.digest_variables(names, environ)["A"] != digests["A"]  # a key that others may have read is replaced
    key.write_text("")
    with pytest.raises(ConfigError, match="damaged"):
        variable_digests(tmp_path, names, environ)
    assert set(lock.digest_variables(names, environ)) == set(names)
    lock.release()
