from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import runner.config
from runner.config import EnvironmentEntry, EventsStream, LiveStream, Profile, SkipEntry, load_profile
from runner.config.profile import RateLimit
from runner.errors import ConfigError
from runner.util.files import package_resource

FIELD_RUNNER = """
id: field-9
hardware: {gpu: RTX 3060, vram_gb: 11.5, ram_gb: 32, node: lab_9}
episode: {max_duration_sec: 90.5, max_rounds: 40, concurrent: 3}
agent:
  mode: local
  api_endpoint: "${TENSORZERO_URL:-http://gw:3030}/v1/chat/completions"
  model: llama3
  local_fallback: "llama3:8b"
environments:
  lightweight: [{name: Maze, server_cmd: "lmrlgym --port 7001", port: 7001}]
  moderate: [{name: WebShop, server_cmd: webshop, port: 7002}]
  skip: [{name: WebArena, reason: no browser}]
nats: {episode_completed: a.b.v1, eval_batch: a.c.v1, field_status: a.d.v1}
metrics: [score, token_count]
"""


def load(tmp_path: Path, text: str | bytes, environ: dict[str, str] | None = None) -> Profile:
    path = tmp_path / "p.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_profile(str(path), environ=environ or {}, cwd=tmp_path)


def load_error(tmp_path: Path, text: str | bytes, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'p.yaml'}:")
    return message


@pytest.mark.parametrize("value", ['""', "null"])
def test_an_empty_fallback_model_means_none(tmp_path: Path, value: str) -> None:
    agent = load(tmp_path, FIELD_RUNNER.replace('"llama3:8b"', value).replace("mode: local", "mode: api")).agent
    assert agent.local_fallback is None
    assert agent.endpoint_names == ("gateway",)


def test_all_shipped_profiles_load(tmp_path: Path) -> None:
    names = [Path(file.name).stem for file in package_resource("configs").iterdir() if file.name.endswith(".yaml")]
    assert "field-runner-4090" in names
    assert [load_profile(name, environ={}, cwd=tmp_path).id for name in names] == names


def test_a_file_with_only_the_keys_of_field_runners_loads(tmp_path: Path) -> None:
    profile = load(tmp_path, FIELD_RUNNER, {"TENSORZERO_URL": "http://other:1"})
    assert (profile.hardware.vram_gb, profile.episode.max_duration_sec, profile.hardware.node) == (11.5, 90.5, "lab_9")
    assert (profile.agent.mode, profile.agent.api_endpoint) == ("local", "http://other:1/v1/chat/completions")
    assert profile.tier("moderate") == (EnvironmentEntry(name="WebShop", server_cmd="webshop", port=7002),)
    assert profile.nats.eval_batch == "a.c.v1"
    assert profile.metrics == ("score", "token_count")


def test_only_the_id_is_required(tmp_path: Path) -> None:
    assert load(tmp_path, "id: small") == Profile(id="small")


def test_all_keys_of_this_project_load(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        """
        id: all
        data_dir: /var/lib/gym
        tracing: off
        episode: {workers: "${WORKERS:-ray}"}
        agent:
          format: tools
          endpoints: [{url: "https://api.example/v1", name: far, model: big, kind: openai, api_key_env: FAR_KEY}]
          rate_limits: {far: {requests_per_minute: 60}, ollama: {concurrent_requests: 4}}
          price: {"qwen3:8b": {prompt_per_mtok: 0.1, completion_per_mtok: 1, cached_per_mtok: 0}}
        environments:
          lightweight:
            - {name: Maze, ram: 1 MiB, deps: [numpy], transport: http, base_url: "http://[::1]:80/maze",
               timeout_sec: 2.5, autostart: true}
        nats:
          url: "nats://a:4222, tls://b"
          control: true
          monitor_url: "http://a:8222"
          streams: {events: {max_age_sec: 700, max_bytes: "${MAX_BYTES:-2000000}"}, live: {max_age_sec: 1.5}}
        """,
    )
    assert (profile.tracing, profile.episode.workers) == ("off", "ray")
    assert profile.agent.endpoints[0].api_key_env == "FAR_KEY"
    assert profile.agent.price["qwen3:8b"].completion_per_mtok == 1
    assert profile.agent.rate_limits["far"] == RateLimit(requests_per_minute=60)
    assert profile.tier("lightweight")[0].timeout_sec == 2.5
    assert profile.nats.control
    assert profile.nats.streams.events == EventsStream(max_age_sec=700, max_bytes=2_000_000, duplicate_window_sec=600)
    assert profile.nats.streams.live == LiveStream(max_age_sec=1.5, max_bytes=32 << 20)


