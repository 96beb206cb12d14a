"""The agent ``agentgym`` against recordings of AgentGym's own clients and of its Evaluator, with the same answers.

``client_parsing.jsonl`` has what each client sends for a model's text, ``evaluator.jsonl`` conversations of the
Evaluator on AgentGym's servers: the turns after the instruction and its acknowledgement, reward and success. The
instructions are AgentGym's and not here: a checkout with texts of our own stands in for it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from contextlib import closing as finally_closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.agents.agentgym import TWO_ACTIONS, extract_action, read_instruction
from runner.batch.batch import Batch
from runner.batch.spec import RUN_FILES, BatchRequest, place_batch, resolve_batch
from runner.batch.workspace import Workspace
from runner.config import Profile
from runner.config.own_model import OwnModel
from runner.envs.wordle import AGENTGYM_WORDS
from runner.errors import ConfigError
from runner.formats.task_files import read_tasks
from runner.inference.profile_models import Models
from runner.results.evaluation import AGENTEVAL
from tests.support.recordings import load_rows
from tests.support.rude_model import PendingRequest, RudeModel, completion_response, http_response

ACKNOWLEDGEMENT = "Understood."
OPENINGS = {"Maze": "Walk.\n\nBegin:", "Wordle": "Guess one of:\n{{vocab}}"}
CLIENTS = {
    "babyai": ("BabyAIEnvClient",),
    "textcraft": ("TextCraftEnvClient",),
    "lmrlgym": ("MazeEnvClient", "WordleEnvClient"),
    "alfworld": ("AlfWorldAdapter",),
    "webshop": ("WebshopAdapter",),
    "sciworld": ("SciWorldAdapter",),
    "sqlgym": ("SqlGymEnvClient",),
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with clients as AgentGym's are written; each fails if it is imported."""
    folder = tmp_path / "AgentGym" / "agentenv" / "agentenv" / "envs"
    folder.mkdir(parents=True)
    for module, owners in CLIENTS.items():
        source = "raise RuntimeError('imported')\n" + "\n".join(map(client_source, owners))
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("AGENTENV_PATH", str(tmp_path / "AgentGym"))
    return tmp_path / "AgentGym"


def client_source(owner: str) -> str:
    human = f"""ConversationMessage({{"from": "human", "loss": None, "value": "Play " "{owner}."}})"""
    model = f"""ConversationMessage({{"from": "gpt", "loss": False, "value": {ACKNOWLEDGEMENT!r}}})"""
    start = f"({human}, {model})"
    if owner.endswith("Adapter"):
        other = f"({model}, {human})"
        formats = f"{{ActionFormat.CODE_AS_ACTION: {other}, ActionFormat.REACT: {start}}}"
        return f"class {owner}(BaseAdapter):\n    conversation_start_dict = {formats}\n"
    name, opening = {"MazeEnvClient": ("_fully_first_observation", "Maze")}.get(owner, ("first_observation", "Wordle"))
    text = f"    {name} = {OPENINGS[opening]!r}.strip()\n" if owner.startswith(("Maze", "Wordle")) else ""
    return f"class {owner}(BaseEnvClient):\n    conversation_start = {start}\n{text}"


@pytest.mark.parametrize("env", sorted({case["env"] for case in load_rows("client_parsing.jsonl")}))
def test_the_action_is_what_agentgyms_client_sends(env: str) -> None:
    for case in load_rows("client_parsing.jsonl"):
        if case["env"] == env:
            assert extract_action(env, case["text"]) == case["sends"], case
            assert case["local"] in (None, TWO_ACTIONS)


PIECES = st.sampled_from(
    ["Action:", "action:", "Thought:", "\n", "\r\n", "  ", "\t", "</s>", "```sql", "```", "search[", "click[x]"]
)
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=12).map("".join)


@given(TEXTS)
def test_the_extraction_is_the_published_table(text: str) -> None:
    """The rules once more, as the table states them."""
    found = re.findall(r"Action:\s*(.*?)(?=\n|$)", text, re.DOTALL)
    one_line = " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", found[0] if found else "").split())
    whole = text[:-5] if text.endswith("</s>") else text
    parts = whole.split("Action:")
    bare = whole if "search[" in whole or "click[" in whole else ""
    assert extract_action("BabyAI", text) == (None if len(found) > 1 else one_line)
    assert extract_action("TextCraft", text) == extract_action("BabyAI", text)
    for env in ("Maze", "Wordle"):
        assert extract_action(env, text) == (parts[1] if len(parts) > 1 else parts[0]).strip()
    for env in ("ALFWorld", "WebShop", "SciWorld"):
        assert extract_action(env, text) == (parts[-1] if len(parts) > 1 else bare).strip()
    assert extract_action("SQLGym", text) == text.split("```sql")[-1].split("```")[0].strip()


