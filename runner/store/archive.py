"""Archives of episodes: one zip file for each batch, with its files compressed one by one.

``unzip`` in the state directory restores the members of ``runs/<batch_id>/archive.zip``. Reading is bounded, because an
archive may come from elsewhere.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from runner.errors import StoreError
from runner.util.files import MAX_FILE_BYTES, replacing_file

if TYPE_CHECKING:
    import zipfile  # loads several compression modules, so it is imported where it is used

NAME: Final = "archive.zip"
MAX_MEMBERS: Final = 65_000
"""Maximum number of members of an archive that is read or written."""
MAX_DIRECTORY_BYTES: Final = 8 << 20
MAX_UNPACKED_BYTES: Final = 64 << 30
episode_member: Final = "runs/{}/{}.json".format
tokens_member: Final = "runs/{}/{}.tokens".format
"""Both take the ids of batch and episode, ``trace_member`` that of a batch."""
trace_member: Final = "traces/{}.pftrace".format

_END = struct.Struct("<4s4H2LH")
_LOCAL = struct.Struct("<4s5H3L2H")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_STORED, _DEFLATED, _ZSTD, _ENCRYPTED = 0, 8, 93, 0x1
_PART_BYTES: Final = 1 << 20
_MAX_WINDOW_BYTES: Final = 128 << 20
"""Memory in which data compressed with zstd may refer back."""
NEEDS_ZSTANDARD: Final = (
    "it is compressed with zstd, which needs the package zstandard; install it with: "
    "pip install 'agentgym-console[inspect]'"
)


class Member(NamedTuple):
    """A file in an archive; where the archive comes from elsewhere, its ``name`` (the path in it) is outside text."""

    name: str
    size: int
    crc: int
    offset: int
    n_packed: int
    method: int


class Source(NamedTuple):
    name: str
    path: Path


def read_directory(archive: Path) -> Mapping[str, Member]:
    """Return the members of an archive by name; the last of several with one name counts.

    Raises ``StoreError`` if it is missing, unreadable, not a zip file, or exceeds the bounds.
    """
    return _read_directory(archive, *_stamp(archive))


def read_episodes(archive: Path) -> Mapping[str, Member]:
    """Return the episode files by name without folders; raises like ``read_directory``."""
    return _read_episodes(archive, *_stamp(archive))


def _stamp(archive: Path) -> tuple[int, int, int]:
    try:
        status = archive.stat(follow_symlinks=False)
    except OSError as exc:
        raise _unreadable(archive, exc) from exc
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4)
def _read_episodes(archive: Path, *stamp: int) -> Mapping[str, Member]:
    members = _read_directory(archive, *stamp).values()
    return {member.name.rpartition("/")[2]: member for member in members if member.name.endswith(".json")}


@lru_cache(maxsize=4)  # thousands of members are read one after another
def _read_directory(archive: Path, _inode: int, _size: int, _mtime_ns: int) -> Mapping[str, Member]:
    try:
        descriptor = os.open(archive, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{archive} is not a regular file; move it away")
            return _members(archive, file)
    except OSError as exc:
        raise _unreadable(archive, exc) from exc


def _members(archive: Path, file: IO[bytes]) -> Mapping[str, Member]:
    import zipfile

    _check_bounds(archive, file.fileno())
    try:
        with zipfile.ZipFile(file) as opened:
            # no folders; ZipInfo.is_dir fails for an empty name
            files = [info for info in opened.infolist() if not info.filename.endswith("/")]
            members = {info.filename: _member(info) for info in files}
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError) as exc:
        raise StoreError(f"{archive} is damaged: {exc}; restore it or move it away") from exc
    if sum(member.size for member in members.values()) > MAX_UNPACKED_BYTES:
        raise StoreError(
            f"{archive} has more than {MAX_UNPACKED_BYTES >> 30} GiB of files; unpack it and open the folder"
        )
    return members


def _check_bounds(archive: Path, descriptor: int) -> None:
    """Read the end of the directory, before the whole directory is read; zip files with a comment are refused."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _LOCATOR.size + _END.size, max(size - _LOCATOR.size - _END.size, 0))
    end = tail[-_END.size :]
    if len(end) < _END.size or not end.startswith(b"PK\5\6"):
        raise StoreError(
            f"{archive} is damaged or no archive of episodes: its end is missing; restore it or move it away"
        )
    _, _, _, _, n_members, n_directory, _, _ = _END.unpack(end)
    if len(tail) == _LOCATOR.size + _END.size and tail.startswith(b"PK\6\7"):  # numbers of 64 bits replace these
        place = size - len(tail) - _END_64.size
        end_64 = os.pread(descriptor, _END_64.size, max(place, 0))
        # elsewhere, some versions of zipfile would find others
        if _LOCATOR.unpack_from(tail)[2] != place or not end_64.startswith(b"PK\6\6"):
            raise StoreError(f"{archive} is damaged: its directory cannot be found; restore it or move it away")
        *_, n_members, n_directory, _ = _END_64.unpack(end_64)
    if n_members > MAX_MEMBERS or n_directory > MAX_DIRECTORY_BYTES:
        raise StoreError(
            f"{archive} has more than {MAX_MEMBERS} files, or names that are too long; unpack it and open the folder"
        )


def _member(info: zipfile.ZipInfo) -> Member:
    method = -1 if info.flag_bits & _ENCRYPTED else info.compress_type
    return Member(info.filename, info.file_size, info.CRC, info.header_offset, info.compress_size, method)


