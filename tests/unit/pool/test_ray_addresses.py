from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config import AgentSettings
from runner.config.profile import EndpointConfig
from runner.envs.http.server import ServerAddress
from runner.errors import ConfigError
from runner.pool.ray_cluster import is_loopback, require_reachable, rewrite_setup, rewrite_url
from tests.support.batches import make_setup

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
