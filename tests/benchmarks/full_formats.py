"""Exporting 10,000 episodes of 15 steps in each format, and opening 1 GB of verifiers traces."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from ulid import ULID

from runner.formats.format import writable_formats
from runner.formats.verifiers import encode_trace
from runner.store import EpisodeRecord, EpisodeStore, open_index
from runner.types import Action, Message, TimeStep, Tokens, ToolCall
from runner.util.safe_values import encode
from tests.benchmarks.full_open import CONSOLE
from tests.benchmarks.measure import Row, quartiles
from tests.support.command import REPOSITORY
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory, tool_schemas
from tests.support.terminal import Terminal, terminal_environ

N_EPISODES: Final = 10_000
N_STEPS, N_ATTEMPTS, EPISODE_BYTES = 15, 4, 40_000
MAX_CPU_S, MAX_MB = 15.0, 100.0
TRACES_BYTES: Final = 1_000_000_000
MAX_FIRST_S: Final = 1.0
N_OPENED: Final = 5
FILTERS: Final = ("--drop-flat", "--first-success", "--balanced")
EXPORT: Final = """
import re, resource, sys
from runner.cli import main
status = main(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_SELF)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]
print(usage.ru_utime + usage.ru_stime, int(peak) / 1024)
sys.exit(status)
"""
"""Exports, and prints CPU seconds and peak memory in MB of its process."""


class Exported(NamedTuple):
    """CPU seconds and peak memory in MB of an export."""

    cpu_s: float
    megabytes: float


def run() -> list[Row]:
    """Store the episodes and export them in every format; write the traces and open them a few times."""
    with tempfile.TemporaryDirectory() as folder:
        rows = _exports(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        return [*rows, _opening(Path(folder, "traces.jsonl"))]


def _exports(folder: Path) -> list[Row]:
    data_dir = folder / "state"
    store_episodes(data_dir, N_EPISODES)
    open_index(EpisodeStore(data_dir)).close()
    rows: list[Row] = []
    for name in writable_formats():
        if name == "parquet" and find_spec("pyarrow") is None:
            rows.append(Row("export as parquet", "pyarrow is not installed"))
        else:
            rows += _rows(name, _export(data_dir, name, folder / name))
    return [*rows, *_rows("messages with all filters", _export(data_dir, "messages", folder / "filtered", *FILTERS))]


def _rows(name: str, exported: Exported) -> list[Row]:
    title = f"export of {N_EPISODES:,} episodes, {N_EPISODES * EPISODE_BYTES / 1e6:.0f} MB, as {name}"
    return [
        Row(f"{title}, CPU", f"{exported.cpu_s:.1f} s", f"<= {MAX_CPU_S:.0f} s", exported.cpu_s <= MAX_CPU_S),
        Row(f"{title}, memory", f"{exported.megabytes:.0f} MB", f"<= {MAX_MB:.0f} MB", exported.megabytes <= MAX_MB),
    ]


def _export(data_dir: Path, format_name: str, output: Path, *filters: str) -> Exported:
    arguments = ("--format", format_name, "--output", str(output), "--data-dir", str(data_dir), *filters)
    command = (sys.executable, "-c", EXPORT, "export", *arguments)
    printed = subprocess.run(command, check=True, capture_output=True, timeout=300, cwd=REPOSITORY).stdout
    return Exported(*map(float, printed.split()))


def _opening(path: Path) -> Row:
    template = encode(encode_trace(_episode(0)))
    with path.open("wb") as file:
        for _, id in zip(range(TRACES_BYTES // len(template)), _ids(), strict=False):
            file.write(template.replace(_EPISODE_ID, id) + b"\n")
    times = [_first_rows(path) for _ in range(N_OPENED + 1)][1:]  # the first start compiles the modules
    low, median, high = quartiles(times)
    name = f"open of 1 GB of traces, first rows ({low:.2f}-{high:.2f}), wall"
    return Row(name, f"{median:.2f} s", f"<= {MAX_FIRST_S:.0f} s", median <= MAX_FIRST_S)


def _first_rows(path: Path) -> float:
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(path.parent / "cache")}
    environ = terminal_environ(PYTHONPATH=str(REPOSITORY), **compiled)
    with Terminal(CONSOLE, "open", str(path), columns=200, rows=50, env=environ) as terminal:
        terminal.wait_for(lambda: b"Maze" in terminal.raw, 60)
        return time.perf_counter() - terminal.started


_EPISODE_ID: Final = b"01KA0000000000000000000000"
_BATCH_ID: Final = b"01KB0000000000000000000000"


def _ids() -> Iterator[bytes]:
    started = time.time() - 86_400
    number = 0
    while True:
        yield str(ULID.from_timestamp(started + number / 1_000)).encode()
        number += 1


def store_episodes(data_dir: Path, n_episodes: int) -> None:
    """Write episodes of one batch: each task has attempts with different replies and rewards."""
    batch_id = next(_ids())
    folder = data_dir / "runs" / batch_id.decode()
    folder.mkdir(parents=True)
    templates = [encode(_episode(attempt)).replace(_BATCH_ID, batch_id) for attempt in range(N_ATTEMPTS)]
    for number, id in zip(range(n_episodes), _ids(), strict=False):
        task, attempt = divmod(number, N_ATTEMPTS)
        data = templates[attempt].replace(_EPISODE_ID, id).replace(b'"task_index":0', b'"task_index":%d' % task)
        (folder / f"{id.decode()}.json").write_bytes(data)


def _episode(attempt: int) -> EpisodeRecord:
    """Return an attempt of a model with observations that make the file about ``EPISODE_BYTES``."""
    header = episode_header(
        episode_id=_EPISODE_ID.decode(), batch_id=_BATCH_ID.decode(), agent="react", model="qwen3:8b", attempt=attempt
    )
    n_chars = EPISODE_BYTES // N_STEPS - 1_500
    steps = [
        _step(index, attempt, "a wall to your left, a wall above you. " * (n_chars // 39)) for index in range(N_STEPS)
    ]
    return finished_record(header, make_trajectory(header, steps))


def _step(index: int, attempt: int, observation: str) -> TimeStep:
    call = ToolCall(f"call_{index}", "move", f'{{"direction":"left","n":{index % (attempt + 2)}}}')
    function = {"name": call.name, "arguments": call.arguments}
    reply: Message = {
        "role": "assistant",
        "content": f"I go on to the {index}th junction. " * 8,
        "reasoning_content": "The goal is to the right, and I was here before. " * 8,
        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
    }
    return make_step(
        index,
        chats=[[{"role": "system", "content": "You walk through a maze. " * 4}, reply]],
        action=Action(tool_calls=[call]),
        observation=[{"role": "tool", "content": observation, "tool_call_id": call.id}],
        available_tool_schemas=tool_schemas("move"),
        endpoint="local",
        model="qwen3:8b",
        tokens=Tokens(1_000, 70, 30, 500),
        reward=attempt / N_ATTEMPTS,
        done=index == N_STEPS - 1,
    )


if __name__ == "__main__":
    store_episodes(Path(sys.argv[1]), int(sys.argv[2]))
