"""Tests of the extra ``ray``: ``make test-ray`` runs them; every other run leaves them out and imports no Ray."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner import plugins

NODE: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}
LIMIT_S = 60.0
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def session_folder() -> Iterator[Path]:
    """The folder of all files of the cluster; its path is short, because sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that registers environments and agents of the tests here and, on PYTHONPATH, in the cluster."""
    root = tmp_path_factory.mktemp("plugins")
    folder = root / "fakes-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fakes\nVersion: 1.0\n")
    envs = ["fakes:Gated", "fakes:AsyncHanging", "slow_counter:SlowCounter", "slow_counter:Stuck"]
    points = {"envs": envs, "agents": ["fakes:UpAgent", "fakes:AsyncUpAgent"]}
    with (folder / "entry_points.txt").open("w") as file:
        for group, targets in points.items():
            lines = [f"{target.partition(':')[2]} = tests.support.{target}" for target in targets]
            file.write("\n".join([f"[agentgym.{group}]", *lines, ""]))
    sys.path.insert(0, str(root))
    plugins._entry_points.cache_clear()
    yield root
    sys.path.remove(str(root))
    plugins._entry_points.cache_clear()


class ClusterOfTwo:
    """A cluster of a head without CPUs and two nodes of two; this process is its driver."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        # Not the argument temp_dir: Ray writes the address of the cluster to its default folder, which may not exist.
        os.environ["RAY_TMPDIR"] = str(folder)
        head = {**NODE, "num_cpus": 0}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._cluster.add_node(num_cpus=2, **NODE) for _ in range(2)]

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def lose_node(self) -> None:
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def restore_node(self) -> None:
        """Add a node in place of the one that was lost."""
        while len(self._nodes) < 2:
            self._nodes.append(self._cluster.add_node(num_cpus=2, **NODE))
        self._cluster.wait_for_nodes(LIMIT_S)

    def files(self) -> list[Path]:
        return [path for path in self._folder.rglob("*") if path.is_file() and not path.is_symlink()]

    def processes(self) -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def cluster(session_folder: Path, plugin_path: Path) -> Iterator[ClusterOfTwo]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), str(plugin_path)])
    import ray

    cluster = ClusterOfTwo(session_folder)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.close()


def shown(process: psutil.Process) -> str:
    """Return what the system shows of a process: its command line and its environment."""
    try:
        return repr((process.cmdline(), process.environ()))
    except psutil.Error:
        return ""