def test_environment_names_are_case_insensitive(tmp_path: Path) -> None:
    profile = load(tmp_path, FIELD_RUNNER)
    assert profile.find_entry("mAZE") == profile.tier("lightweight")[0]
    assert profile.find_entry("webarena") == SkipEntry(name="WebArena", reason="no browser")
    assert profile.find_entry("Chess") is None


def test_an_expanded_value_gets_the_type_of_its_key(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        'id: "${ID}"\nhardware: {node: "${NODE}", gpu: "${UNSET:-}"}\nepisode: {max_rounds: "${ROUNDS:-9}"}\n'
        'nats: {url: "${NATS_URL:-}", control: "${CONTROL:-true}"}\nmetrics: ["${ID}"]\n'
        'environments: {lightweight: [{name: a, port: "${PORT:-36001}"}]}',
        {"ID": "4090", "NODE": "7", "PORT": "36009"},
    )
    assert (profile.id, profile.hardware.node, profile.hardware.gpu, profile.metrics) == ("4090", "7", "", ("4090",))
    assert (profile.episode.max_rounds, profile.tier("lightweight")[0].port) == (9, 36009)
    assert (profile.nats.url, profile.nats.control) == (None, True)


BAD_VALUES = [
    ("hardware: {vram: 1}", "hardware.vram", "unknown key (docs/run/profiles.md"),
    ("hardwear: 1", "hardwear", "unknown key; did you mean 'hardware'?"),
    ("agent: {endpoints: [{url: 'http://a', _target_: x}]}", "agent.endpoints[0]._target_", "must not start with _"),
    ("agent: {price: {_x: {}}}", "agent.price._x", "must not start with _"),
    ("hardware: 7", "hardware", "Expected `object`, got `int`"),
    ("environments: {lightweight: [{port: 1}]}", "environments.lightweight[0]", "missing required field `name`"),
    ("environments: {lightweight: [{name: ''}]}", "environments.lightweight[0].name", "Expected `str` of length >= 1"),
    ("episode: {max_rounds: 0}", "episode.max_rounds", "Expected `int` >= 1"),
    ("episode: {max_rounds: 1000001}", "episode.max_rounds", "Expected `int` <= 1000000"),
    ("episode: {max_rounds: true}", "episode.max_rounds", "Expected `int`, got `bool`"),
    ("episode: {max_rounds: '15'}", "episode.max_rounds", "Expected `int`, got `str`"),
    ("episode: {workers: -1}", "episode.workers", "Expected `int` >= 0"),
    ("episode: {workers: 257}", "episode.workers", "Expected `int` <= 256"),
    ("episode: {workers: true}", "episode.workers", "got `bool`"),
    ("episode: {workers: Ray}", "episode.workers", "unknown value; known: ray"),
    ("episode: {max_duration_sec: 0}", "episode.max_duration_sec", "Expected `float` > 0"),
    ("episode: {wait_sec: -1}", "episode.wait_sec", "Expected `float` >= 0"),
    ("episode: {max_duration_sec: .nan}", "episode.max_duration_sec", "got `str`"),
    ('hardware: {node: "a\\n"}', "hardware.node", "Expected a name of 1 to 64"),
    ("environments: {moderate: [{name: a, port: 0}]}", "environments.moderate[0].port", "Expected `int` >= 1"),
    ("environments: {moderate: [{name: a, port: 65536}]}", "environments.moderate[0].port", "Expected `int` <= 65535"),
    (
        "environments: {moderate: [{name: a, transport: tcp}]}",
        "environments.moderate[0].transport",
        "unknown value; known: auto, embedded, http",
    ),
    ("environments: {moderate: [{name: a, base_url: 'h:1'}]}", "environments.moderate[0].base_url", "http://"),
    ("environments: {moderate: [{name: a, base_url: 'http://h:99999'}]}", "environments.moderate[0].base_url", "URL"),
    ("agent: {api_endpoint: 'file:///etc/passwd'}", "agent.api_endpoint", "expected an http:// or https:// URL"),
    ("agent: {idle_timeout_sec: null}", "agent.idle_timeout_sec", "Expected `float`, got `null`"),
    ("agent: {mode: remote}", "agent.mode", "unknown value; known: "),
    ("agent: {price: {'q:8': {prompt_per_mtok: -1}}}", "agent.price[...].prompt_per_mtok", "Expected `float` >= 0"),
    (
        "agent: {mode: local, endpoints: [{url: 'http://a', model: m}]}\nare: {judge_model: other}",
        "are.judge_model",
        "no endpoint serves it; known models: m, qwen3:8b",
    ),
    ("agent: {rate_limits: {far: {}}}", "agent.rate_limits.far", "known endpoints: gateway, ollama"),
    ("nats: {eval_batch: 'a.*'}", "nats.eval_batch", "Expected a NATS subject"),
    ("nats: {eval_batch: 'a..b'}", "nats.eval_batch", "Expected a NATS subject"),
    ("nats: {episode_completed: '>'}", "nats.episode_completed", "Expected a NATS subject"),
    ("nats: {url: 'http://h'}", "nats.url", "nats://"),
    ("nats: {monitor_url: 'nats://h'}", "nats.monitor_url", "http://"),
    ("nats: {streams: {events: {max_bytes: 1000}}}", "nats.streams.events.max_bytes", "Expected `int` >= 1048576"),
    ("nats: {streams: {events: {max_bytes: 4294967297}}}", "nats.streams.events.max_bytes", "<= 4294967296"),
    (
        "nats: {streams: {events: {max_age_sec: 60}}}",
        "nats.streams.events.duplicate_window_sec",
        "expected at most max_age_sec, which is 60, got 600",
    ),
    ("nats: {streams: {live: {max_bytes: 536870913}}}", "nats.streams.live.max_bytes", "Expected `int` <= 536870912"),
    ("data_dir: ${NOPE}", "data_dir", "NOPE is not set"),
    ('data_dir: "a\\0b"', "data_dir", "control characters"),
]


