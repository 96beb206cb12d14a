"""Fuzzes targets in parallel processes for a given time, and reports what each found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.target import ROOT, Target, load_corpus, load_target

STATE: Final = ROOT / ".fuzz"
"""Folder of the grown corpora, logs and findings; not part of the repository."""

SLOW_AFTER_S: Final = 30
"""Seconds after which one input counts as too slow; wide, because the machine may be busy."""
MAX_MEMORY_MB: Final = 1_500

_PROGRESS: Final = re.compile(r"#(\d+)\s.*?cov: (\d+) ft: (\d+) corp: (\d+)/")
_EXECUTIONS: Final = re.compile(r"stat::number_of_executed_units: (\d+)")


class Result(NamedTuple):
    """What fuzzing one target for a while gave."""

    name: str
    seconds: float
    executions: int
    edges: int
    features: int
    corpus: int
    crashes: list[Path]
    error: str

    @property
    def row(self) -> str:
        rate = self.executions / max(self.seconds, 0.001)
        found = f"{len(self.crashes)} found" if self.crashes else self.error or "-"
        numbers = f"{self.seconds:8.0f}{self.executions:12}{rate:9.0f}{self.edges:8}{self.features:10}{self.corpus:8}"
        return f"{self.name:<18}{numbers}  {found}"


HEADING: Final = f"{'target':<18}{'seconds':>8}{'executions':>12}{'per s':>9}{'edges':>8}{'features':>10}{'corpus':>8}"


def run_campaign(names: Sequence[str], seconds: float, jobs: int) -> list[Result]:
    """Fuzz targets in ``jobs`` processes for ``seconds`` of wall-clock time in all, the slowest targets first."""
    targets = sorted(map(load_target, names), key=lambda target: (-target.share, target.name))
    share_s = max(seconds * min(jobs, len(names)) / sum(target.share for target in targets), 1)
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda target: _fuzz(target, target.share * share_s), targets))


def _fuzz(target: Target, seconds: float) -> Result:
    name = target.name
    folder, crashes = STATE / "corpus" / name, STATE / "crashes"
    folder.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(exist_ok=True)
    before = set(crashes.glob(f"{name}-*"))
    write_seeds(name, folder)
    log, started = STATE / f"{name}.log", time.monotonic()
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    # The fuzzer ends its process at once, so the process cannot remove its files.
    with log.open("wb") as output, tempfile.TemporaryDirectory(prefix="fuzz-", dir=in_memory) as scratch:
        options = _options(target, seconds, folder, crashes)
        command = [sys.executable, "-m", "tests.fuzz.worker", *options]
        status = subprocess.run(
            command, cwd=ROOT, stderr=output, env={**os.environ, "TMPDIR": scratch}, check=False
        ).returncode
    text = log.read_text("utf-8", "replace")
    n_executions, edges, features, n_corpus = _last_progress(text)
    new = sorted(set(crashes.glob(f"{name}-*")) - before)
    error = ""
    if not new and "stat::" not in text:
        error = f"ended early with status {status}, see {log.rename(log.with_suffix('.failed.log'))}"
    seconds = time.monotonic() - started
    return Result(name, seconds, n_executions, edges, features, n_corpus, new, error)


def _options(target: Target, seconds: float, folder: Path, crashes: Path) -> list[str]:
    name = target.name
    tokens = STATE / f"{name}.dict"
    tokens.write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens), "ascii")
    return [
        name,
        f"-max_total_time={seconds:.0f}",
        f"-max_len={target.max_len}",
        f"-timeout={SLOW_AFTER_S}",
        f"-rss_limit_mb={MAX_MEMORY_MB}",
        f"-artifact_prefix={crashes}/{name}-",
        *([f"-dict={tokens}"] if target.tokens else []),
        "-print_final_stats=1",
        "-reload=0",
        str(folder),
    ]


def write_seeds(name: str, folder: Path) -> None:
    for data in load_corpus(name):
        (folder / sha1(data).hexdigest()).write_bytes(data)


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


def _last_progress(text: str) -> tuple[int, int, int, int]:
    numbers = [tuple(map(int, match)) for match in _PROGRESS.findall(text)]
    n_executions, edges, features, n_corpus = numbers[-1] if numbers else (0, 0, 0, 0)
    final = _EXECUTIONS.search(text)
    return int(final[1]) if final else n_executions, edges, features, n_corpus
