from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from ulid import ULID

from runner.errors import ConfigError
from runner.node.state_lock import NodeFile, StateLock, variable_digests

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
