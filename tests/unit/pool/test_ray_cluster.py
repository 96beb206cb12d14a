"""What a Ray pool decides without Ray; ``tests/ray`` has the rest."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import plugins
from runner.config import RaySettings
from runner.errors import ConfigError
from runner.pool.ray_cluster import RayConnection, RayNode, describe_installation, difference, require_equal_nodes
from runner.pool.ray_head import head_environ
from runner.pool.ray_pool import ClockSample, clock_offsets
from runner.worker.frames import Hello
from tests.conftest import Install

WALL = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = st.integers(0, 10**10)


def sample(sent_ns: int, duration_ns: int, offset_ns: int, wall_offset_s: float, share: float) -> ClockSample:
    """Return a call whose worker reads its clocks after this share of the time."""
    read_ns = sent_ns + int(duration_ns * share)
    hello = Hello(
        worker_id="w",
        host="h",
        pid=1,
        monotonic_ns=read_ns - offset_ns,
        wall=WALL + timedelta(seconds=read_ns / 1e9 - wall_offset_s),
    )
    received_ns = sent_ns + duration_ns
    wall_s = WALL.timestamp() + received_ns / 1e9
    return ClockSample(sent_ns=sent_ns, received_ns=received_ns, received_wall_s=wall_s, hello=hello)


@given(
    st.lists(st.tuples(SECONDS, st.integers(1, 10**9), st.floats(0, 1)), min_size=1, max_size=5),
    st.integers(-(10**15), 10**15),
    st.floats(-1e5, 1e5),
)
def test_a_clock_is_mapped_as_exactly_as_the_fastest_call_allows(
    calls: list[tuple[int, int, float]], offset_ns: int, wall_offset_s: float
) -> None:
    samples = [sample(sent, duration, offset_ns, wall_offset_s, share) for sent, duration, share in calls]
    found_ns, found_s = clock_offsets(samples)
    error_ns = min(duration for _, duration, _ in calls) / 2
    assert abs(found_ns - offset_ns) <= error_ns + 2
    assert abs(found_s - wall_offset_s) <= error_ns / 1e9 + 1e-5


def test_another_patch_release_of_python_is_no_difference() -> None:
    own = {"Python": "3.11.7", "agentgym-console": "1.0", "maze with BigMaze": "2.0"}
    assert difference(own, own | {"Python": "3.11.9"}) is None
    other = {"Python": "3.12.7", "agentgym-console": "1.1", "extra with Other": "1"}
    assert difference(own, other) == (
        "Python 3.12.7 instead of 3.11.7, agentgym-console 1.1 instead of 1.0, extra with Other 1 instead of none, "
        "maze with BigMaze not installed instead of 2.0"
    )


def test_an_installation_is_described_with_its_plugins(install: Install) -> None:
    install(envs={"Counter": "tests.support.fakes:Counter"}, name="fakes")
    assert plugins.is_registered(plugins.ENVS, "Counter")
    assert describe_installation()["fakes with Counter"] == "1.0"


def test_each_node_that_differs_is_named() -> None:
    nodes = [
        RayNode(name="a (10.0.0.1)", is_local=True),
        RayNode(name="b (10.0.0.2)", is_local=False, problem="Python 3.12.1 instead of 3.11.7"),
    ]
    require_equal_nodes(nodes[:1])
    with pytest.raises(ConfigError, match=r"b \(10\.0\.0\.2\): Python 3\.12\.1 instead of 3\.11\.7"):
        require_equal_nodes(nodes)


def test_a_cluster_of_this_machine_inherits_no_secrets() -> None:
    environ = {
        "PATH": "/bin",
        "OPENAI_API_KEY": "sk-1",
        "LAB_ACCESS": "sk-2",
        "PROXY": "http://user:pass@host",
        "RAY_AUTH_TOKEN_PATH": "/token",
    }
    inherited = head_environ(environ, ["LAB_ACCESS"])
    assert inherited.keys() == {"PATH", "RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED", "PYTHONPATH"}
    assert inherited["RAY_USAGE_STATS_ENABLED"] == "0"


def test_without_the_extra_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    with pytest.raises(ConfigError, match=r"Ray is not installed: pip install 'agentgym-console\[ray\]'"):
        RayConnection(RaySettings(address="host:6379"))
