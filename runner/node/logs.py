"""The logs of a node: its own one, those of its start and its broker, and those of its environment servers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BYTES_PER_LINE: Final = 600  # that are read of a log for each of its last lines


def node_logs(data_dir: Path) -> list[Path]:
    """Return the logs that exist: the node's own one first, then those of its start, its broker and its servers."""
    folder = data_dir / "logs"
    names = ["runner.log", "node-start.log", "nats-server.log"]
    paths = [folder / name for name in names] + sorted(folder.glob("server-*.log"))
    return [path for path in paths if path.is_file()] or paths[:1]


def read_last_lines(log: Path, n_lines: int) -> list[str]:
    """Return at most ``n_lines`` lines from the end of a log; none if it cannot be read."""
    n_bytes = n_lines * BYTES_PER_LINE
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - n_bytes, 0))
            text = file.read(n_bytes).decode("utf-8", "replace").strip()
    except OSError:
        return []
    return text.split("\n")[-n_lines:] if text else []
