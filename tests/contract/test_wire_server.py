"""This project's servers answer recorded requests like AgentGym's, except for the documented differences.

``docs/design/agentgym-servers.md`` lists them.

AgentGym's TextCraft numbers its tasks differently, so the numbers are translated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import msgspec
import pytest

from runner.envs.textcraft.recipes import shipped_table
from runner.types import Mode
from tests.support.bird_sample import write_bird
from tests.support.recordings import load_rows
from tests.support.serving import serve_environments


class RawExchange(msgspec.Struct, frozen=True):
    """One exchange with the request body as sent; ``received`` is decoded if it is JSON."""

    note: str
    method: str
    path: str
    body: str | None
    status: int
    received: Any

    @property
    def sent(self) -> dict[str, Any]:
        """Fields of the body; empty if it is not a JSON object."""
        try:
            return dict(json.loads(self.body or "{}"))
        except ValueError:
            return {}


def load_exchanges(name: str) -> list[RawExchange]:
    return [_recorded(row) for row in load_rows(name)]


def _recorded(row: dict[str, Any]) -> RawExchange:
    request, response = row["request"], row["response"]
    is_json = response["headers"]["content-type"] == "application/json"
    received = json.loads(response["body"]) if is_json else response["body"]
    return RawExchange(
        row["note"] or "", request["method"], request["path"], request["body"], response["status"], received
    )


class Replay:
    """Sends recorded requests to a server with that server's instance ids."""

    def __init__(self, client: httpx.Client, key: str = "id", create: str = "/create") -> None:
        self.client = client
        self.ids: dict[int, int] = {}
        self._key = key
        self._create = create

    def open(self, recorded_id: int) -> None:
        """Create an instance for one that was created before the recording began."""
        created = self.client.post(self._create, json={}).json()
        self.ids[recorded_id] = created if isinstance(created, int) else created["id"]

    def send(self, exchange: RawExchange) -> Any:  # noqa: ANN401
        """Return the response with recorded ids and without fields that only this project sends; check the status."""
        body = exchange.sent
        if (recorded_id := body.get(self._key)) is not None:
            body[self._key] = type(recorded_id)(self.ids.get(int(recorded_id), int(recorded_id)))
        path = re.sub(rf"(?<={self._key}=)\d+", lambda match: str(self.ids.get(int(match[0]), match[0])), exchange.path)
        content = json.dumps(body) if body else exchange.body
        headers = {"content-type": "application/json"} if content is not None else {}
        response = self.client.request(exchange.method, path, content=content, headers=headers)
        assert response.status_code == exchange.status, (exchange, response.text)
        if exchange.status == 422:  # the texts of FastAPI are not imitated
            assert all(isinstance(problem["msg"], str) for problem in response.json()["detail"])
            return exchange.received
        received = response.json() if response.headers["content-type"] == "application/json" else response.text
        return self._with_recorded_ids(exchange, received)

    def _with_recorded_ids(self, exchange: RawExchange, received: Any) -> Any:  # noqa: ANN401
        if exchange.path == self._create and exchange.status == 200:
            own_id = received if isinstance(received, int) else received["id"]
            recorded_id = exchange.received if isinstance(received, int) else exchange.received["id"]
            self.ids[recorded_id] = own_id
        recorded_ids = {str(own_id): str(recorded_id) for recorded_id, own_id in self.ids.items()}
        match received:
            case bool():
                return received
            case int():
                return int(recorded_ids[str(received)])
            case {"error": str() as text}:
                return {"error": re.sub(r"\b\d+\b", lambda match: recorded_ids.get(match[0], match[0]), text)}
            case dict():
                if self._key in received:
                    received[self._key] = int(recorded_ids[str(received[self._key])])
                received.pop("truncated", None)
        return received


Compare: TypeAlias = Callable[[Replay, RawExchange], bool]
"""Handles an exchange that needs a special comparison; returns False for all others."""


def replay_all(
    client: httpx.Client,
    exchanges: list[RawExchange],
    special: Compare,
    *,
    key: str = "id",
    create: str = "/create",
    created: Iterable[int] = (),
) -> None:
    """Replay all exchanges; ``created`` are ids from before the recording began."""
    replay = Replay(client, key, create)
    for recorded_id in created:
        replay.open(recorded_id)
    for exchange in exchanges:
        if not special(replay, exchange):
            assert replay.send(exchange) == exchange.received, exchange


CHANGED_LEVELS = {3, 35, 36}
"""GoToObjS6, SynthLoc and SynthSeq are drawn differently since minigrid 3.2."""
MAX_STEPS = 50
FIRST_OF_DEV = 9428
"""Index of the first task of BIRD's second split; in the sample each split has one task."""


def shape(value: object) -> object:
    if isinstance(value, dict):
        return {name: shape(part) for name, part in value.items()}
    return float if type(value) in (int, float) else type(value)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTENV_SQLGYM_BIRD_PATH", str(write_bird(Path(tmp_path_factory.mktemp("bird")))))
        with serve_environments(
            ["BabyAI", "TextCraft", "Maze", "Wordle", "SQLGym", "WebShop", "ALFWorld"], mode="compat"
        ) as urls:
            yield urls


