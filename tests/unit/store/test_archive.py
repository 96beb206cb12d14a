"""Archives of episodes: written durably, read with bounds, and part of the index."""

from __future__ import annotations

import os
import struct
import zipfile
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import StoreError
from runner.publish.outbox import Outbox
from runner.store import EpisodeIndex, EpisodeStore, open_index, pruning
from runner.store import archive as archives
from runner.store.archive import Source, read_directory, read_member, write_archive
from runner.store.pruning import BatchInUse, Pruned, archive_episodes, delete_episodes
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


def zips(store: EpisodeStore, batch_id: str) -> list[Path]:
    return sorted((store.runs / batch_id).glob("*.zip"))


def test_archived_episodes_are_read_as_before(episode_store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(episode_store, index)
    before = {each: episode_store.read_bytes(each) for each in ids}
    rows = newest_rows(index)
    pruned = archive_episodes(episode_store, index, batch_id, ids)
    (archive,) = zips(episode_store, batch_id)
    assert folder(episode_store, batch_id) == [archive.name]
    assert pruned.n_episodes == 3
    assert pruned.n_freed == sum(map(len, before.values())) + 500 - archive.stat().st_size
    assert archive.stat().st_mode & 0o777 == 0o600
    assert {each: episode_store.read_bytes(each) for each in ids} == before
    assert episode_store.load(episode_store.path(batch_id, ids[0])).episode_id == ids[0]
    assert newest_rows(index) == rows
    index.reconcile()
    assert (newest_rows(index), index.damaged) == (rows, [])


def test_a_new_index_has_the_rows_of_archives_and_sends_no_event_again(
    episode_store: EpisodeStore, index: EpisodeIndex
) -> None:
    batch_id, ids = record_batch(episode_store, index)
    archive_episodes(episode_store, index, batch_id, ids[1:])
    rows = newest_rows(index)
    index.close()
    (episode_store.data_dir / "index.sqlite").unlink()
    with closing(open_index(episode_store)) as rebuilt:
        assert newest_rows(rebuilt) == rows
        with closing(Outbox(rebuilt)) as outbox:
            assert [event.id for event in outbox.pending("local", 10)] == [f"episode:{ids[0]}"]


def test_unzip_restores_the_files_and_their_rows(episode_store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(episode_store, index)
    archive_episodes(episode_store, index, batch_id, ids)
    (archive,) = zips(episode_store, batch_id)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(episode_store.data_dir)
    assert (episode_store.data_dir / "traces" / f"{batch_id}.pftrace").read_bytes() == b"trace" * 100
    index.reconcile()
    assert len(newest_rows(index)) == 3
    archive.unlink()
    index.reconcile()
    assert len(newest_rows(index)) == 3
    archive_episodes(episode_store, index, batch_id, ids)
    episode_store.path(batch_id, ids[0]).write_bytes(b"{}")  # a damaged file precedes the archive until it is gone
    index.reconcile()
    assert {row.episode_id for row in newest_rows(index)} == {*ids[1:]}
    episode_store.path(batch_id, ids[0]).unlink()
    index.reconcile()
    assert {row.episode_id for row in newest_rows(index)} == {*ids}


def test_a_restored_file_precedes_its_archive_in_a_new_index(episode_store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, (first, *rest) = record_batch(episode_store, index)
    archive_episodes(episode_store, index, batch_id, [first, *rest])
    path = episode_store.path(batch_id, first)
    (stored,) = (row.task_index for row in newest_rows(index) if row.episode_id == first)
    restored = 70 + stored
    path.write_bytes(episode_store.read_bytes(first).replace(b'"task_index":', b'"task_index":7', 1))
    index.close()
    (episode_store.data_dir / "index.sqlite").unlink()
    with closing(open_index(episode_store)) as rebuilt:
        for _ in range(2):
            assert [row.task_index for row in newest_rows(rebuilt) if row.episode_id == first] == [restored]
            rebuilt.reconcile()


@pytest.mark.parametrize("killed_in", ["transaction", "_unlink"])
def test_a_kill_before_the_files_are_deleted_loses_and_doubles_nothing(
    episode_store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    batch_id, ids = record_batch(episode_store, index)
    rows = newest_rows(index)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if killed_in == "_unlink":
            patch.setattr(pruning, "_unlink", kill)
        else:
            patch.setattr(index, "transaction", kill)
        with pytest.raises(KeyboardInterrupt):
            archive_episodes(episode_store, index, batch_id, ids)
    index.reconcile()
    assert newest_rows(index) == rows
    assert archive_episodes(episode_store, index, batch_id, ids).n_episodes == 3
    assert len(zips(episode_store, batch_id)) == 1
    assert [name for name in folder(episode_store, batch_id) if name.endswith(".json")] == []
    index.reconcile()
    assert newest_rows(index) == rows


def test_a_full_disk_leaves_the_files(
    episode_store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id, ids = record_batch(episode_store, index)
    names = folder(episode_store, batch_id)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=r"No space left.*free disk space"):
        archive_episodes(episode_store, index, batch_id, ids)
    assert folder(episode_store, batch_id) == names


def test_links_and_foreign_files_stay(episode_store: EpisodeStore, index: EpisodeIndex, tmp_path: Path) -> None:
    batch_id, ids = record_batch(episode_store, index)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = episode_store.path(batch_id, new_id())
    link.symlink_to(secret)
    foreign = episode_store.runs / batch_id / "notes.txt"
    foreign.write_text("mine")
    with pytest.raises(StoreError):
        archive_episodes(episode_store, index, batch_id, [link.stem])
    archive_episodes(episode_store, index, batch_id, ids)
    assert (secret.read_text(), foreign.read_text(), link.is_symlink()) == ("secret", "mine", True)
    (episode_store.runs / new_id()).symlink_to(tmp_path)  # a batch folder elsewhere is none
    index.reconcile()
    assert len(newest_rows(index)) == 3


def test_a_batch_that_is_played_stays(episode_store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(episode_store, index)
    with episode_store.playing(batch_id), pytest.raises(BatchInUse):
        archive_episodes(episode_store, index, batch_id, ids)
    running = RecordedEpisode(episode_store, index, batch_id=batch_id)
    running.start()
    with pytest.raises(BatchInUse):
        delete_episodes(episode_store, index, batch_id, ids)


def test_large_batches_get_several_archives(
    episode_store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id, ids = record_batch(episode_store, index, 5)
    monkeypatch.setattr(pruning, "MAX_MEMBERS", 4)
    archive_episodes(episode_store, index, batch_id, ids)
    assert [len(read_directory(each)) for each in zips(episode_store, batch_id)] == [2, 2, 2]
    index.reconcile()
    assert len(newest_rows(index)) == 5


def test_deleted_episodes_are_gone_with_their_archives(episode_store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(episode_store, index)
    archive_episodes(episode_store, index, batch_id, ids[:2])
    assert delete_episodes(episode_store, index, batch_id, [ids[0]]) == Pruned()  # its archive has another one
    assert delete_episodes(episode_store, index, batch_id, ids).n_episodes == 3
    assert not (episode_store.runs / batch_id).exists()
    assert not (episode_store.data_dir / "traces" / f"{batch_id}.pftrace").exists()
    assert newest_rows(index) == []
    index.reconcile()
    assert newest_rows(index) == []


def test_a_trace_too_large_for_an_archive_stays_until_the_last_episode_is_deleted(
    episode_store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "MAX_WRITTEN_BYTES", 499)
    deleted, deleted_ids = record_batch(episode_store, index)
    trace = episode_store.data_dir / "traces" / f"{deleted}.pftrace"
    delete_episodes(episode_store, index, deleted, deleted_ids[:2])
    assert trace.exists()
    delete_episodes(episode_store, index, deleted, deleted_ids[2:])
    assert not (episode_store.runs / deleted).exists()
    assert not trace.exists()

    archived, archived_ids = record_batch(episode_store, index)
    trace = episode_store.data_dir / "traces" / f"{archived}.pftrace"
    archive_episodes(episode_store, index, archived, archived_ids)
    assert len(zips(episode_store, archived)) == 3, "each of them has one episode"
    delete_episodes(episode_store, index, archived, archived_ids[:2])
    assert trace.read_bytes() == b"trace" * 100
    delete_episodes(episode_store, index, archived, archived_ids[2:])
    assert not (episode_store.runs / archived).exists()
    assert not trace.exists()


def test_an_archive_with_foreign_files_is_not_deleted(episode_store: EpisodeStore, index: EpisodeIndex) -> None:
    batch_id, ids = record_batch(episode_store, index)
    foreign = episode_store.runs / batch_id / f"{new_id()}.zip"
    with zipfile.ZipFile(foreign, "w") as opened:
        opened.writestr("thesis.txt", "mine")
    other_batch = episode_store.runs / batch_id / f"{new_id()}.zip"
    with zipfile.ZipFile(other_batch, "w") as opened:
        opened.writestr(f"runs/{new_id()}/{ids[0]}.json", "{}")
    assert delete_episodes(episode_store, index, batch_id, ids).n_episodes == 3
    assert zips(episode_store, batch_id) == sorted([foreign, other_batch])


def test_a_damaged_archive_is_reported_each_time_and_hides_no_other(
    episode_store: EpisodeStore, index: EpisodeIndex
) -> None:
    batch_id, ids = record_batch(episode_store, index)
    archive_episodes(episode_store, index, batch_id, ids)
    (archive,) = zips(episode_store, batch_id)
    content = bytearray(archive.read_bytes())
    content[100:110] = bytes(10)  # in the first member
    archive.write_bytes(content)
    for _ in range(2):
        index.reconcile()
        assert len(newest_rows(index)) == 2
        assert len(index.damaged) == 1
    archive.write_bytes(content[:-30])
    for _ in range(2):
        index.reconcile()
        assert newest_rows(index) == []
        assert [damage.path for damage in index.damaged] == [archive]


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
    zip64 = content[:-22] + struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1) + content[-22:]
    (tmp_path / "zip64.zip").write_bytes(zip64)
    with pytest.raises(StoreError):
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
