"""What a disk holds after a power loss: records the file operations of a process, and replays them up to any of them.

The strict model keeps only the data of files and the names in folders that were synced. The lenient model also keeps a
random part of the rest, in any order.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

Lost: TypeAlias = random.Random | Literal["nothing", "unsynced"]

SOURCE = Path(__file__).with_name("disk_log.c")


class DiskLog:
    """Environment variables that make a process log its changes below a folder, and the log."""

    def __init__(self, folder: Path, root: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("install a C compiler (cc) to log the file operations of a process")
        library = folder / "disk_log.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
        subprocess.run(command, check=True, timeout=60)
        self.root = root
        self.path = folder / "disk.log"
        self.environ = {"LD_PRELOAD": str(library), "DISK_LOG": str(self.path), "DISK_ROOT": str(root)}

    @property
    def position(self) -> int:
        """Bytes in the log; an operation with a smaller end took effect before."""
        return self.path.stat().st_size


@dataclass(frozen=True)
class Operation:
    """A record of the log, see ``disk_log.c``; ``path`` is the file or folder, by its first name."""

    kind: str
    args: str
    data: bytes
    end: int
    path: str


def read_log(path: Path) -> list[Operation]:
    operations: list[Operation] = []
    names: dict[str, str] = {}
    with path.open("rb") as file:
        for line in file:
            kind, args = line.decode()[:-1].split(" ", 1)
            data = file.read(int(args.split()[2])) if kind == "W" else b""
            if kind == "C":
                names.update([args.split(" ", 1)])  # type: ignore[list-item]
            name = names.get(args.split()[0], "") if kind in "CWTS" else args
            operations.append(Operation(kind, args, data, file.tell(), name))
    return operations


@dataclass(eq=False)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Offset and data of each write; without data, the new size."""

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.durable, change)
        self.unsynced.clear()

    def content(self, share: float, lost: Lost) -> bytes:
        """Return the data with this share of the unsynced changes."""
        content = bytearray(self.durable)
        for change in self.unsynced:
            if share == 1.0 or (isinstance(lost, random.Random) and lost.random() < share):
                _apply(content, change)
        return bytes(content)


def _apply(content: bytearray, change: tuple[int, bytes | None]) -> None:
    offset, data = change
    content.extend(bytes(max(0, offset - len(content))))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


_Changes = dict[str, "_File | _Folder | None"]


@dataclass(eq=False)
class _Folder:
    entries: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    unsynced: list[_Changes] = field(default_factory=list)

    def change(self, changes: _Changes) -> None:
        _change(self.entries, changes)
        self.unsynced.append(changes)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.unsynced.clear()


def _change(entries: dict[str, _File | _Folder], changes: _Changes) -> None:
    for name, entry in changes.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry


class Disk:
    """A disk to which operations are applied; ``write_to`` creates what it holds after a power loss."""

    def __init__(self, root: Path) -> None:
        self._prefix = f"{root}/"
        self._root = _Folder()
        self._files: dict[int, _File] = {}

    def apply(self, operation: Operation) -> None:
        match operation.kind:
            case "C" | "M":
                number, path = operation.args.split(" ", 1) if operation.kind == "C" else ("0", operation.args)
                entry = _Folder() if operation.kind == "M" else self._files.setdefault(int(number), _File())
                folder, name = self._place(path)
                folder.change({name: entry})
            case "R":
                self._rename(*operation.args.split("\t"))
            case "U":
                folder, name = self._place(operation.args)
                self._forget(folder.entries.get(name))
                folder.change({name: None})
            case "D":
                self._folder(operation.args).sync()
            case _:
                inode, *numbers = map(int, operation.args.split())
                if (file := self._files.get(inode)) is None:
                    return  # it has no name any more
                if operation.kind == "S":
                    file.sync()
                else:
                    file.unsynced.append((numbers[0], operation.data if operation.kind == "W" else None))

    def write_to(self, target: Path, lost: Lost = "unsynced") -> Path:
        """Create the files that survive; a generator of random numbers chooses what is lost in the lenient model."""
        target.mkdir()
        _write(self._root, target, lost)
        return target

    def _rename(self, source: str, target: str) -> None:
        (old, old_name), (new, new_name) = self._place(source), self._place(target)
        entry = old.entries[old_name]
        self._forget(new.entries.get(new_name))
        if old is new:
            old.change({new_name: entry, old_name: None})
        else:
            new.change({new_name: entry})
            old.change({old_name: None})

    def _forget(self, entry: _File | _Folder | None) -> None:
        self._files = {number: file for number, file in self._files.items() if file is not entry}

    def _place(self, path: str) -> tuple[_Folder, str]:
        folder, _, name = path.rpartition("/")
        return self._folder(folder), name

    def _folder(self, path: str) -> _Folder:
        folder = self._root
        for name in filter(None, f"{path}/".removeprefix(self._prefix).split("/")):
            entry = folder.entries[name]
            assert isinstance(entry, _Folder), path
            folder = entry
        return folder


def _write(folder: _Folder, target: Path, lost: Lost) -> None:
    entries = dict(folder.durable)
    n_kept = _choose(lost, range(len(folder.unsynced) + 1))
    for changes in folder.unsynced[: round(n_kept)]:
        _change(entries, changes)
    for name, entry in entries.items():
        path = target / name
        if isinstance(entry, _Folder):
            path.mkdir(mode=0o700)
            _write(entry, path, lost)
        elif not name.endswith("-shm"):  # a memory map without durable data, which is not logged completely
            share = _choose(lost, (0.0, 0.5, 1.0))
            path.write_bytes(entry.content(share, lost))
            path.chmod(0o600)


def _choose(lost: Lost, kept: Sequence[float]) -> float:
    """Return the first, the last or any of these amounts of unsynced changes."""
    if isinstance(lost, random.Random):
        return lost.choice(kept)
    return kept[0] if lost == "unsynced" else kept[-1]


def disks_at_syncs(
    log: DiskLog, *, ignored: Callable[[Operation], bool] = lambda _: False
) -> Iterator[tuple[int, Disk]]:
    """Yield the position and the disk before each sync and at the end; the disk changes with the next iteration.

    Args:
        log: the log of a process.
        ignored: whether an operation has no effect, e.g. the syncs of a broken disk.
    """
    disk, position = Disk(log.root), 0
    for operation in read_log(log.path):
        if operation.kind in "SD":
            yield position, disk
        if not ignored(operation):
            disk.apply(operation)
        position = operation.end
    yield position, disk