def test_babyai_replies_match_the_recording(urls: dict[str, str]) -> None:
    tasks: dict[int, int] = {}

    def compare_special(replay: Replay, exchange: RawExchange) -> bool:
        id_, task = exchange.sent.get("id", -1), exchange.sent.get("data_idx", -1)
        if exchange.path == "/" or exchange.path == "/render":
            return True
        if exchange.note == "close never-reset":
            assert exchange.received is False
            assert replay.client.post("/close", json={"id": replay.ids[id_]}).json() is True
            replay.open(id_)
            return True
        if task >= 0:
            tasks[id_] = task
        if tasks.get(id_, 0) % 40 in CHANGED_LEVELS:
            assert shape(replay.send(exchange)) == shape(exchange.received)
            return True
        return False

    with httpx.Client(base_url=urls["BabyAI"], timeout=60) as client:
        replay_all(client, load_exchanges("babyai.jsonl"), compare_special)


def test_babyai_episodes_match_the_recording(urls: dict[str, str]) -> None:
    """Also the errors after the end of a task; the id of the instance in them is the only difference."""
    with httpx.Client(base_url=urls["BabyAI"], timeout=60) as client:
        for episode in load_rows("babyai_rules_2.jsonl")[::16]:
            id_ = client.post("/create").json()["id"]
            client.post("/reset", json={"id": id_, "data_idx": episode["data_idx"]})
            for recorded in episode["steps"]:
                reply = client.post("/step", json={"id": id_, "action": recorded["action"]}).json()
                reply.pop("truncated", None)
                expected = {name: value for name, value in recorded.items() if name != "action" and value is not None}
                if error := expected.get("error"):
                    expected = {"error": error.replace("environment 0", f"environment {id_}")}
                assert reply == pytest.approx(expected), (episode["data_idx"], recorded["action"])
            client.post("/close", json={"id": id_})


def test_babyai_late_success_replies_match_the_recording(urls: dict[str, str]) -> None:
    """Each group was recorded on task 0, after as many left turns as its note states."""
    group = ""

    def compare_special(replay: Replay, exchange: RawExchange) -> bool:
        nonlocal group
        if exchange.note.startswith("late waste=") and exchange.note != group:
            group = exchange.note
            instance = {"id": replay.ids[exchange.sent["id"]]}
            replay.client.post("/reset", json={**instance, "data_idx": 0})
            for _ in range(int(group.removeprefix("late waste="))):
                replay.client.post("/step", json={**instance, "action": "turn left"})
        return exchange.sent.get("data_idx") in CHANGED_LEVELS

    with httpx.Client(base_url=urls["BabyAI"], timeout=60) as client:
        replay_all(client, load_exchanges("babyai_late.jsonl"), compare_special)
    assert group == "late waste=100"


def test_maze_replies_match_the_recording(urls: dict[str, str]) -> None:
    n_steps = 0

    def compare_special(replay: Replay, exchange: RawExchange) -> bool:
        nonlocal n_steps
        if exchange.path == "/maze/close":
            assert replay.client.post(exchange.path, json={"id": replay.ids[exchange.sent["id"]]}).json() is True
            return True
        n_steps = 0 if exchange.path == "/maze/reset" else n_steps + (exchange.path == "/maze/step")
        if exchange.received == {"observation": "Failure\n", "reward": -1.0, "done": True}:
            # the recording omits the repetitions of this step up to the step limit
            repeated = {"id": replay.ids[exchange.sent["id"]], "action": exchange.sent["action"]}
            replies = [replay.client.post(exchange.path, json=repeated).json() for _ in range(n_steps, MAX_STEPS + 1)]
            assert not any(reply["truncated"] for reply in replies)
        return False

    with httpx.Client(base_url=urls["Maze"], timeout=60) as client:
        replay_all(client, load_exchanges("maze.jsonl"), compare_special, create="/maze/create")


@pytest.mark.parametrize("name", ["wordle.jsonl", "wordle_rng.jsonl"])
def test_wordle_replies_match_the_recording(name: str, urls: dict[str, str]) -> None:
    reset: set[int] = set()

    def compare_special(replay: Replay, exchange: RawExchange) -> bool:
        if exchange.path == "/wordle/reset" and exchange.status == 200:
            reset.add(exchange.sent["id"])
        if exchange.path == "/wordle/step" and exchange.sent["id"] not in reset:
            stepped = replay.client.post(exchange.path, json={**exchange.sent, "id": replay.ids[exchange.sent["id"]]})
            assert stepped.json() == {"error": str(replay.ids[exchange.sent["id"]])}
            return True
        return False

    with httpx.Client(base_url=urls["Wordle"], timeout=60) as client:
        replay_all(client, load_exchanges(name), compare_special, create="/wordle/create")


