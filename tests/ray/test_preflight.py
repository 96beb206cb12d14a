"""Pre-flight on a Ray cluster: its nodes, and the addresses that workers on other machines could not reach."""

from __future__ import annotations

import msgspec
import pytest

from runner.config import AgentSettings, RaySettings
from runner.envs.http.server import ServerAddress
from runner.node.preflight import check_ray
from runner.pool import ray_cluster
from tests.ray.conftest import ClusterOfTwo
from tests.support.batches import make_setup

SETUP = make_setup(
    "Maze",
    "react",
    address=ServerAddress(url="http://10.0.0.5:36003", timeout_s=5.0),
    models=AgentSettings(api_endpoint="http://127.0.0.1:3030/v1/chat/completions", local_fallback=None),
)


def test_each_node_is_compared_and_loopback_addresses_need_a_replacement(
    cluster: ClusterOfTwo, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RaySettings(address=cluster.address)
    rows = check_ray(settings, [SETUP])
    assert [(row.what, row.state) for row in rows] == [("workers", "ok"), *[("ray node", "ok")] * 3]
    assert f"3 nodes at {cluster.address}" in rows[0].detail
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    monkeypatch.setattr(ray_cluster, "__version__", "0.0.1")
    *_, node, addresses = check_ray(settings, [SETUP])
    assert (node.state, "agentgym-console" in (node.cause or "")) == ("fail", True)
    assert (addresses.what, addresses.state) == ("ray addresses", "fail")
    assert "the model endpoint gateway at http://127.0.0.1:3030/" in (addresses.cause or "")
    assert "Maze" not in (addresses.cause or "")
    replaced = msgspec.structs.replace(settings, addresses={"localhost": "10.0.0.5"})
    assert check_ray(replaced, [SETUP])[-1].state == "ok"
