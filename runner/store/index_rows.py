"""Episode files as rows of the index; many are read by several processes, as after the loss of the index.

``python -m runner.store.index_rows DATA_DIR`` reads parts of episodes at its standard input, and prints a frame
for each.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from runner.errors import StoreError
from runner.store.episode_store import EpisodeFile, EpisodeStore
from runner.store.index_schema import episode_row, to_columns
from runner.util.child_process import ChildProcess
from runner.util.framing import FrameBuffer, FrameTooLarge, framed
from runner.util.safe_values import escape_surrogates

MANY: Final = 2_000
"""Number of episodes from which on other processes read them; one needs half a second to start."""
MAX_PROCESSES: Final = 8
MAX_WAIT_S: Final = 10.0
"""Seconds after which a process that sends nothing is given up, and its episodes are read here."""


class Rows(msgspec.Struct, frozen=True):
    """The rows of some episodes, and those of damaged files."""

    rows: list[list[Any]]
    damaged: list[list[Any]]


_PARTS: Final = msgspec.msgpack.Decoder(list[list[EpisodeFile]])
_ROWS: Final = msgspec.msgpack.Decoder(Rows)


def read_rows(store: EpisodeStore, parts: Sequence[Sequence[EpisodeFile]]) -> Generator[Rows]:
    """Yield the rows of each part; the episodes of a process that dies or hangs are read here."""
    n_processes = min(os.cpu_count() or 1, MAX_PROCESSES) if sum(map(len, parts)) > MANY else 0
    with ExitStack() as stack:
        children = [stack.enter_context(_started(store, parts[n::n_processes])) for n in range(n_processes)]
        readers = [_received(child) for child in children] or [iter(())]
        for number, part in enumerate(parts):
            yield next(readers[number % len(readers)], None) or _read(store, part)


@contextmanager
def _started(store: EpisodeStore, parts: Sequence[Sequence[EpisodeFile]]) -> Iterator[ChildProcess | None]:
    """Yield a process that reads parts of episodes; None if there is no room for one."""
    command = [sys.executable, "-P", "-m", __name__, str(store.data_dir)]
    environ = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        with tempfile.TemporaryFile() as input:
            input.write(msgspec.msgpack.encode(parts))
            input.seek(0)
            child = ChildProcess(command, environ, stdin=input.fileno(), stdout=subprocess.PIPE)
    except OSError:
        yield None
        return
    assert child.stdout is not None
    with child.stdout:
        try:
            yield child
        finally:
            child.kill()
            child.wait()


def _received(child: ChildProcess | None) -> Iterator[Rows]:
    if child is None or child.stdout is None:
        return
    buffer, descriptor, poll = FrameBuffer(), child.stdout.fileno(), select.poll()
    poll.register(descriptor, select.POLLIN)
    with suppress(FrameTooLarge, msgspec.MsgspecError):  # something else prints
        while poll.poll(MAX_WAIT_S * 1000) and (data := os.read(descriptor, 1 << 20)):
            yield from map(_ROWS.decode, buffer.feed(data))


def _read(store: EpisodeStore, files: Sequence[EpisodeFile]) -> Rows:
    found = Rows([], [])
    for file in files:
        try:
            record = store.load(store.path(file.batch_id, file.episode_id))
            is_settled = file.is_archived or record.origin is not None
            found.rows.append(to_columns(episode_row(record), file, settled=is_settled))
        except StoreError as exc:
            reason = escape_surrogates(str(exc))
            found.damaged.append([file.episode_id, file.batch_id, file.size, file.mtime_ns, reason])
    return found


def main() -> None:
    store = EpisodeStore(Path(sys.argv[1]))
    for part in _PARTS.decode(sys.stdin.buffer.read()):
        sys.stdout.buffer.write(framed(msgspec.msgpack.encode(_read(store, part))))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