class Evaluator:
    """A model that answers as recorded, and only to a chat that is, turn by turn, the recorded one."""

    def __init__(self, env: str, instruction: str, cases: list[dict[str, Any]]) -> None:
        self.unknown: list[Any] = []
        self._replies: dict[tuple[str, ...], str] = {}
        for case in cases:
            given = [instruction, ACKNOWLEDGEMENT, *opened(env, case["turns"])]
            for number in range(3, len(given), 2):
                self._replies[tuple(given[:number])] = given[number]

    def __call__(self, pending: PendingRequest) -> None:
        messages = pending.request.json()["messages"]
        roles = [message["role"] for message in messages]
        reply = self._replies.get(tuple(message["content"] for message in messages))
        if reply is None or roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            self.unknown.append(messages)
            pending.send(http_response(400, b'{"error": "another conversation than the recorded one"}'))
        else:
            pending.send(completion_response(reply))


def opened(env: str, turns: list[str]) -> list[str]:
    """Return recorded turns with the text that the client puts before or in place of the first observation."""
    if env == "maze":
        return [f"{OPENINGS['Maze']}\n{turns[0]}", *turns[1:]]
    if env == "wordle":
        return [OPENINGS["Wordle"].replace("{{vocab}}", "\n".join(AGENTGYM_WORDS)), *turns[1:]]
    return turns


@pytest.mark.parametrize("env", sorted({case["env"] for case in load_rows("evaluator.jsonl")}))
@pytest.mark.usefixtures("checkout")
def test_the_evaluators_conversations_are_played_again(env: str, tmp_path: Path) -> None:
    cases = [case for case in load_rows("evaluator.jsonl") if case["env"] == env]
    ids = [case["item_id"].replace(env, f"lmrlgym_{env}" if env in ("maze", "wordle") else env) for case in cases]
    (tmp_path / "tasks.json").write_text(json.dumps([{"item_id": each, "conversations": None} for each in ids]))
    answer = Evaluator(env, read_instruction(env, {"AGENTENV_PATH": str(tmp_path / "AgentGym")}).prompt, cases)
    (numbers,) = read_tasks(tmp_path / "tasks.json", env).values()
    limit = max(len(case["turns"]) // 2 for case in cases)
    with RudeModel(answer) as model, finally_closing(Workspace(tmp_path / "data", node="n", profile="p")) as workspace:
        profile = OwnModel(model.url, "m", None).used_by(Profile(id="p"), {})
        request = BatchRequest(env=env, agent="agentgym", tasks=numbers, max_rounds=limit, allow_longer=True, workers=0)
        with finally_closing(Models(profile.agent, {})) as models:
            batch = Batch(place_batch(resolve_batch(profile, request), RUN_FILES), workspace, models=models)
            assert batch.run().problems == []
    assert answer.unknown == []
    episodes = [json.loads(path.read_bytes()) for path in sorted((tmp_path / "data" / "runs").glob("*/*.json"))]
    played = {episode["task_index"]: episode for episode in episodes}
    tasks = [int(case["item_id"].rpartition("_")[2]) for case in cases]
    assert [episode["task_index"] for episode in episodes] == tasks
    for task, case in zip(tasks, cases, strict=True):
        episode = played[task]
        assert (episode["agent"], episode["mode"]) == ("agentgym", "compat")
        assert len(episode["timesteps"]) == len(case["turns"]) // 2
        assert last_turn(env, episode["timesteps"]) == case["turns"][-1]
        assert episode["agentgym"] == {"score": case["reward"], "success": bool(case["success"])}


def last_turn(env: str, steps: list[dict[str, Any]]) -> str:
    text = str(steps[-1]["observation"][-1]["content"])
    return text.rpartition("\nAvailable actions: ")[0] if env == "alfworld" else text


def test_each_environment_of_agenteval_has_an_instruction(checkout: Path) -> None:
    for env in AGENTEVAL:
        given = read_instruction(env, {"AGENTENV_PATH": str(checkout)})
        assert (given.prompt[:5], given.acknowledgement) == ("Play ", ACKNOWLEDGEMENT)
        assert given.opening.partition("\n")[0] == {"maze": "Walk.", "wordle": "Guess one of:"}.get(env, "")


def test_what_is_missing_is_named(checkout: Path, tmp_path: Path) -> None:
    problems = defaultdict(str)
    for name, env, environ in (
        ("none", "Maze", {}),
        ("empty", "Maze", {"AGENTENV_PATH": str(tmp_path / "data")}),
        ("other", "FrozenLake", {"AGENTENV_PATH": str(checkout)}),
    ):
        with pytest.raises(ConfigError) as raised:
            read_instruction(env, environ)
        problems[name] = str(raised.value)
    assert "AGENTENV_PATH names; it is not set" in problems["none"]
    assert "has no agentenv/agentenv/envs/lmrlgym.py" in problems["empty"]
    assert "AgentGym has no client of FrozenLake" in problems["other"]
    source = checkout / "agentenv/agentenv/envs/babyai.py"
    for content in (
        b"class BabyAIEnvClient:\n    conversation_start = (f(), 'x' + y)\n",
        b"\0",
        b"(" * 100_000,
        b"x = (\n",
    ):
        source.write_bytes(content)
        with pytest.raises(ConfigError, match="has no instruction of BabyAI where AgentGym's client has it"):
            resolve_batch(Profile(id="p"), BatchRequest(env="BabyAI", agent="agentgym"))
