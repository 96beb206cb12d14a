"""The command with a model: without and with a responding endpoint, its usage, and the pre-flight checks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.serve.mock_llm.script import Fault
from tests.support.command import run_agentgym
from tests.support.model_server import ModelServer
from tests.support.nats_server import NatsAccount
from tests.support.rude_model import PendingRequest, RudeModel, completion_response, http_response
from tests.support.ruled_model import Refusal, RuledModel, Rules
from tests.support.server_wordings import PARTS

pytestmark = pytest.mark.long

UNREACHABLE_ENDPOINTS = {"TENSORZERO_URL": "http://127.0.0.1:1", "OLLAMA_HOST": "127.0.0.1:1"}
KEY = "sk-4f1d9c-a-secret-key"


@pytest.fixture(scope="module")
def model_server() -> Iterator[ModelServer]:
    with ModelServer(models=("small", "other"), token=KEY) as running:
        yield running


@pytest.fixture
def profile(model_server: ModelServer, tmp_path: Path) -> str:
    """Path of a profile whose only endpoint requires a key and whose model has a price."""
    agent = {
        "mode": "local",
        "local_fallback": None,
        "model": "small",
        "endpoints": [{"url": model_server.url, "name": "lab", "kind": "openai", "api_key_env": "LAB_KEY"}],
        "price": {"small": {"prompt_per_mtok": 1.0, "completion_per_mtok": 2.0}},
    }
    environments = {"lightweight": [{"name": "Maze"}], "moderate": [{"name": "Nowhere"}]}
    (tmp_path / "lab.yaml").write_text(json.dumps({"id": "lab", "agent": agent, "environments": environments}))
    return str(tmp_path / "lab.yaml")


def stored_batch(folder: Path, completed: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (batch,) = json.loads(completed)["batches"]
    files = sorted((folder / "data" / "runs" / batch["batch_id"]).glob("*.json"))
    return batch, [json.loads(path.read_bytes()) for path in files]


def test_without_a_model_no_episode_runs_and_the_suggested_command_works(tmp_path: Path) -> None:
    options = ("--run", "Maze", "--agent=tools", "--repeat", "2", "--model", "any", "--data-dir", "my data")
    completed = run_agentgym(tmp_path, *options, environ=UNREACHABLE_ENDPOINTS)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert list(tmp_path.iterdir()) == []
    assert "gateway (http://127.0.0.1:1/v1/chat/completions, model any): no connection" in completed.stderr
    assert "start TensorZero's gateway, or set TENSORZERO_URL" in completed.stderr
    assert "start it with: ollama serve" in completed.stderr
    last = completed.stderr.splitlines()[-1]
    assert last == "Without a model: agentgym-runner --run Maze --repeat 2 --data-dir 'my data' --agent oracle"
    again = run_agentgym(tmp_path, *shlex.split(last)[4:], environ=UNREACHABLE_ENDPOINTS)
    assert again.returncode == 0, again.stderr
    assert "Results of oracle (baseline, no model)" in again.stdout


def test_without_an_oracle_another_agent_is_suggested(tmp_path: Path) -> None:
    completed = run_agentgym(tmp_path, "--run", "gymnasium:FrozenLake-v1", environ=UNREACHABLE_ENDPOINTS)
    assert completed.returncode == 2
    assert "agentgym-runner --run gymnasium:FrozenLake-v1 --agent random" in completed.stderr


def test_a_profile_without_endpoints_is_reported(tmp_path: Path) -> None:
    agent = {"mode": "local", "local_fallback": None}
    (tmp_path / "none.yaml").write_text(json.dumps({"id": "none", "agent": agent}))
    completed = run_agentgym(tmp_path, "--config", "none.yaml", "--run", "Maze")
    assert completed.returncode == 2
    assert "the profile has no model endpoint; set agent.endpoints" in completed.stderr
    checked = run_agentgym(tmp_path, "preflight", "--config", "none.yaml", "--env", "Maze")
    assert checked.returncode == 1
    assert "the profile has no model endpoint" in checked.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_token_ids_of_episodes_are_stored_by_every_kind_of_worker_and_audited(
    model_server: ModelServer, tmp_path: Path, workers: str
) -> None:
    endpoint = {"url": model_server.url, "name": "lab", "kind": "openai", "api_key_env": "LAB_KEY", "token_ids": True}
    agent = {"mode": "local", "local_fallback": None, "model": "small", "endpoints": [endpoint]}
    (tmp_path / "ids.yaml").write_text(json.dumps({"id": "ids", "agent": agent}))
    options = ("--config", "ids.yaml", "--run", "Maze", "--repeat", "2", "--workers", workers, "--json")
    completed = run_agentgym(tmp_path, *options, environ={"LAB_KEY": KEY})
    assert completed.returncode == 0, completed.stderr
    _, episodes = stored_batch(tmp_path, completed.stdout)
    assert all([step["tokens_ref"] for step in each["timesteps"]] == [*range(each["rounds"])] for each in episodes)
    audit = json.loads(run_agentgym(tmp_path, "export", "--audit", "--json").stdout)
    n_steps = sum(each["rounds"] for each in episodes)
    assert (audit["n_steps"], audit["n_trained_steps"], audit["sequences"]) == (n_steps, n_steps, {"agent": n_steps})
    assert audit["n_trained_ids"] == sum(each["tokens"]["completion"] for each in episodes)
    assert audit["n_prompt_ids"] == sum(each["tokens"]["prompt"] for each in episodes)
    assert audit["problems"] == {}


def test_worker_processes_learn_once_what_an_endpoint_does_not_take(tmp_path: Path) -> None:
    rules = Rules(refusals=(Refusal("tools", PARTS["tools"][0]), Refusal("system", PARTS["system"][0])))
    with RuledModel(rules, key=KEY) as server:
        endpoint = {"url": server.url, "name": "a", "kind": "openai", "api_key_env": "LAB_KEY"}
        agent = {"mode": "local", "local_fallback": None, "model": "m", "endpoints": [endpoint]}
        profile = {"id": "lab", "episode": {"max_rounds": 3}, "agent": {**agent, "max_unparsed": 9}}
        (tmp_path / "lab.yaml").write_text(json.dumps(profile))
        options = ("--config", "lab.yaml", "--run", "Maze", "--repeat", "16", "--concurrency", "4", "--workers", "2")
        completed = run_agentgym(tmp_path, *options, "--json", environ={"LAB_KEY": KEY})
    assert completed.returncode == 0, completed.stderr
    _, episodes = stored_batch(tmp_path, completed.stdout)
    warnings = [warning for each in episodes for step in each["timesteps"] for warning in step.get("warnings", ())]
    assert [len(each["timesteps"]) for each in episodes] == [3] * 16
    assert warnings == ["a: learned tools as text, folded system from HTTP 500: tools param requires --jinja flag"]
    causes = [received.cause for received in server.received]
    assert (causes.count(""), server.violations) == (3 * 16, [])
    # the learner: one refusal of each part and its repetition; the three requests that were on their way: one
    assert causes.count("tools") <= 2 + 3
    assert causes.count("system") <= 2


def test_model_usage_is_summarized_and_the_key_is_never_stored(profile: str, tmp_path: Path) -> None:
    options = ("--config", profile, "--run", "Maze", "--repeat", "3")
    completed = run_agentgym(tmp_path, *options, "--json", environ={"LAB_KEY": KEY})
    assert completed.returncode == 0, completed.stderr
    batch, episodes = stored_batch(tmp_path, completed.stdout)
    steps = [step for episode in episodes for step in episode["timesteps"]]
    assert {(step["endpoint"], step["model"]) for step in steps} == {("lab", "small")}
    assert batch["tokens"]["completion"] == sum(step["tokens"]["completion"] for step in steps) > 0
    priced = sum(step["tokens"]["prompt"] + 2 * step["tokens"]["completion"] for step in steps) / 1e6
    assert (batch["cost"], batch["currency"]) == (pytest.approx(priced), "USD")
    assert batch["cost"] == pytest.approx(sum(episode["cost"] for episode in episodes))
    other = run_agentgym(tmp_path, *options, "--model", "other", environ={"LAB_KEY": KEY})
    assert "Results of react other" in other.stdout
    assert all(text in other.stdout for text in (" in, ", " out", "latency"))
    output = run_agentgym(tmp_path, "--results").stdout
    assert f"{batch['cost']:.3g} USD" in output
    rows = {row["model"]: row for row in json.loads(run_agentgym(tmp_path, "--results", "--json").stdout)["results"]}
    assert rows["small"]["tokens"] == batch["tokens"]
    assert (rows["small"]["cost"], rows["other"]["cost"]) == (pytest.approx(priced), None)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert KEY not in completed.stdout + completed.stderr + other.stdout + other.stderr + stored.decode(
        "utf-8", "replace"
    )


def test_a_dry_run_uses_the_model_or_gives_the_reason(profile: str, tmp_path: Path) -> None:
    options = ("--config", profile, "--run", "Maze", "--dry-run", "--json")
    passed = run_agentgym(tmp_path, *options, environ={"LAB_KEY": KEY})
    assert passed.returncode == 0, passed.stdout
    checks = json.loads(passed.stdout)["checks"]
    assert [check["what"] for check in checks] == ["state directory", "workers", "model lab", "Maze with react"]
    assert "task 0 was reset" in checks[-1]["detail"]
    assert "no model was prompted" in checks[-1]["detail"]
    failed = run_agentgym(tmp_path, *options, environ={"LAB_KEY": "some-other-lab-key"})
    assert failed.returncode == 1
    *_, model = json.loads(failed.stdout)["checks"]
    assert (model["what"], model["ok"]) == ("model lab", False)
    assert "set the variable LAB_KEY to a valid key" in model["detail"]
    assert not (tmp_path / "data").exists()


@pytest.fixture
def defaults() -> Iterator[tuple[RudeModel, dict[str, str]]]:
    """A server in place of the default profile's gateway and of Ollama, and the variables with its address."""
    with RudeModel(completion_response("of the defaults")) as server:
        yield server, {"TENSORZERO_URL": server.origin, "OLLAMA_HOST": server.origin, "LAB_KEY": KEY}


