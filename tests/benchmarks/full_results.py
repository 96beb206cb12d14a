"""Time until the console shows the results of 100,000 stored episodes, and a matrix of 200 tasks with 16 attempts."""

from __future__ import annotations

import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import psutil
from ulid import ULID

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.client.node_folder import read_node_file
from runner.store import EpisodeStore, open_index
from runner.types import Limits
from tests.benchmarks.measure import CONSOLE, Row, quartiles
from tests.support.batches import resolved_batch
from tests.support.command import REPOSITORY
from tests.support.terminal import Terminal, terminal_environ

N_PLAYED, N_STORED = 10_000, 100_000
N_TASKS, N_ATTEMPTS = 200, 16
N_PER_BATCH: Final = N_TASKS * N_ATTEMPTS
N_STARTS: Final = 3
MAX_S: Final = 0.3

PLAYERS: Final = (("Maze", "oracle"), ("Maze", "random"), ("TextCraft", "random"), ("Wordle", "random"))
MODELS: Final = ("qwen35_9b", "llama4-scout", "gpt-oss-120b")
"""Models that copies of random episodes name, so that there are rows of models."""

_PLAYER: Final = re.compile(rb'"(?:env|agent)":"[^"]*"')
_WORD: Final = re.compile(r'(?<="content":")[^"\\]*(?=")')


def run() -> list[Row]:
    """Store the episodes, then start the console a few times."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder, "state")
        store_copies(data_dir, play(data_dir), N_STORED)
        open_index(EpisodeStore(data_dir)).close()
        times = [_open(data_dir) for _ in range(N_STARTS + 1)][1:]  # the first start compiles the modules
    results, batches, matrix = zip(*times, strict=True)
    name = f"{N_STORED:,} stored episodes: Results"
    return [
        _row(f"{name}, key to rows", results),
        _row(f"{name} by batch, key to rows", batches),
        _row(f"{name}, matrix of {N_TASKS} x {N_ATTEMPTS}, key to attempts", matrix),
    ]


def _row(name: str, times_s: Sequence[float]) -> Row:
    low, median, high = quartiles(times_s)
    spread = f"{name} ({1000 * low:.0f}-{1000 * high:.0f}), wall"
    return Row(spread, f"{1000 * median:.0f} ms", f"<= {1000 * MAX_S:.0f} ms", statistics.median(times_s) <= MAX_S)


def play(data_dir: Path) -> list[bytes]:
    """Play ``N_PLAYED`` episodes, remove their files and return their contents."""
    workspace = Workspace(data_dir, node="bench", profile="bench")
    for env, agent in PLAYERS:
        spec = resolved_batch(
            env=env, agent=agent, repeat=N_PLAYED // len(PLAYERS), limits=Limits(max_rounds=15), tracing="off"
        )
        Batch(spec, workspace).run()
    workspace.close()
    contents: list[bytes] = []
    for path in sorted(data_dir.glob("runs/*/*.json")):
        contents.append(path.read_bytes())
        path.unlink()
    return contents


def store_copies(data_dir: Path, contents: Sequence[bytes], n_stored: int) -> None:
    """Write copies in batches of ``N_TASKS`` x ``N_ATTEMPTS``, with new ids and seeds, and shuffled words."""
    drawn, started = random.Random(1), time.time() - 40 * 86_400
    by_player: dict[tuple[bytes, ...], list[bytes]] = {}
    for content in contents:
        by_player.setdefault(tuple(_PLAYER.findall(content)[:2]), []).append(content)
    numbers = iter(range(n_stored))
    for n_batch in range(-(-n_stored // N_PER_BATCH)):
        batch_id = str(ULID.from_timestamp(started + n_batch * 86_400))
        folder = data_dir / "runs" / batch_id
        folder.mkdir()
        samples = by_player[[*by_player][n_batch % len(by_player)]]
        model = MODELS[n_batch % len(MODELS)]
        for number in islice(numbers, N_PER_BATCH):
            episode_id = str(ULID.from_timestamp(started + n_batch * 86_400 + number % N_PER_BATCH))
            changed = _copy(drawn.choice(samples), batch_id, episode_id, number % N_PER_BATCH, model, drawn)
            (folder / f"{episode_id}.json").write_bytes(changed)


def _copy(content: bytes, batch_id: str, episode_id: str, number: int, model: str, drawn: random.Random) -> bytes:
    fields = {
        "episode_id": f'"{episode_id}"',
        "batch_id": f'"{batch_id}"',
        "seed": str(drawn.randrange(10**9)),
        "task_index": str(number % N_TASKS),
        "attempt": str(number // N_TASKS),
    }
    text = content.decode()
    if '"agent":"random"' in text:
        fields |= {"agent": '"react"', "model": f'"{model}"', "cost": f"{drawn.random() / 1000:.7f}"}
    for name, value in fields.items():
        text = re.sub(rf'"{name}":("[^"]*"|[^,}}]*)', f'"{name}":{value}', text, count=1)
    return _WORD.sub(lambda match: " ".join(_shuffled(match[0].split(" "), drawn)), text, count=3).encode()


def _shuffled(words: list[str], drawn: random.Random) -> Iterator[str]:
    drawn.shuffle(words)
    yield from words


def _open(data_dir: Path) -> tuple[float, float, float]:
    """Return the seconds until Results, Results by batch and a matrix were shown after their keys."""
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(data_dir.parent / "cache")}
    environ = terminal_environ(PYTHONPATH=str(REPOSITORY), **compiled)
    command = (CONSOLE, "launch", "--data-dir", str(data_dir))
    with Terminal(*command, columns=200, rows=50, env=environ) as terminal:
        terminal.wait_for(lambda: any("idle" in line for line in terminal.lines), 240)
        terminal.send("2")
        terminal.wait_for(lambda: any(f"{N_STORED:,} episodes" in line for line in terminal.lines), 240)
        terminal.wait_until_absent("reading", 60)
        terminal.send("1")
        terminal.wait_for(lambda: any("Environments" in line for line in terminal.lines), 30)
        results = _key(terminal, "7", r"\d+-\d+%")
        by_batch = _key(terminal, "v", "Results by batch")
        matrix = _key(terminal, "t", f"{N_TASKS} tasks")
        stop_node(data_dir)
        return results, by_batch, matrix


def _key(terminal: Terminal, key: str, pattern: str) -> float:
    time.sleep(3)  # until the console is idle
    started = time.perf_counter()
    terminal.send(key)
    terminal.wait_for(lambda: any(re.search(pattern, line) for line in terminal.lines), 60)
    return time.perf_counter() - started


def stop_node(data_dir: Path) -> None:
    """Stop the node of a state directory, if one runs."""
    if (known := read_node_file(data_dir)) is not None:
        node = psutil.Process(known.pid)
        node.terminate()
        node.wait(60)


if __name__ == "__main__":
    sys.stdout.writelines(f"{row}\n" for row in run())
