"""What a Ray pool decides without Ray; ``tests/ray`` has the rest."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import plugins
from runner.config import AgentSettings, RaySettings
from runner.config.profile import EndpointConfig
from runner.envs.http.server import ServerAddress
from runner.errors import ConfigError
from runner.pool.ray_cluster import (
    RayConnection,
    RayNode,
    describe_installation,
    difference,
    is_loopback,
    require_equal_nodes,
    require_reachable,
    rewrite_setup,
    rewrite_url,
)
from runner.pool.ray_head import head_environ
from runner.pool.ray_pool import ClockSample, clock_offsets
from runner.worker.frames import Hello
from tests.conftest import Install
from tests.support.batches import make_setup

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


MODELS = AgentSettings(
    api_endpoint="http://localhost:3030/v1/chat/completions",
    endpoints=(EndpointConfig(url="https://models.example/v1"), EndpointConfig(url="http://[::1]:8000/v1", name="gpu")),
)
SETUP = make_setup("Maze", "react", models=MODELS, address=ServerAddress("http://u:p%40ss@127.0.0.1:36001"))


@pytest.mark.parametrize(
    ("url", "rewritten"),
    [
        ("http://localhost:3030/v1?a=b", "http://10.0.0.5:3030/v1?a=b"),
        ("http://u:p%40ss@127.0.0.9/x", "http://u:p%40ss@10.0.0.5/x"),
        ("http://[::1]:80", "http://10.0.0.5:80"),
        ("http://LOCALHOST", "http://10.0.0.5"),
        ("http://gateway:1/", "http://[2001:db8::1]:1/"),
        ("http://models.example/v1", "http://models.example/v1"),
        ("http://[broken", "http://[broken"),
        ("http://h:99999", "http://h:99999"),
    ],
)
def test_only_the_host_of_a_url_is_replaced(url: str, rewritten: str) -> None:
    assert rewrite_url(url, {"localhost": "10.0.0.5", "Gateway": "2001:db8::1"}) == rewritten


@given(st.text(max_size=40))
def test_a_url_without_a_listed_host_stays_as_it_is(text: str) -> None:
    assert rewrite_url(text, {"no-such-host.example": "10.0.0.5"}) == text


@pytest.mark.parametrize(
    "host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::ffff:127.0.0.1"]
)
def test_loopback_hosts_are_found(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.5", "localhost.example", "models", "2001:db8::1", ""])
def test_other_hosts_are_reachable(host: str) -> None:
    assert not is_loopback(host)


def test_each_loopback_address_is_named_and_none_shows_its_password() -> None:
    setup, variables = rewrite_setup(SETUP, {}, {"OLLAMA_HOST": "0.0.0.0"})
    with pytest.raises(ConfigError) as refused:
        require_reachable(setup, variables)
    message = str(refused.value)
    for name in ("gateway at http://localhost:3030", "gpu at http://[::1]:8000", "ollama at", "server of Maze at"):
        assert name in message
    assert "models.example" not in message and "p%40ss" not in message and "ray: {addresses:" in message


def test_rewritten_addresses_are_accepted_and_the_original_stays() -> None:
    setup, variables = rewrite_setup(SETUP, {"localhost": "10.0.0.5"}, {})
    require_reachable(setup, variables)
    assert setup.models is not None and setup.address is not None
    assert setup.models.api_endpoint == "http://10.0.0.5:3030/v1/chat/completions"
    assert setup.models.endpoints[1].url == "http://10.0.0.5:8000/v1"
    assert setup.address.url == "http://u:p%40ss@10.0.0.5:36001"
    assert variables == {"OLLAMA_HOST": "http://10.0.0.5:11434"}
    assert setup.models.endpoint_names == MODELS.endpoint_names
    assert SETUP.address is not None and "127.0.0.1" in SETUP.address.url


def test_an_endpoint_keeps_the_name_that_it_has_from_its_host() -> None:
    models = AgentSettings(mode="local", endpoints=(EndpointConfig(url="http://localhost:1"),) * 2)
    setup, _ = rewrite_setup(make_setup("Maze", "react", models=models), {"localhost": "10.0.0.5"}, {})
    assert setup.models is not None
    assert setup.models.endpoint_names == models.endpoint_names == ("localhost", "localhost-2", "ollama")


def test_an_agent_without_a_model_needs_no_model() -> None:
    setup, variables = rewrite_setup(make_setup("Maze", "oracle"), {}, {})
    require_reachable(setup, variables)
    assert variables == {}