def test_an_endpoint_of_the_command_line_is_used_alone(
    model_server: ModelServer, defaults: tuple[RudeModel, dict[str, str]], tmp_path: Path
) -> None:
    unused, environ = defaults
    options = ("--run", "Maze", "--repeat", "2", "--endpoint", model_server.url, "--model", "small,other")
    completed = run_agentgym(tmp_path, *options, "--key-env", "LAB_KEY", "--workers", "2", "--json", environ=environ)
    assert completed.returncode == 0, completed.stderr
    batches = json.loads(completed.stdout)["batches"]
    assert [(batch["model"], batch["success_rate"]) for batch in batches] == [("small", 1.0), ("other", 1.0)]
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert KEY not in completed.stdout + completed.stderr + stored.decode("utf-8", "replace")
    assert unused.requests == []


@pytest.mark.parametrize(
    ("options", "key", "expected"),
    [
        (
            ("--model", "small", "--key-env", "LAB_KEY"),
            "sk-of-another-server",
            "set the variable LAB_KEY to a valid key",
        ),
        (("--model", "small"), KEY, "with api_key_env of the endpoint or with --key-env"),
        (("--model", "small", "--key-env", "LAB_KEY"), "", "The variable LAB_KEY, which is to hold the model's key"),
        (("--model", "large", "--key-env", "LAB_KEY"), KEY, "the model large is not among the server's models: test"),
        (("--key-env", "LAB_KEY"), KEY, "--endpoint needs --model NAME; that server lists test-oracle, test-echo"),
    ],
)
def test_a_wrong_endpoint_of_the_command_line_is_explained(
    model_server: ModelServer, tmp_path: Path, options: tuple[str, ...], key: str, expected: str
) -> None:
    own = ("--endpoint", model_server.url, *options)
    run = run_agentgym(tmp_path, "--run", "Maze", *own, environ={"LAB_KEY": key})
    checked = run_agentgym(tmp_path, "preflight", "--env", "Maze", *own, "--json", environ={"LAB_KEY": key})
    assert (run.returncode, run.stdout) == (2, "")
    assert expected in run.stderr
    assert checked.returncode == (1 if checked.stdout else 2)
    assert expected in checked.stdout + checked.stderr
    assert not any(key and key in each.stdout + each.stderr for each in (run, checked))
    assert not (tmp_path / "data").exists()
    if "Without a model:" in run.stderr:
        assert run.stderr.splitlines()[-1] == "Without a model: agentgym-runner --run Maze --agent oracle"


