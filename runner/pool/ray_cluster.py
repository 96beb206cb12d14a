"""The connection of this process to a Ray cluster, and the comparison of its nodes with this installation."""

from __future__ import annotations

import atexit
import ctypes
import ipaddress
import logging
import math
import os
import platform
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from runner import __version__, plugins
from runner.config import RaySettings
from runner.errors import ConfigError, catch_foreign
from runner.inference.endpoints import ollama_url, resolve_endpoints
from runner.pool.ray_head import HEAD_VARIABLE, RayHead
from runner.util.clock import Clock
from runner.util.display_text import mask, one_line
from runner.util.urls import safe_url
from runner.worker.runner_setup import RunnerSetup

LOCALHOST = "localhost"
"""Key of ``ray.addresses`` that stands for every loopback address."""
OLLAMA_VARIABLE = "OLLAMA_HOST"
CONNECT_TIMEOUT_S = 1.0
SIGACTION_BYTES = 512
"""At least the size of ``struct sigaction``, which is 152 bytes on Linux."""
NODE_TIMEOUT_S = 60.0
"""Maximum seconds for a node of the cluster to describe itself; it starts a process for that."""
EXTRA = "pip install 'agentgym-console[ray]'"
HEAD_TIMEOUT_S = 600
"""Seconds without the head of the cluster after which Ray ends this process."""
_CONSOLE = "agentgym-console"


