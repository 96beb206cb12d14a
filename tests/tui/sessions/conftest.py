from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runner.client.node_folder import read_node_file
from runner.node.state_lock import is_node_alive


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory; a node that a console started there is killed at the end."""
    for name in ("AGENTGYM_DATA_DIR", "AGENTGYM_NODE", "NATS_URL"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "state"
    yield folder
    while is_node_alive(folder) and (node_file := read_node_file(folder)) is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(node_file.pid)
            process.kill()
            process.wait(20)
