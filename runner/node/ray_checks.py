"""Checks of a Ray cluster before a run: the connection, the installation of each node, and the addresses it needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing

import msgspec

from runner.config import RaySettings
from runner.errors import ConfigError
from runner.node.preflight import PreflightCheck
from runner.pool.ray_addresses import require_reachable, rewrite_setup
from runner.pool.ray_cluster import RayConnection, RayNode, inspect_nodes, load_ray
from runner.worker.runner_setup import RunnerSetup

TIMEOUT_S = 20.0
"""Maximum seconds for the nodes of a cluster to describe themselves; each starts a process for that."""


def check_ray(settings: RaySettings, setups: Sequence[RunnerSetup]) -> list[PreflightCheck]:
    """Check whether the workers of a run can be Ray actors; a cluster that the run would start is not started."""
    check = PreflightCheck(what="workers", name="ray", state="ok", detail="")
    try:
        version = load_ray(settings).__version__
        if not settings.address:
            return [msgspec.structs.replace(check, detail=f"Ray {version}, a cluster of this machine for the run")]
        with closing(RayConnection(settings)):
            nodes = inspect_nodes(TIMEOUT_S)
        connected = msgspec.structs.replace(check, detail=f"Ray {version}, {len(nodes)} nodes at {settings.address}")
        return [connected, *map(_check_node, nodes), *_check_addresses(settings, nodes, setups)]
    except ConfigError as exc:
        return [_failed(check, exc)]


def _failed(check: PreflightCheck, exc: ConfigError) -> PreflightCheck:
    text = str(exc)
    cause, separator, hint = text.rpartition("; ") if "; " in text else text.partition(": ")
    return msgspec.structs.replace(check, state="fail", cause=cause if separator else text, hint=hint or None)


def _check_node(node: RayNode) -> PreflightCheck:
    check = PreflightCheck(what="ray node", name=node.name, state="ok", detail="installed like this machine")
    if node.problem is None:
        return check
    hint = "install the same versions there, or set ray.runtime_env"
    return msgspec.structs.replace(check, state="fail", detail="", cause=node.problem, hint=hint)


def _check_addresses(
    settings: RaySettings, nodes: Sequence[RayNode], setups: Sequence[RunnerSetup]
) -> list[PreflightCheck]:
    """Check that workers on other machines reach models and servers by other addresses than ``localhost``."""
    if all(node.is_local for node in nodes):
        return []
    check = PreflightCheck(what="ray addresses", name="", state="ok", detail="of models and servers")
    for setup in setups:
        try:
            require_reachable(*rewrite_setup(setup, settings.addresses, os.environ))
        except ConfigError as exc:
            return [_failed(check, exc)]
    return [check]
