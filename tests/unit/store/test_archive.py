"""Archives of episodes: written durably, read with bounds, and part of the index."""

from __future__ import annotations

import os
import signal
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import StoreError
from runner.publish.outbox import Ack, Outbox
from runner.store import EpisodeIndex, EpisodeStore, open_index, pruning
from runner.store import archive as archives
from runner.store.archive import Source, read_directory, read_member, write_archive
from runner.store.index_schema import EpisodeRow
from runner.store.pruning import BatchInUse, archive_episodes, delete_episodes
from runner.util.files import replace_file
from tests.support.episodes import RecordedEpisode, new_id, newest_rows
from tests.support.examples import examples


def record_batch(store: EpisodeStore, index: EpisodeIndex, n: int = 3) -> tuple[str, list[str]]:
    """Store episodes and the trace of a batch; return its id and theirs."""
    batch_id = new_id()
    for number in range(n):
        RecordedEpisode(store, index, batch_id=batch_id, task_index=number).record_episode()
    traces = store.data_dir / "traces"
    traces.mkdir(exist_ok=True)
    (traces / f"{batch_id}.pftrace").write_bytes(b"trace" * 100)
    return batch_id, [row.episode_id for row in newest_rows(index) if row.batch_id == batch_id]


def folder(store: EpisodeStore, batch_id: str) -> list[str]:
    return sorted(path.name for path in (store.runs / batch_id).iterdir())


def members(store: EpisodeStore, batch_id: str) -> set[str]:
    """Return the names without folders of what the archive of a batch has."""
    with zipfile.ZipFile(store.archive_path(batch_id)) as opened:
        assert opened.testzip() is None
        names = [name.rpartition("/")[2] for name in opened.namelist()]
    assert len({*names}) == len(names), "a member is there twice"
    return {*names}


def rebuilt_rows(store: EpisodeStore) -> list[EpisodeRow]:
    """Return the rows of a new index, and check that another look at the files changes nothing."""
    (store.data_dir / "index.sqlite").unlink()
    with closing(open_index(store)) as rebuilt:
        rows = newest_rows(rebuilt)
        rebuilt.reconcile()
        assert (newest_rows(rebuilt), rebuilt.damaged) == (rows, [])
    return rows


