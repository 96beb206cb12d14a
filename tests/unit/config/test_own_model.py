"""A model server of the user's own: profiles with endpoints alone, those of the documentation, and a new file."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path
from typing import Any

import pytest

from runner.config import Profile, load_profile, read_profile
from runner.config.own_model import NewProfile, OwnModel, settings_of
from runner.errors import ConfigError

URL = "http://127.0.0.1:8000/v1"
DOCUMENT = Path(__file__).parents[3] / "docs/run/models.md"
DOCUMENTED = [
    f'id: lab\nagent:\n  model: "{model}"\n  endpoints:\n    - {endpoint}\n'
    for model, endpoint in re.findall(r"\n\| .+ \| `(.+?)` \| `({ url: .+?)` \|", DOCUMENT.read_text("utf-8"))
]


def load(folder: Path, text: str) -> Profile:
    (folder / "own.yaml").write_text(text)
    return load_profile("own.yaml", environ={}, cwd=folder)


@pytest.mark.parametrize("text", DOCUMENTED)
def test_a_documented_profile_uses_its_endpoint_alone(tmp_path: Path, text: str) -> None:
    profile = load(tmp_path, text)
    assert len(DOCUMENTED) == 7
    assert len(profile.agent.endpoint_names) == 1
    assert f'"{profile.agent.endpoints[0].url}"' in text
    assert profile.agent.model in text


@pytest.mark.parametrize(
    ("keys", "names", "model"),
    [
        ({}, ("a", "b"), "first"),
        ({"model": "mine"}, ("a", "b"), "mine"),
        ({"mode": "local"}, ("a", "b", "ollama"), "qwen35_9b"),
        ({"local_fallback": ""}, ("gateway", "a", "b"), "qwen35_9b"),
        ({"api_endpoint": URL}, ("gateway", "a", "b", "ollama"), "qwen35_9b"),
        ({"endpoints": []}, ("gateway", "ollama"), "qwen35_9b"),
    ],
)
def test_endpoints_alone_are_used_exactly(
    tmp_path: Path, keys: dict[str, Any], names: tuple[str, ...], model: str
) -> None:
    endpoints = [{"url": URL, "name": "a", "model": "first"}, {"url": URL, "name": "b", "model": "second"}]
    agent = load(tmp_path, json.dumps({"id": "own", "agent": {"endpoints": endpoints, **keys}})).agent
    assert (agent.endpoint_names, agent.model) == (names, model)


def write(
    own: OwnModel, folder: Path, text: str, environ: dict[str, str] | None = None, **changes: float
) -> NewProfile:
    """Write a profile from one with a text and with other settings."""
    environ = environ or {"HOME": str(folder)}
    (folder / "base.yaml").write_text(text, "utf-8")
    profile, file = read_profile("./base.yaml", environ=environ, cwd=folder)
    return own.write_profile(file, {**settings_of(profile), **changes}, environ, folder)


def test_a_new_profile_has_the_endpoint_and_all_else_of_the_one_in_use(tmp_path: Path) -> None:
    environments = '{ lightweight: [{ name: Maze, base_url: "${MAZE_URL:-http://m}" }], skip: [{ name: "08" }] }'
    text = f"# mine\nid: mine\n\n# to play\nenvironments: {environments}\nretention: {{ older: 8w }}"
    environ = {"HOME": str(tmp_path), "LAB_KEY": "sk-4f1d9c-a-secret-key"}
    own = OwnModel(URL, "../Qwen/1e5: #'\"\\é", "LAB_KEY")
    (first, lost), (second, _) = (write(own, tmp_path, text, environ) for _ in range(2))
    assert (lost, second.read_text("utf-8").startswith("# mine\nid: 1e5-2\n\n# to play\n")) == ([], True)
    assert (first.parent, first.name, second.name) == (
        tmp_path / ".config" / "agentgym-console" / "configs",
        "1e5.yaml",
        "1e5-2.yaml",
    )
    assert (first.stat().st_mode & 0o777, "sk-4f1d9c" in first.read_text(), "${MAZE_URL" in first.read_text()) == (
        0o600,
        False,
        True,
    )
    profile, default = (load_profile(name, environ=environ, cwd=tmp_path) for name in (first.stem, "./base.yaml"))
    assert (profile.id, profile.environments, profile.retention, profile.agent) == (
        "1e5",
        default.environments,
        default.retention,
        own.used_by(default, environ).agent,
    )
    assert (profile.agent.endpoint_names, profile.agent.model) == (("127.0.0.1",), own.model)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (OwnModel("localhost:8000", "m"), "expected an http:// or https:// URL"),
        (OwnModel(URL, ""), "type the model's name"),
        (OwnModel(URL, "m", "sk-4f1d9c"), "Expected the name of an environment variable, not its value"),
        (
            OwnModel(URL, "m", "EMPTY_KEY"),
            "The variable EMPTY_KEY, which is to hold the model's key, is not set or empty",
        ),
        (OwnModel(URL + "\x1b", "m\n"), "without control characters"),
    ],
)
def test_what_is_wrong_with_an_endpoint_is_named_without_its_value(own: OwnModel, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        own.used_by(Profile(id="p"), {"EMPTY_KEY": " "})
    assert expected in str(caught.value)
    assert "sk-4f1d9c" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written to"):
        write(OwnModel(URL, "m"), tmp_path, "id: a", {"XDG_CONFIG_HOME": str(tmp_path / "config")})
    with pytest.raises(ConfigError, match="type the URL"):
        write(OwnModel("", "m", "LAB_KEY"), tmp_path, "id: a")


def test_a_profile_that_cannot_be_written_whole_leaves_no_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))  # the disk has room for the one in use
    try:
        with pytest.raises(ConfigError, match="File too large"):
            write(OwnModel("", ""), tmp_path, "id: a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*(tmp_path / ".config/agentgym-console/configs").iterdir()] == []


def test_a_limit_of_requests_names_no_host_of_a_variable(tmp_path: Path) -> None:
    text, environ = (
        'id: a\nagent: { endpoints: [{ url: "${LAB}/v1" }] }',
        {"HOME": str(tmp_path), "LAB": "http://first"},
    )
    file, _ = write(OwnModel("", ""), tmp_path, text, environ, concurrent_requests=4)
    assert "first" not in file.read_text()
    assert (
        settings_of(load_profile(str(file), environ={"LAB": "http://second"}, cwd=tmp_path))["concurrent_requests"] == 4
    )


BASE = """# of the lab
id: lab
agent:  # the agent of every run
  rate_limits: { gateway: { requests_per_minute: 60 } }

