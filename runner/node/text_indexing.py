"""The full-text index of a node grows in a process of the lowest priority, so that playing does not notice it.

    python -P -m runner.node.text_indexing DATA_DIR REST

The process adds the episodes that the index lacks, rests ``REST`` times as long as it works, and ends; before, if the
node has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from runner.errors import StoreError
from runner.store import EpisodeStore
from runner.store.index import FILE_NAME
from runner.store.text_index import FILE_NAME as TEXT_NAME
from runner.store.text_index import TextIndex, is_current, read_stamps
from runner.util.sqlite import file_id, file_state

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
"""Seconds between two checks for new episodes."""
INTERVALS_WHILE_PLAYING: Final = 6
"""While episodes play, only every such check starts the process."""
REST: Final = 1.0
REST_WHILE_PLAYING: Final = 9.0
LOWEST_PRIORITY: Final = 19


async def index_texts(data_dir: Path, is_idle: Callable[[], bool], *, interval_s: float = INTERVAL_S) -> None:
    """Add the texts of new episodes to the full-text index at intervals, until cancelled."""
    seen, n_skipped = None, 0
    while True:
        await asyncio.sleep(interval_s)
        state = (file_state(data_dir / FILE_NAME), file_id(data_dir / TEXT_NAME))
        if state == seen:
            continue
        if await asyncio.to_thread(is_current, data_dir):
            seen = state
            continue
        idle = is_idle()
        n_skipped += 1
        if idle or n_skipped >= INTERVALS_WHILE_PLAYING:
            n_skipped = 0
            await _run(data_dir, REST if idle else REST_WHILE_PLAYING)
            seen = (state[0], file_id(data_dir / TEXT_NAME))


async def _run(data_dir: Path, rest: float) -> None:
    command = (sys.executable, "-P", "-m", __name__, str(data_dir), str(rest))
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


def main(data_dir: Path, rest: float) -> None:
    os.nice(LOWEST_PRIORITY)
    parent = os.getppid()

    def go_on(seconds: float) -> bool:
        time.sleep(rest * seconds)
        return os.getppid() == parent

    try:
        with closing(TextIndex.of(EpisodeStore(data_dir))) as text_index:
            stamps, is_all = read_stamps(data_dir, text_index.summary())
            text_index.build(stamps, go_on, is_all=is_all)
    except StoreError as exc:
        logger.warning("texts cannot be searched for: %s", exc)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