def test_sqlgym_replies_match_the_recording(urls: dict[str, str]) -> None:
    def compare_special(replay: Replay, exchange: RawExchange) -> bool:
        match exchange.path:
            case "/":
                return True
            case "/list_envs":
                listed = replay.client.get(exchange.path).json()
                assert {*replay.ids.values()} <= {*listed}
            case "/close":
                own_id = replay.ids[exchange.sent["env_idx"]]
                closed = [replay.client.post("/close", json={"env_idx": own_id}).json() for _ in range(2)]
                assert closed == [True, False]
                del replay.ids[exchange.sent["env_idx"]]
            case "/step" if exchange.status == 200:
                received = replay.send(exchange)
                assert received == {**exchange.received, "info": {}}
            case "/reset" if exchange.sent.get("item_id") == FIRST_OF_DEV:
                instance = {"env_idx": replay.ids[exchange.sent["env_idx"]], "item_id": 1}
                assert replay.client.post("/reset", json=instance).json() == exchange.received
            case _:
                return False
        return True

    with httpx.Client(base_url=urls["SQLGym"], timeout=60) as client:
        replay_all(client, load_exchanges("sqlgym_fakebird.jsonl"), compare_special, key="env_idx")


async def test_sqlgym_answers_a_broken_gold_query_and_repeats_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AgentGym's server scores 0 if the gold query fails; statements that read nothing run there, and not here."""
    monkeypatch.setenv("AGENTENV_SQLGYM_BIRD_PATH", str(write_bird(tmp_path, gold="SELECT secret FROM nowhere")))
    expected = {"compat": (200, 0.0), "strict": (500, None)}
    modes: tuple[Mode, ...] = ("compat", "strict")
    for mode in modes:
        with serve_environments(["SQLGym"], mode=mode) as urls:
            async with httpx.AsyncClient(base_url=urls["SQLGym"], timeout=60) as client:
                instance = {"env_idx": (await client.post("/create")).json()}
                question = (await client.post("/reset", json={**instance, "item_id": 0})).json()[0]
                step = await client.post("/step", json={**instance, "action": "SELECT 1"})
                reward = step.json()["reward"] if step.status_code == 200 else None
                assert (step.status_code, reward) == expected[mode]
                assert "secret" not in step.text
                assert (await client.get("/observation", params=instance)).json() == question
                for refused in ("PRAGMA table_info(customers)", "BEGIN", "ATTACH 'x' AS y"):
                    await client.post("/reset", json={**instance, "item_id": 0})
                    step = await client.post("/step", json={**instance, "action": refused})
                    assert "authoriz" in step.json()["state"]
                    assert (step.json()["reward"], step.json()["done"]) == (0.0, True)


def test_textcraft_replies_match_the_recording(urls: dict[str, str]) -> None:
    goals = shipped_table().goals
    goals_by_instance: dict[str, str] = {}
    n_compared: list[str] = []

    def compare_special(replay: Replay, exchange: RawExchange) -> bool:
        path = exchange.path.partition("?")[0]
        if path in ("/", "/openapi.json"):
            return True
        if path in ("/goal", "/commands"):
            assert replay.client.get(exchange.path).status_code == 404
            return True
        observation = exchange.received.get("observation") if isinstance(exchange.received, dict) else exchange.received
        if not (isinstance(observation, str) and observation.startswith("Crafting commands:")):
            return False
        instance = exchange.sent.get("id", exchange.path.partition("id=")[2])
        goal = observation.rpartition("Goal: craft ")[2].removesuffix(".")
        if path == "/reset" and exchange.note not in ("negative", "huge"):
            translated = {**exchange.sent, "data_idx": goals.index(goal.replace(" ", "_"))}
            exchange = msgspec.structs.replace(exchange, body=json.dumps(translated))
            goals_by_instance[str(instance)] = goal
        elif path in ("/reset", "/create"):
            goals_by_instance.pop(str(instance), None)
        received = replay.send(exchange)
        assert shape(received) == shape(exchange.received)
        text = received["observation"] if isinstance(received, dict) else received
        if goals_by_instance.get(str(instance)) == goal:
            n_compared.append(goal)
            assert text.rpartition("\n\n")[2] == f"Goal: craft {goal}."
            assert commands_for(goal, text) & commands_for(goal, observation)
        if isinstance(received, dict):
            assert {**received, "observation": ""} == {**exchange.received, "observation": ""}
        return True

    with httpx.Client(base_url=urls["TextCraft"], timeout=60) as client:
        replay_all(client, load_exchanges("textcraft.jsonl"), compare_special, created=range(3))
    assert n_compared


def commands_for(goal: str, listing: str) -> set[tuple[str, ...]]:
    """Return the listed commands that make the goal as counts and ingredients, whose order differs between servers."""
    recipes = re.findall(rf"^craft (\d+) {re.escape(goal)} using (.+)$", listing, re.MULTILINE)
    return {(count, *sorted(used.split(", "))) for count, used in recipes}