@pytest.mark.parametrize(("text", "key_path", "reason"), BAD_VALUES)
def test_an_invalid_value_is_rejected_with_its_key_path_and_the_expected_value(
    tmp_path: Path, text: str, key_path: str, reason: str
) -> None:
    message = load_error(tmp_path, f"id: x\n{text}")
    assert f": {key_path}: " in message
    assert reason in message


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (
            "moderate: [{name: b, port: 5}]",
            "moderate[0].port: duplicate port 5; environments.lightweight[0] has the same",
        ),
        ("skip: [{name: MAZE}]", "skip[0].name: duplicate name; environments.lightweight[0] has the same"),
    ],
)
def test_names_and_ports_must_be_unique_across_all_lists(tmp_path: Path, second: str, problem: str) -> None:
    message = load_error(tmp_path, f"id: x\nenvironments: {{lightweight: [{{name: Maze, port: 5}}], {second}}}")
    assert f": environments.{problem}" in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id: x\nepisode: [1\nmetrics: ]", "line 3: not valid YAML"),
        ("id: x\n\tid: y", "line 2: not valid YAML"),
        ("id: x\nid: y", "line 2: duplicate key"),
        ("id: x\nhardware:\n  gpu: a\n  'gpu': b", "line 4: duplicate key"),
        ("id: !!python/object/apply:os.system [ls]", "line 1: tags are not supported"),
        ("id: !!int 5", "line 1: tags are not supported"),
        ("id: x\n---\nid: y", "more than one document"),
        ("id: x\n? [a]\n: b", "line 2: a key must be a plain text"),
        ("id: x\nmetrics: &m [*m]", "line 2: unknown alias"),
        ("id: *nothing", "line 1: unknown alias"),
        ("[" * 100_000, "more than 32 levels"),
        ("- " * 5_000 + "x", "more than 32 levels"),
        ("id: x\nmetrics: [" + "a," * 30_000 + "]", "more than 20000 values"),
        ("x" * (1 << 20) + "x", "larger than"),
        ("[a, b]", "top level: Expected `object`"),
        ("", "top level: Expected `object`"),
        ("${ID:-x}", "top level: Expected `object`"),
        (b"id: \xff", "not UTF-8"),
        (b"id: \x00", "not valid YAML"),
    ],
)
def test_a_file_without_a_plain_mapping_is_rejected_with_the_line(
    tmp_path: Path, text: str | bytes, reason: str
) -> None:
    assert reason in load_error(tmp_path, text)


