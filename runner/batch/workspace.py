"""An open state directory: its episode store, index and traces."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from runner import __version__
from runner.batch.result import FINISHED
from runner.machine.sampler import GpuMeter
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeStore, open_index
from runner.store.archive import trace_member
from runner.tracing import PerfettoFile
from runner.util.clock import Clock, new_ulid


class Workspace:
    """An open state directory; opening it recovers the episodes that a killed process left unfinished.

    Args:
        data_dir: absolute path of the state directory; created with mode 0700 if needed.
        clock: source of all times in stored episodes; by default the clock of this machine.
        reconcile: whether to synchronize the index now, which takes minutes for many new files.

    Attributes:
        meter: measures the GPU energy of each episode; None: it is unknown.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        node: str,
        profile: str,
        clock: Clock | None = None,
        boot: str | None = None,
        reconcile: bool = True,
    ) -> None:
        self.data_dir = data_dir
        self.node = node
        self.profile = profile
        self.boot = boot or new_ulid()
        self.clock = clock or Clock()
        self.meter: GpuMeter | None = None
        self.store = EpisodeStore(data_dir)
        self.recovered: list[EpisodeRecord] = self.store.recover(self.clock)
        self.index: EpisodeIndex = open_index(self.store, reconcile=reconcile)

    @property
    def versions(self) -> dict[str, str]:
        return {"agentgym-console": __version__, "python": platform.python_version()}

    @contextmanager
    def playing(self, batch_id: str) -> Iterator[None]:
        measuring = nullcontext() if self.meter is None else self.meter.measuring()
        with measuring, self.store.playing(batch_id):
            yield

    def n_finished(self, batch_id: str) -> int:
        """Return the number of stored episodes of a batch that need not be played again."""
        query = f"SELECT count(*) FROM episodes WHERE batch_id = ? AND {FINISHED}"
        ((count,),) = self.index.select(query, (batch_id,))
        return int(count)

    def trace_file(self, batch_id: str) -> PerfettoFile:
        return PerfettoFile(self.data_dir / trace_member(batch_id), boot=self.boot)

    def close(self) -> None:
        self.index.close()
