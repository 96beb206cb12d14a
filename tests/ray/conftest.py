"""Tests of the extra ``ray``: ``make test-ray`` runs them; every other run leaves them out and imports no Ray."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runner import plugins

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

STORE_BYTES = 80 << 20
HERE = Path(__file__).parent


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect this folder only if the command line names it."""
    named = [Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path == HERE or HERE in path.parents for path in named) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test time to start the cluster."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(170))


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
    points = {"envs": ("Gated", "AsyncHanging", "AsyncCounter"), "agents": ("UpAgent", "AsyncUpAgent")}
    for group, names in points.items():
        with (folder / "entry_points.txt").open("a") as file:
            file.write(f"[agentgym.{group}]\n" + "".join(f"{name} = tests.support.fakes:{name}\n" for name in names))
    sys.path.insert(0, str(root))
    plugins._entry_points.cache_clear()
    yield root
    sys.path.remove(str(root))
    plugins._entry_points.cache_clear()


@pytest.fixture(scope="session")
def cluster(session_folder: Path, plugin_path: Path) -> Iterator[Cluster]:
    """A cluster of a head without CPUs and two nodes of two; this process is its driver."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), str(plugin_path)])
    import ray
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0, "temp_dir": str(session_folder)})
    for _ in range(2):
        cluster.add_node(num_cpus=2, **node)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