def test_aliases_are_supported_within_the_value_limit(tmp_path: Path) -> None:
    profile = load(tmp_path, "id: &name x\nmetrics: [*name, *name]")
    assert profile.metrics == ("x", "x")
    bomb = "\n".join(f"- &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12))
    assert "more than 20000 values" in load_error(tmp_path, f"- &l0 lol\n{bomb}")


@pytest.mark.parametrize(
    "text",
    [
        'hardware: {node: "a ${GATEWAY_TOKEN}"}',
        'agent: {mode: "${URL}"}',
        'agent: {mode: "${GATEWAY_TOKEN}"}',
        "agent: {endpoints: [{url: 'http://a', api_key_env: sk-literal-1}]}",
        'tracing: "\u202eevil"',
        '"\u202eevil": 1',
        'agent: {api_endpoint: "${URL}"}',
        "notify: {url: 'ftp://hooks/hush-hush-1'}",
        "agent: {mode: sk-literal-1}",
        "environments: {moderate: [{name: a, transport: sk-literal-1}]}",
    ],
)
def test_errors_contain_no_secrets_and_no_control_characters(tmp_path: Path, text: str) -> None:
    environ = {"GATEWAY_TOKEN": "hush-hush-1", "URL": "ftp://me:pa55word@host"}
    message = load_error(tmp_path, f"id: x\n{text}", environ)
    for secret in ("hush-hush-1", "pa55word", "sk-literal-1", "\u202e"):
        assert secret not in message


def test_every_key_is_documented() -> None:
    document = Path(__file__).parents[3] / "docs/run/profiles.md"
    text = document.read_text("utf-8")
    sections = [value for value in vars(runner.config.profile).values() if hasattr(value, "__struct_fields__")]
    keys = {field for section in sections for field in section.__struct_fields__}
    assert {"max_rounds", "monitor_url", "cached_per_mtok"} <= keys
    assert not [key for key in sorted(keys) if f"`{key}`" not in text and f".{key}`" not in text]


def test_the_length_of_an_id_is_limited(tmp_path: Path) -> None:
    assert load(tmp_path, f"id: {'x' * 200}").id == "x" * 200
    assert "id: Expected `str` of length <= 200" in load_error(tmp_path, f"id: {'x' * 201}")


def test_an_environment_waits_for_its_server_as_the_episodes_do_unless_it_has_a_value() -> None:
    entries = (runner.config.EnvironmentEntry(name="Maze"), runner.config.EnvironmentEntry(name="Wordle", wait_sec=0))
    profile = runner.config.Profile(id="p", environments=runner.config.Environments(lightweight=entries))
    assert [profile.episode_settings(name).wait_sec for name in ("maze", "WORDLE", "SQLGym")] == [60.0, 0.0, 60.0]
    profile = msgspec.structs.replace(profile, episode=runner.config.EpisodeSettings(wait_sec=5.0))
    assert [profile.episode_settings(name).wait_sec for name in ("maze", "WORDLE", "SQLGym")] == [5.0, 0.0, 5.0]
