"""The connection of this process to a Ray cluster, and the comparison of its nodes with this installation."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

import msgspec

from runner import __version__, plugins
from runner.config import RaySettings
from runner.errors import ConfigError, catch_foreign
from runner.pool.ray_head import RayHead
from runner.util.display_text import mask, one_line

NODE_TIMEOUT_S = 60.0
"""Maximum seconds for a node of the cluster to describe itself; it starts a process for that."""
EXTRA = "pip install 'agentgym-console[ray]'"
_CONSOLE = "agentgym-console"


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster.

    Attributes:
        name: its host name and address.
        is_local: whether it runs on this machine.
        problem: why workers on it would not play as this process does; None if they would.
    """

    name: str
    is_local: bool
    problem: str | None = None


class RayConnection:
    """The connection of this process to a cluster; all objects share it, and the last one to close ends it.

    A cluster that the connection started is kept for later ones, until this process ends.

    Args:
        settings: the profile's ``ray`` section.
        key_names: names of environment variables with API keys, which a cluster of this machine does not inherit.
    """

    _lock = threading.Lock()
    _n_open = 0
    _is_own = False
    _head: RayHead | None = None

    def __init__(self, settings: RaySettings, key_names: Iterable[str] = ()) -> None:
        """Connect, unless this process is connected; with an empty address, start a cluster of this machine.

        Raises:
            ConfigError: Ray is not installed, or the cluster cannot be reached or started.
        """
        self._is_open = True
        ray = load_ray(settings)
        with RayConnection._lock:
            head = RayConnection._head
            if head is not None and not RayConnection._n_open and (settings.address or not head.is_alive):
                _close_connection()
            if not ray.is_initialized():
                _open_connection(settings, key_names)
            RayConnection._n_open += 1

    def close(self, *, is_lost: bool = False) -> None:
        """Release the connection; its end ends the actors of this process.

        Args:
            is_lost: whether the head of the cluster is gone, so that the cluster is not kept for later connections.
        """
        with RayConnection._lock:
            if not self._is_open:
                return
            self._is_open = False
            RayConnection._n_open -= 1
            is_kept = RayConnection._head is not None and not is_lost
            if not RayConnection._n_open and RayConnection._is_own and not is_kept:
                _close_connection()


def _open_connection(settings: RaySettings, key_names: Iterable[str]) -> None:
    RayConnection._is_own = True
    address = settings.address
    try:
        if not address:
            RayConnection._head = RayHead(os.environ, key_names)
            atexit.register(_close_connection)
            address = RayConnection._head.wait()
        _connect(address, settings.runtime_env)
    except ConfigError:
        _close_connection()
        raise


def _close_connection() -> None:
    atexit.unregister(_close_connection)
    RayConnection._is_own = False
    import_ray().shutdown()
    if RayConnection._head is not None:
        RayConnection._head.close()
        RayConnection._head = None


def _connect(address: str, runtime_env: Mapping[str, Any]) -> None:
    problems: list[BaseException] = []

    def connect() -> None:
        with catch_foreign(problems.append):
            import_ray().init(
                address=address,
                runtime_env=dict(runtime_env) or None,
                log_to_driver=False,
                configure_logging=False,
            )

    # Ray replaces the handler of SIGTERM if the main thread connects.
    thread = threading.Thread(target=connect, name="connect to Ray")
    thread.start()
    thread.join()
    if problems:
        raise ConfigError(
            f"Ray cannot connect to {address}: {one_line(mask(str(problems[0])), 500)}; start Ray on this machine as "
            "a part of that cluster, or correct ray.address"
        )


def load_ray(settings: RaySettings) -> Any:  # noqa: ANN401 - a module that may not be installed
    """Import Ray for a cluster and return the module.

    Raises:
        ConfigError: Ray is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if not settings.address:
        # Ray creates a token in the home folder for a cluster of this machine. It reads this variable when it is
        # imported.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    return import_ray()


def import_ray() -> Any:  # noqa: ANN401 - a module that may not be installed
    """Return the module ``ray``.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as exc:
        raise ConfigError(f"Ray is not installed: {EXTRA}") from exc
    logger = logging.getLogger("ray")
    if logger.level != logging.ERROR:  # setting a level clears the caches of all loggers
        logger.setLevel(logging.ERROR)
    return ray


def describe_installation() -> dict[str, str]:
    """Return what this process plays with: the versions of Python, the console and each distribution with plugins."""
    versions = {"Python": platform.python_version(), _CONSOLE: __version__}
    for group in (plugins.ENVS, plugins.AGENTS):
        for point in entry_points(group=group):
            if point.dist is not None and point.dist.name != _CONSOLE:
                versions[f"{point.dist.name} with {point.name}"] = point.dist.version
    return versions


def difference(own: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Return how another installation differs from this one, in words; None if it does not.

    The last number of Python's version may differ.
    """
    differing = [
        f"{name} {other.get(name) or 'not installed'} instead of {own.get(name) or 'none'}"
        for name in sorted(own.keys() | other.keys())
        if _comparable(name, own.get(name)) != _comparable(name, other.get(name))
    ]
    return ", ".join(differing) or None


def _comparable(name: str, version: str | None) -> str | None:
    return version.rpartition(".")[0] if version and name == "Python" else version


def inspect_nodes(timeout_s: float = NODE_TIMEOUT_S) -> list[RayNode]:
    """Compare the installation on each node of the connected cluster with that of this process.

    A node without CPUs for workers, such as a head, is compared, too; a node that has just gone is left out.
    """
    ray = import_ray()
    own, here = describe_installation(), socket.gethostname()
    describe = ray.remote(num_cpus=0, max_retries=0)(describe_installation)
    nodes = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
    reports = {node_id: describe.options(scheduling_strategy=_on_node(node_id)).remote() for node_id in nodes}
    ray.wait(list(reports.values()), num_returns=len(reports), timeout=timeout_s)
    found: list[RayNode] = []
    for node_id, node in nodes.items():
        host, address = node["NodeManagerHostname"], node["NodeManagerAddress"]
        try:
            problem = _problem(own, reports[node_id], timeout_s)
        except ray.exceptions.TaskUnschedulableError:
            continue
        found.append(RayNode(name=f"{host} ({address})", is_local=host == here, problem=problem))
    return found


def require_equal_nodes(nodes: Iterable[RayNode]) -> None:
    """Check that each node plays as this process does.

    Raises:
        ConfigError: a node does not; the message names each.
    """
    if problems := list(_node_problems(nodes)):
        raise ConfigError(
            f"The Ray cluster is not installed like this machine: {'; '.join(problems)}. Install the same versions on "
            "each node, or set ray.runtime_env"
        )


def _node_problems(nodes: Iterable[RayNode]) -> Iterator[str]:
    for node in nodes:
        if node.problem is not None:
            yield f"{node.name}: {node.problem}"


def _problem(own: Mapping[str, str], report: object, timeout_s: float) -> str | None:
    exceptions = import_ray().exceptions
    try:
        found: dict[str, str] = import_ray().get(report, timeout=0)
    except exceptions.TaskUnschedulableError:
        raise
    except exceptions.GetTimeoutError:
        return f"no reply within {timeout_s:g} s"
    except exceptions.RayError as exc:
        return one_line(mask(f"{type(exc).__name__}: {_last_line(str(exc))}"), 300)
    return difference(own, found)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _on_node(node_id: str) -> object:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)