def test_archived_episodes_are_read_as_before(store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(store, index)
    before = {each: store.read_bytes(each) for each in ids}
    rows = newest_rows(index)
    n_freed = archive_episodes(store, index, batch_id, ids)
    archive = store.archive_path(batch_id)
    assert folder(store, batch_id) == [archive.name]
    assert n_freed == sum(map(len, before.values())) + 500 - archive.stat().st_size
    assert archive.stat().st_mode & 0o777 == 0o600
    assert {each: store.read_bytes(each) for each in ids} == before
    assert store.load(store.path(batch_id, ids[0])).episode_id == ids[0]
    assert newest_rows(index) == rows
    index.reconcile()
    assert (newest_rows(index), index.damaged) == (rows, [])


def test_a_new_index_has_the_rows_of_archives_and_sends_no_event_again(
    store: EpisodeStore, index: EpisodeIndex
) -> None:
    batch_id, ids = record_batch(store, index)
    archive_episodes(store, index, batch_id, ids[1:])
    rows = newest_rows(index)
    index.close()
    (store.data_dir / "index.sqlite").unlink()
    with closing(open_index(store)) as rebuilt:
        assert newest_rows(rebuilt) == rows
        with closing(Outbox(rebuilt)) as outbox:
            assert [event.id for event in outbox.pending("local", 10)] == [f"episode:{ids[0]}"]


def test_unzip_restores_the_files_and_their_rows(store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(store, index)
    archive_episodes(store, index, batch_id, ids)
    archive = store.archive_path(batch_id)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(store.data_dir)
    assert (store.data_dir / "traces" / f"{batch_id}.pftrace").read_bytes() == b"trace" * 100
    index.reconcile()
    assert len(newest_rows(index)) == 3
    archive.unlink()
    index.reconcile()
    assert len(newest_rows(index)) == 3
    archive_episodes(store, index, batch_id, ids)
    replace_file(store.path(batch_id, ids[0]), b"{}")  # a damaged file precedes the archive until it is gone
    index.reconcile()
    assert {row.episode_id for row in newest_rows(index)} == {*ids[1:]}
    store.path(batch_id, ids[0]).unlink()
    index.reconcile()
    assert {row.episode_id for row in newest_rows(index)} == {*ids}


def test_a_restored_file_precedes_its_archive_and_replaces_its_member(store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, (first, *rest) = record_batch(store, index)
    archive_episodes(store, index, batch_id, [first, *rest])
    path = store.path(batch_id, first)
    (stored,) = (row.task_index for row in newest_rows(index) if row.episode_id == first)
    content = store.read_bytes(first).replace(b'"task_index":', b'"task_index":7', 1)
    path.write_bytes(content)
    index.reconcile()
    for archived in (False, True):
        if archived:
            archive_episodes(store, index, batch_id, [first])
            assert not path.exists() and len(members(store, batch_id)) == 4
        assert store.read_bytes(first) == content
        assert [row.task_index for row in newest_rows(index) if row.episode_id == first] == [70 + stored]
    assert [row.task_index for row in rebuilt_rows(store) if row.episode_id == first] == [70 + stored]


def killed_at_step(n: int, data_dir: Path, work: Callable[[EpisodeStore, EpisodeIndex], object]) -> bool:
    """Work in a process that is killed before it opens, renames or removes a file for the n-th time.

    Returns whether that came to pass.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child uses nothing of other threads
        child = os.fork()
    if child == 0:
        n_left = n

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal n_left
            if event in ("open", "os.rename", "os.remove") and str(arguments[0]).startswith(str(data_dir)):
                n_left -= 1
                if n_left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            store = EpisodeStore(data_dir)
            index = open_index(store)
            sys.addaudithook(count)
            work(store, index)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("n_archived", [0, 1])
def test_a_kill_at_any_step_of_archiving_loses_and_doubles_nothing(
    store: EpisodeStore, index: EpisodeIndex, n_archived: int
) -> None:
    batch_id, ids = record_batch(store, index)
    Outbox(index).ack("local", [Ack(f"episode:{ids[-1]}", "S", 1)])
    archive_episodes(store, index, batch_id, ids[:n_archived])
    rows, pending = newest_rows(index), Outbox(index).pending("local", 9)
    contents = {each: store.read_bytes(each) for each in ids}
    index.close()
    n_kills = 0

    def archive_files(store: EpisodeStore, index: EpisodeIndex) -> None:
        archive_episodes(store, index, batch_id, [each for each in ids if store.path(batch_id, each).exists()])

    while killed_at_step(n_kills, store.data_dir, archive_files):
        n_kills += 1
        with closing(open_index(store)) as after:
            assert (newest_rows(after), Outbox(after).pending("local", 9)) == (rows, pending)
        assert {each: EpisodeStore(store.data_dir).read_bytes(each) for each in ids} == contents
    assert n_kills > 8
    assert not (store.data_dir / "traces" / f"{batch_id}.pftrace").exists()
    assert folder(store, batch_id) == ["archive.zip"]
    assert len(members(store, batch_id)) == 4
    assert rebuilt_rows(store) == rows


def test_a_kill_at_any_step_of_deleting_loses_no_other_episode(store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, (a, b, c) = record_batch(store, index)
    archive_episodes(store, index, batch_id, [a, b])
    kept = [row for row in newest_rows(index) if row.episode_id == b]
    index.close()
    n_kills = 0
    while killed_at_step(n_kills, store.data_dir, lambda store, index: delete_episodes(store, index, batch_id, [a, c])):
        n_kills += 1
        with closing(open_index(store)) as after:
            assert [row for row in newest_rows(after) if row.episode_id == b] == kept
    assert n_kills > 4
    assert members(store, batch_id) == {f"{b}.json"}
    assert rebuilt_rows(store) == kept


def test_a_full_disk_leaves_the_files(
    store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id, ids = record_batch(store, index)
    names = folder(store, batch_id)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=r"No space left.*free disk space"):
        archive_episodes(store, index, batch_id, ids)
    assert folder(store, batch_id) == names


def test_links_and_foreign_files_stay(store: EpisodeStore, index: EpisodeIndex, tmp_path: Path) -> None:
    batch_id, ids = record_batch(store, index)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = store.path(batch_id, new_id())
    link.symlink_to(secret)
    foreign = store.runs / batch_id / "notes.txt"
    foreign.write_text("mine")
    with pytest.raises(StoreError):
        archive_episodes(store, index, batch_id, [link.stem])
    archive_episodes(store, index, batch_id, ids)
    assert (secret.read_text(), foreign.read_text(), link.is_symlink()) == ("secret", "mine", True)
    (store.runs / new_id()).symlink_to(tmp_path)  # a batch folder elsewhere is none
    index.reconcile()
    assert len(newest_rows(index)) == 3


def test_a_batch_that_is_played_stays(store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(store, index)
    with store.playing(batch_id), pytest.raises(BatchInUse):
        archive_episodes(store, index, batch_id, ids)
    running = RecordedEpisode(store, index, batch_id=batch_id)
    running.start()
    with pytest.raises(BatchInUse):
        delete_episodes(store, index, batch_id, ids)


def test_an_archive_that_would_be_too_large_leaves_the_files(
    store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id, ids = record_batch(store, index)
    archive_episodes(store, index, batch_id, ids[:1])
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)  # the trace is the fourth
    with pytest.raises(StoreError, match="more than 3 files"):
        archive_episodes(store, index, batch_id, ids[1:])
    index.reconcile()
    assert len(newest_rows(index)) == 3
    assert len(folder(store, batch_id)) == 3


def test_deleted_episodes_are_gone_from_their_archive(store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(store, index)
    archive_episodes(store, index, batch_id, ids[:2])
    delete_episodes(store, index, batch_id, [ids[0]])
    assert members(store, batch_id) == {f"{ids[1]}.json"}
    index.reconcile()
    assert {row.episode_id for row in newest_rows(index)} == {*ids[1:]}
    delete_episodes(store, index, batch_id, ids[1:])
    assert not (store.runs / batch_id).exists()
    assert not (store.data_dir / "traces" / f"{batch_id}.pftrace").exists()
    assert newest_rows(index) == []
    index.reconcile()
    assert newest_rows(index) == []


def test_a_trace_too_large_for_an_archive_stays_until_the_last_episode_is_deleted(
    store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "MAX_TRACE_BYTES", 499)
    for archived in (False, True):
        batch_id, ids = record_batch(store, index)
        trace = store.data_dir / "traces" / f"{batch_id}.pftrace"
        if archived:
            archive_episodes(store, index, batch_id, ids)
        delete_episodes(store, index, batch_id, ids[:2])
        assert trace.read_bytes() == b"trace" * 100
        delete_episodes(store, index, batch_id, ids[2:])
        assert not (store.runs / batch_id).exists()
        assert not trace.exists()


def test_what_is_not_ours_in_an_archive_stays(store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(store, index)
    archive_episodes(store, index, batch_id, ids)
    with zipfile.ZipFile(store.archive_path(batch_id), "a") as opened:
        opened.writestr("thesis.txt", "mine")
        opened.writestr(f"runs/{new_id()}/{ids[0]}.json", "{}")
    delete_episodes(store, index, batch_id, ids)
    assert members(store, batch_id) == {"thesis.txt", f"{ids[0]}.json", f"{batch_id}.pftrace"}
    index.reconcile()
    assert newest_rows(index) == []
    assert [each.path for each in index.damaged] == [store.archive_path(batch_id)]


def test_a_damaged_archive_is_reported_each_time_and_hides_no_other(store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(store, index)
    archive_episodes(store, index, batch_id, ids[:2])
    archive = store.archive_path(batch_id)
    other = archive.with_name(f"{new_id()}.zip")
    other.write_bytes(archive.read_bytes())
    content = bytearray(archive.read_bytes())
    index.close()
    for damaged, n_rows in ((content[:100] + bytes(10) + content[110:], 2), (content[:-30], 1)):
        replace_file(archive, bytes(damaged))
        (store.data_dir / "index.sqlite").unlink()
        with closing(open_index(store)) as rebuilt:
            for _ in range(2):
                assert len(newest_rows(rebuilt)) == n_rows
                assert {each.path for each in rebuilt.damaged} == {archive, other}
                rebuilt.reconcile()
            with pytest.raises(StoreError):
                archive_episodes(store, rebuilt, batch_id, ids)
        assert archive.read_bytes() == damaged
        assert store.path(batch_id, ids[2]).exists()


def write_zip(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as opened:
        for name, content in members:
            opened.writestr(name, content)
    return path


def test_bounds_of_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = write_zip(tmp_path / "bomb.zip", ("a.json", bytes(1 << 20)))
    member = read_directory(bomb)["a.json"]
    with pytest.raises(StoreError, match="larger than"):
        read_member(bomb, member, max_bytes=1000)
    with pytest.raises(StoreError, match="checksum"):  # the directory lies about the size
        read_member(bomb, member._replace(size=10))
    many = write_zip(tmp_path / "many.zip", *((f"{n}.json", b"{}") for n in range(30)))
    monkeypatch.setattr(archives, "MAX_MEMBERS", 20)
    with pytest.raises(StoreError, match="more than 20 files"):
        read_directory(many)
    content = many.read_bytes()
    for n_members, offset in ((30, len(content) - 22), (10, len(content) - 21)):  # too many, and in another place
        n_bytes, start = struct.unpack("<LL", content[-10:-2])
        end_64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, n_members, n_members, n_bytes, start)
        locator = struct.pack("<4sLQL", b"PK\6\7", 0, offset, 1)
        (tmp_path / "zip64.zip").write_bytes(content[:-22] + end_64 + locator + content[-22:])
        with pytest.raises(StoreError, match=r"more than 20 files|cannot be found"):
            read_directory(tmp_path / "zip64.zip")
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1 << 10)
    with pytest.raises(StoreError, match="GiB"):
        read_directory(write_zip(tmp_path / "large.zip", ("a.json", bytes(2000))))
    with pytest.raises(StoreError, match="unknown way"):
        lzma = write_zip(tmp_path / "lzma.zip", ("a.json", b"{}"), method=zipfile.ZIP_LZMA)
        read_member(lzma, read_directory(lzma)["a.json"])
    (tmp_path / "link.zip").symlink_to(bomb)
    os.mkfifo(tmp_path / "pipe.zip")
    for name in ("link.zip", "pipe.zip", "missing.zip"):
        with pytest.raises(StoreError):
            read_directory(tmp_path / name)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = write_zip(tmp_path / "a.zip", ("runs/x/y.json", b'{"a": 1}' * 50), ("b", b""))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(data.draw(st.sampled_from([bytes(content), bytes(content[: data.draw(st.integers(0, 200))])])))
    try:
        for member in read_directory(path).values():
            assert len(read_member(path, member, max_bytes=10_000)) == member.size
    except StoreError:
        pass


def test_an_archive_is_checked_before_it_counts(tmp_path: Path) -> None:
    source = tmp_path / "a.json"
    source.write_bytes(msgspec.json.encode({"a": 1}))
    write_archive(tmp_path / "a.zip", [Source("runs/a.json", source)])
    assert read_member(tmp_path / "a.zip", read_directory(tmp_path / "a.zip")["runs/a.json"]) == source.read_bytes()
    with pytest.raises(StoreError, match="cannot be written"):
        write_archive(tmp_path / "b.zip", [Source("a", source), Source("b", tmp_path / "missing")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.zip"]