# The limits.
episode: { max_rounds: 9 }
nats:
  url: "${BROKER:-nats://127.0.0.1:4222}"  # the broker"""


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (BASE, ["agent"]),
        ("{id: a, agent: {model: m}} # flow", ["all"]),
        ("id: a\nagent: &a {model: m, price: {}}\nray: {runtime_env: *a}\n# end", ["all"]),
        ("---\nid: a\n...\n", []),
        ("# \u00e9\u2028\nid: 'a'\nagent:\n  model: \"\U0001f600\"\n# end", []),
    ],
)
def test_settings_change_and_the_rest_stays_however_it_is_written(tmp_path: Path, text: str, lost: list[str]) -> None:
    changes = {"temperature": 0.0, "max_rounds": 3, "concurrent_requests": 4}
    path, lacks = write(OwnModel("", ""), tmp_path, text, None, **changes)
    before, after = (load_profile(str(each), environ={}, cwd=tmp_path) for each in (tmp_path / "base.yaml", path))
    assert (settings_of(after), after.agent.endpoint_names) == (
        settings_of(before) | changes,
        before.agent.endpoint_names,
    )
    assert (after.nats, after.ray, lacks) == (before.nats, before.ray, lost)
    if text is BASE:
        assert after.agent.rate_limits["gateway"].requests_per_minute == 60
        kept = [line for line in text.splitlines() if line.startswith(("#", "nats", "  url"))]
        assert [line for line in path.read_text().splitlines() if line in kept] == kept