def read_member(archive: Path, member: Member, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    where = f"{archive}: {PurePosixPath(member.name).name!r}"
    if member.size > max_bytes or member.n_packed > max_bytes:
        raise StoreError(f"{where} is larger than {max_bytes} bytes; unpack it")
    try:
        descriptor = os.open(archive, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            packed = _read_packed(descriptor, member)
        finally:
            os.close(descriptor)
        return _unpack(packed, member)
    except OSError as exc:
        raise _unreadable(archive, exc) from exc
    except (ValueError, zlib.error, struct.error, OverflowError) as exc:
        raise StoreError(f"{where} is damaged: {exc}; restore the archive or move it away") from exc


def _read_packed(descriptor: int, member: Member) -> bytes:
    header = os.pread(descriptor, _LOCAL.size, member.offset)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
        raise ValueError("its header is missing")
    *_, n_name, n_extra = _LOCAL.unpack(header)
    packed = os.pread(descriptor, member.n_packed, member.offset + _LOCAL.size + n_name + n_extra)
    if len(packed) < member.n_packed:
        raise ValueError("it is truncated")
    return packed


def _unpack(packed: bytes, member: Member) -> bytes:
    """Return the content; at most one byte more than announced is unpacked."""
    if member.method == _DEFLATED:
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, member.size + 1)
    elif member.method == _STORED:
        content = packed
    elif member.method == _ZSTD:
        content = _unpack_zstd(packed, member.size + 1)
    else:
        raise ValueError("it is encrypted or compressed in an unknown way")
    if len(content) != member.size or zlib.crc32(content) != member.crc:
        raise ValueError("its checksum differs")
    return content


def _unpack_zstd(packed: bytes, max_bytes: int) -> bytes:
    """Return at most ``max_bytes``; raises ``ValueError`` if the data is damaged."""
    try:
        import zstandard
    except ImportError as exc:
        raise StoreError(NEEDS_ZSTANDARD) from exc
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    try:
        with decompressor.stream_reader(packed, read_across_frames=True) as reader:
            content: bytes = reader.read(max_bytes)
    except zstandard.ZstdError as exc:
        raise ValueError(str(exc)) from exc
    return content


def write_archive(archive: Path, sources: Sequence[Source], without: Collection[str] = ()) -> None:
    """Add files to an archive, which may be new, and leave members out: it is on the disk and read back, or as before.

    Raises ``StoreError`` if a file cannot be read or is a link, the archive cannot be read or written or has other
    content, or it would be too large to be read.
    """
    import zipfile

    expected = {each.name: each[1:3] for each in read_directory(archive).values()} if archive.exists() else {}
    if len(expected) + len(sources) > MAX_MEMBERS:
        raise StoreError(f"{archive} would have more than {MAX_MEMBERS} files; delete episodes instead")
    try:
        with replacing_file(archive) as file:
            if expected:
                _copy_members(archive, file, without)
            with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as opened:
                added = {source.name: _add(opened, source) for source in sources}
            expected = {name: each for name, each in expected.items() if name not in without} | added
            _check_written(archive, file, expected)
    except OSError as exc:
        raise StoreError(f"{archive} cannot be written: {exc}; free disk space or check the permissions") from exc
    except (zipfile.BadZipFile, zipfile.LargeZipFile, ValueError, zlib.error) as exc:
        raise StoreError(f"{archive} cannot be written: {exc}; check the disk") from exc


def _copy_members(archive: Path, file: IO[bytes], without: Collection[str]) -> None:
    from zipfile import ZipFile

    with archive.open("rb") as old:
        if not without:
            shutil.copyfileobj(old, file, _PART_BYTES)
            return
        with ZipFile(old) as opened, ZipFile(file, "w") as new:
            for info in opened.infolist():
                if info.filename not in without:
                    with opened.open(info) as source, new.open(_new_info(info.filename), "w") as target:
                        shutil.copyfileobj(source, target, _PART_BYTES)


def _add(opened: zipfile.ZipFile, source: Source) -> tuple[int, int]:
    with opened.open(_new_info(source.name), "w") as member:
        return _read_parts(source.path, member.write)


def _new_info(name: str) -> zipfile.ZipInfo:
    from zipfile import ZipInfo

    info = ZipInfo(name)  # with a fixed time: the episode has its own
    info.compress_type, info.external_attr = _DEFLATED, (stat.S_IFREG | 0o600) << 16
    return info


def _check_written(archive: Path, file: IO[bytes], expected: Mapping[str, tuple[int, int]]) -> None:
    from zipfile import ZipFile

    file.flush()
    with ZipFile(file) as opened:
        if (damaged := opened.testzip()) is not None:
            raise ValueError(f"{damaged} could not be read back")
    if {each.name: each[1:3] for each in _members(archive, file).values()} != expected:
        raise ValueError("it has other content than was written")


def file_checksum(path: Path) -> tuple[int, int]:
    """Return size and CRC-32 of a regular file; raises ``OSError`` if it cannot be read."""
    return _read_parts(path, len)


def _read_parts(path: Path, take: Callable[[bytes], object]) -> tuple[int, int]:
    size = crc = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"{path} is not a regular file")
        while part := file.read(_PART_BYTES):
            take(part)
            size, crc = size + len(part), zlib.crc32(part, crc)
    return size, crc


def _unreadable(archive: Path, exc: OSError) -> StoreError:
    return StoreError(f"{archive} cannot be read: {exc.strerror}; check that it exists and that you own it")