def test_a_variable_of_no_endpoint_is_refused(tmp_path: Path) -> None:
    completed = run_agentgym(tmp_path, "--run", "Maze", "--key-env", "LAB_KEY")
    assert (completed.returncode, "--key-env belongs to --endpoint URL" in completed.stderr) == (2, True)


def test_a_profile_with_endpoints_alone_contacts_no_other_server(
    model_server: ModelServer, defaults: tuple[RudeModel, dict[str, str]], tmp_path: Path
) -> None:
    unused, environ = defaults
    agent = {"endpoints": [{"url": model_server.url, "name": "lab", "model": "small", "api_key_env": "LAB_KEY"}]}
    (tmp_path / "own.yaml").write_text(json.dumps({"id": "own", "agent": agent}))
    checked = run_agentgym(tmp_path, "preflight", "--config", "own.yaml", "--env", "Maze", "--json", environ=environ)
    document = json.loads(checked.stdout)
    assert [row["name"] for row in document["rows"] if row["what"] == "model"] == ["lab"]
    assert document["model"] == "small"
    completed = run_agentgym(tmp_path, "--config", "own.yaml", "--run", "Maze", "--json", environ=environ)
    assert completed.returncode == 0, completed.stderr
    batch, episodes = stored_batch(tmp_path, completed.stdout)
    assert {batch["model"], *(step["model"] for step in episodes[0]["timesteps"])} == {"small"}
    assert unused.requests == []