def rewrite_setup(
    setup: RunnerSetup, addresses: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[RunnerSetup, dict[str, str]]:
    """Replace the hosts of models and servers in the settings of a batch.

    ``addresses`` is ``ray.addresses``. Return also the environment variables that the workers need for the settings.
    """
    server = setup.address
    if server is not None:
        server = msgspec.structs.replace(server, url=rewrite_url(server.url, addresses))
    if setup.models is None:
        return msgspec.structs.replace(setup, address=server), {}
    models = setup.models
    # An endpoint without a name is named after its host; the driver knows it by that name.
    names = models.endpoint_names[int(models.mode == "api") :]
    endpoints = tuple(
        msgspec.structs.replace(each, name=name, url=rewrite_url(each.url, addresses))
        for each, name in zip(models.endpoints, names, strict=False)
    )
    api_endpoint = rewrite_url(models.api_endpoint, addresses)
    rewritten = msgspec.structs.replace(models, api_endpoint=api_endpoint, endpoints=endpoints)
    uses_ollama = models.local_fallback is not None
    variables = {OLLAMA_VARIABLE: rewrite_url(ollama_url(environ), addresses)} if uses_ollama else {}
    return msgspec.structs.replace(setup, address=server, models=rewritten), variables


def rewrite_url(url: str, addresses: Mapping[str, str]) -> str:
    """An invalid URL is returned unchanged."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url
    by_name = {name.lower(): replacement for name, replacement in addresses.items()}
    replacement = by_name.get(host) or (by_name.get(LOCALHOST) if is_loopback(host) else None)
    if replacement is None:
        return url
    userinfo, at, _ = parts.netloc.rpartition("@")
    shown = f"[{replacement}]" if ":" in replacement else replacement
    netloc = f"{userinfo}{at}{shown}" + ("" if port is None else f":{port}")
    return urlunsplit(parts._replace(netloc=netloc))


def require_reachable(setup: RunnerSetup, variables: Mapping[str, str]) -> None:
    """Raise a ``ConfigError`` that names each address of the settings which every machine has for itself."""
    found = [f"{name} at {safe_url(url)}" for name, url in _addresses(setup, variables) if is_loopback(_host(url))]
    if found:
        raise ConfigError(
            f"Workers on other machines of the Ray cluster cannot reach {', '.join(found)}; replace the host in the "
            "profile, or for the workers alone, e.g. with ray: {addresses: {localhost: 10.0.0.5}}"
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, or the wildcard address that clients use as one."""
    if host == LOCALHOST or host.endswith(f".{LOCALHOST}"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or address.is_unspecified or (mapped is not None and mapped.is_loopback)


def _addresses(setup: RunnerSetup, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for endpoint in () if setup.models is None else resolve_endpoints(setup.models, variables):
        yield f"the model endpoint {endpoint.name}", endpoint.url
    if setup.address is not None:
        yield f"the server of {setup.env.name}", setup.address.url


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster; ``problem`` is why workers on it would not play as this process does, or None."""

    name: str
    is_local: bool
    problem: str | None = None


class RayConnection:
    """The connection of this process to a cluster; all objects share it, and the last one to close ends it.

    With an empty address, a cluster of this machine is started, and kept for later connections until this process ends.
    It does not inherit the environment variables ``key_names`` with API keys. Raises ``ConfigError`` if Ray is not
    installed, or the cluster cannot be reached or started.
    """

    _lock = threading.Lock()
    _n_open = 0
    _is_own = False
    _head: RayHead | None = None

    def __init__(self, settings: RaySettings, key_names: Iterable[str] = ()) -> None:
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
        """Release the connection, whose end ends its actors; with ``is_lost``, a cluster is not kept for later ones."""
        with RayConnection._lock:
            if not self._is_open:
                return
            self._is_open = False
            RayConnection._n_open -= 1
            is_kept = RayConnection._head is not None and not is_lost
            if not RayConnection._n_open and RayConnection._is_own and not is_kept:
                _close_connection()


class HeadWatch:
    """Checks whether the head of the connected cluster can be reached; without it, calls to Ray can hang.

    The head is lost after ``limit_s`` seconds out of reach. ``problem`` is why, in words; None otherwise.
    """

    def __init__(self, clock: Clock, interval_s: float, limit_s: float) -> None:
        self.problem: str | None = None
        self._clock = clock
        self._interval_s = interval_s
        self._limit_s = limit_s
        self._address = str(import_ray().get_runtime_context().gcs_address)
        self._reached_s = self._checked_s = clock.monotonic()

    def check(self) -> str | None:
        """Check if it is time to; return ``problem``. Waits for the head for ``CONNECT_TIMEOUT_S`` at most."""
        now = self._clock.monotonic()
        if now - self._checked_s < self._interval_s:
            return self.problem
        self._checked_s = now
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            self._reached_s = now
        except OSError as exc:
            if now - self._reached_s > self._limit_s:
                self.problem = f"the head of the Ray cluster at {self._address} cannot be reached: {exc}"
        return self.problem


def node_to_fill(settings: RaySettings, placed: Iterable[str | None]) -> str | None:
    """Return the id of the first node with room for another worker of a batch; None if there is none."""
    n_placed = Counter(placed)
    reserved = {"CPU": settings.num_cpus, **settings.resources}
    for node in import_ray().nodes():
        room = [node["Resources"].get(name, 0.0) // amount for name, amount in reserved.items() if amount]
        if node["Alive"] and n_placed[node["NodeID"]] < min(room, default=math.inf):
            return str(node["NodeID"])
    return None


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

    # Ray replaces Python's handler of SIGTERM if the main thread connects.
    thread = threading.Thread(target=connect, name="connect to Ray")
    with _kept_handler(signal.SIGTERM):
        thread.start()
        thread.join()
    if problems:
        raise ConfigError(
            f"Ray cannot connect to {address}: {one_line(mask(str(problems[0])), 500)}; start Ray on this machine as "
            "a part of that cluster, or correct ray.address"
        )


@contextmanager
def _kept_handler(number: signal.Signals) -> Iterator[None]:
    """Keep the system's handler of a signal, which Ray replaces by one that aborts the process after three seconds.

    ``signal.signal`` could restore it on the main thread only.
    """
    libc, action = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(number, None, action)
    try:
        yield
    finally:
        libc.sigaction(number, action, None)


def load_ray(settings: RaySettings) -> Any:  # noqa: ANN401 - a module that may not be installed
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray ends this process if the head of the cluster is gone for longer; the pool of a batch gives up before.
    os.environ.setdefault(HEAD_VARIABLE, str(HEAD_TIMEOUT_S))
    if not settings.address:
        # Ray creates a token in the home folder for a cluster of this machine. It reads this variable when it is
        # imported.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    return import_ray()


def import_ray() -> Any:  # noqa: ANN401 - a module that may not be installed
    """Raises ``ConfigError`` if Ray is not installed."""
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
    """Return in words how another installation differs, apart from the last number of Python's version, or None."""
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
    reports = {
        node_id: describe.options(scheduling_strategy=on_node(node_id, soft=False)).remote() for node_id in nodes
    }
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
    """The ``ConfigError`` names each node that plays otherwise than this process."""
    if problems := [f"{node.name}: {node.problem}" for node in nodes if node.problem is not None]:
        raise ConfigError(
            f"The Ray cluster is not installed like this machine: {'; '.join(problems)}. Install the same versions on "
            "each node, or set ray.runtime_env"
        )


def _problem(own: Mapping[str, str], report: object, timeout_s: float) -> str | None:
    exceptions = import_ray().exceptions
    try:
        found: dict[str, str] = import_ray().get(report, timeout=0)
    except exceptions.TaskUnschedulableError:
        raise
    except exceptions.GetTimeoutError:
        return f"no reply within {timeout_s:g} s"
    except exceptions.RayError as exc:
        last_line = (str(exc).strip().splitlines() or [""])[-1]
        return one_line(mask(f"{type(exc).__name__}: {last_line}"), 300)
    return difference(own, found)


def on_node(node_id: str, *, soft: bool) -> object:
    """Return the scheduling strategy for a node; a ``soft`` one takes another node if this one has no room."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=soft, _spill_on_unavailable=soft)