def test_a_preflight_names_problems_and_hints(profile: str, bus: NatsAccount, tmp_path: Path) -> None:
    environ = {"LAB_KEY": KEY, "NATS_URL": bus.url}
    passed = run_agentgym(tmp_path, "preflight", "--config", profile, "--json", environ=environ)
    assert passed.returncode == 0, passed.stdout
    rows = {row["name"]: row for row in json.loads(passed.stdout)["rows"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "lab": "ok",
        "Maze": "ok",
        "Nowhere": "warn",
        "": "ok",
        "own broker": "ok",
        "egress": "ok",
    }
    assert (rows["Nowhere"]["cause"], "install a package" in rows["Nowhere"]["hint"]) == ("not installed", True)
    options = ("preflight", "--config", profile, "--data-dir", "/proc/nothing", "--agent", "oracle")
    failed = run_agentgym(tmp_path, *options, environ={"NATS_URL": "nats://127.0.0.1:1"})
    assert failed.returncode == 1
    output = failed.stdout
    assert all(text in output for text in ("cannot be written", "--data-dir", "the events wait in the outbox"))
    assert "model lab" not in output
    assert "A run would fail" in output
    assert not (tmp_path / "data").exists()


def test_a_preflight_has_the_lines_of_the_field_runners_page(tmp_path: Path) -> None:
    with ModelServer(models=("qwen3:8b",)) as ollama:
        environ = {**UNREACHABLE_ENDPOINTS, "OLLAMA_HOST": ollama.url}
        passed = run_agentgym(tmp_path, "preflight", "--env", "Maze", environ=environ).stdout
    failed = run_agentgym(tmp_path, "preflight", "--env", "Maze", environ=UNREACHABLE_ENDPOINTS).stdout
    assert "TensorZero: DOWN\nNATS: unreachable\nOllama: qwen3:8b\n" in passed
    assert "TensorZero: DOWN\nNATS: unreachable\nOllama qwen3 models not found\n" in failed
    assert "│ model gateway    │ FAIL  │ qwen35_9b at http://" in failed
    with RudeModel(routes={"/healthz": http_response(200, b'{"status":"ok"}')}) as monitor:
        (tmp_path / "lab.yaml").write_text(json.dumps({"id": "lab", "nats": {"monitor_url": monitor.origin}}))
        options = ("preflight", "--config", "lab.yaml", "--env", "Maze", "--agent", "oracle", "--json")
        assert json.loads(run_agentgym(tmp_path, *options).stdout)["services"] == ["NATS: OK"]


def test_models_are_tried_only_on_request(tmp_path: Path) -> None:
    def answer(pending: PendingRequest) -> None:
        has_key = pending.request.headers.get("authorization") == f"Bearer {KEY}"
        refusal = http_response(401, b'{"error": {"message": "Incorrect API key provided"}}')
        pending.send(completion_response('Action: move({"direction": "left"})') if has_key else refusal)

    options = ("preflight", "--config", "tried.yaml", "--env", "Maze")
    with RudeModel(answer) as server:
        endpoint = {"url": server.url, "name": "lab", "kind": "openai", "api_key_env": "LAB_KEY"}
        price = {"small": {"prompt_per_mtok": 1.0, "completion_per_mtok": 2.0}}
        agent = {"mode": "local", "local_fallback": None, "model": "small", "endpoints": [endpoint], "price": price}
        (tmp_path / "tried.yaml").write_text(json.dumps({"id": "tried", "agent": agent}))
        plain = run_agentgym(tmp_path, *options, environ={"LAB_KEY": KEY})
        assert not [request for request in server.chat_requests if request.json().get("messages")]
        tried = run_agentgym(tmp_path, *options, "--try-models", environ={"LAB_KEY": KEY})
        as_json = run_agentgym(tmp_path, *options, "--try-models", "--json", environ={"LAB_KEY": KEY})
        failed = run_agentgym(tmp_path, *options, "--try-models", environ={"LAB_KEY": "sk-another-key-than-that"})
    assert (plain.returncode, "agentgym-runner preflight --try-models" in plain.stdout) == (0, True)
    assert (tried.returncode, "--try-models" in tried.stdout) == (0, False)
    assert "standard requests; wrote its action as text; 2 of 2 answers, 2,400 tokens, 0.0028 USD, " in tried.stdout
    (trial,) = json.loads(as_json.stdout)["trials"]
    assert (trial["endpoint"], trial["acts"], trial["failure"]) == ("lab", ["text", "text"], None)
    assert (failed.returncode, failed.stdout.count("HTTP 401: Incorrect API key provided")) == (1, 2)
    assert "set the variable LAB_KEY to a valid key" in failed.stdout
    assert not any(KEY in each.stdout + each.stderr for each in (plain, tried, as_json, failed))
    assert not (tmp_path / "data").exists()
    oracle = run_agentgym(tmp_path, *options, "--agent", "oracle", "--try-models")
    assert (oracle.returncode, "needs an agent with a model" in oracle.stderr) == (2, True)


def test_a_preflight_can_be_limited_to_one_environment(profile: str, tmp_path: Path) -> None:
    options = ("preflight", "--config", profile)
    one = run_agentgym(tmp_path, *options, "--agent", "oracle", "--env", "mAZE")
    assert (one.returncode, "Nowhere" in one.stdout) == (0, False)
    none = run_agentgym(
        tmp_path, "preflight", "--config", profile, "--agent", "oracle", "--env", "gymnasium:FrozenLake-v1"
    )
    assert none.returncode == 1
    assert "has no oracle" in none.stdout
    for option in ("--env", "--agent"):
        unknown = run_agentgym(tmp_path, *options, option, "Mase")
        assert (unknown.returncode, unknown.stdout) == (2, "")


def test_errors_of_an_endpoint_are_no_failures_of_the_model(
    profile: str, model_server: ModelServer, tmp_path: Path
) -> None:
    model_server.inject(
        Fault("400", times=6 * 6)
    )  # with streaming, its options, the system prompt, tools, none of them
    options = ("--config", profile, "--run", "Maze", "--repeat", "12", "--concurrency", "1", "--json")
    completed = run_agentgym(tmp_path, *options, environ={"LAB_KEY": KEY})
    model_server.inject()
    assert completed.returncode == 1
    assert "12/12 episodes, success 100% of 6, mean reward 1.000, 6 errors" in completed.stderr
    batch, _ = stored_batch(tmp_path, completed.stdout)
    (row,) = json.loads(run_agentgym(tmp_path, "--results", "--json").stdout)["results"]
    for counts in (batch, row):
        assert (counts["n_rated"], counts["n_success"], counts["n_errors"]) == (6, 6, 6)
        assert counts["success_rate"] == 1.0
        assert counts["success_interval"] == pytest.approx((0.6097, 1.0), abs=1e-4)
        assert counts["outcomes"] == {"success": 6, "error": 6}
    assert " 100.0% of 6 " in run_agentgym(tmp_path, "--results", environ={"COLUMNS": "240"}).stdout
