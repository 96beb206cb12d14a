"""A battery whose first model is killed: every table, file, event and gate names the models that answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.json import decode

from agentgym_tui.sessions.library import StateDirLibrary
from runner.events.durable import BatchCompleted, BatteryCompleted, EpisodeCompleted
from runner.publish.outbox import LOCAL
from tests.support.command import run_agentgym
from tests.support.console.fake_session import empty_session
from tests.support.console.pilot import console_app, wait_for_widget_text, wait_until, widget_text
from tests.support.publishing import open_outbox
from tests.support.rude_model import PendingRequest, RudeModel, completion_response

pytestmark = pytest.mark.long

FIRST, SECOND = "qwen35_9b", "qwen3:8b"
MIXED = f"{FIRST} + {SECOND}"
ROUNDS, N_ANSWERS = 3, 4
"""Steps of each episode, and answers of the first model before it is killed: in the second episode."""
MOVE = completion_response('Action: move({"direction": "left"})')
EXPECTED = {
    ("Maze", 0): {FIRST: 3},
    ("Maze", 1): {FIRST: 1, SECOND: 2},
    ("Wordle", 0): {SECOND: 3},
    ("Wordle", 1): {SECOND: 3},
}


class Played(NamedTuple):
    folder: Path
    batches: list[dict[str, Any]]
    errors: str
    healthy: str
    """Id of the battery that only the first model answered."""

    @property
    def battery(self) -> str:
        return str(self.batches[0]["battery_id"])

    def run(self, *options: str) -> Any:  # noqa: ANN401
        return run_agentgym(self.folder, *options, environ={"COLUMNS": "240"})

    def results(self, *options: str) -> Any:  # noqa: ANN401
        return json.loads(self.run("--results", "--json", "--batch", self.battery, *options).stdout)


def answer(pending: PendingRequest) -> None:
    pending.send(MOVE)


def play(folder: Path, first: RudeModel, second: RudeModel, *options: str) -> Any:  # noqa: ANN401
    endpoints = [
        {"url": first.url, "name": "lab", "kind": "openai"},
        {"url": second.url, "name": "spare", "kind": "openai", "model": SECOND},
    ]
    agent = {"mode": "local", "local_fallback": None, "model": FIRST, "endpoints": endpoints, "max_unparsed": 9}
    environments = {"lightweight": [{"name": "Maze"}, {"name": "Wordle"}]}
    profile = {"id": "lab", "agent": agent, "environments": environments, "episode": {"max_rounds": ROUNDS}}
    (folder / "lab.yaml").write_text(json.dumps(profile))
    command = ("--config", "lab.yaml", "--battery", "lightweight", "--repeat", "2", "--concurrency", "1")
    return run_agentgym(folder, *command, "--workers", "0", *options, environ={"COLUMNS": "240"})


def play_killed(folder: Path, *options: str) -> Any:  # noqa: ANN401
    asked = iter(range(N_ANSWERS))

    def answer_until_killed(pending: PendingRequest) -> None:
        if not pending.request.json().get("messages") or next(asked, None) is not None:
            pending.send(MOVE)
        else:
            first.kill()

    with RudeModel(answer_until_killed) as first, RudeModel(answer) as second:
        return play(folder, first, second, *options)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    folder = tmp_path_factory.mktemp("killed")
    with RudeModel(answer) as first, RudeModel(answer) as second:
        healthy = json.loads(play(folder, first, second, "--json").stdout)["batches"]
    ended = play_killed(folder, "--json")
    assert ended.returncode == 0, ended.stderr
    yield Played(folder, json.loads(ended.stdout)["batches"], ended.stderr, healthy[0]["battery_id"])


def rows(found: list[dict[str, Any]], count: str) -> list[tuple[str, str, int]]:
    return [(row["env"], row["model"], row[count]) for row in found]


def test_the_file_counts_the_steps_that_each_model_answered(played: Played) -> None:
    files = [
        path
        for batch in played.batches
        for path in (played.folder / "data" / "runs" / batch["batch_id"]).glob("*.json")
    ]
    episodes = [json.loads(path.read_bytes()) for path in files]
    assert {(each["env"], each["task_index"]): each["models"] for each in episodes} == EXPECTED
    assert {each["model"] for each in episodes} == {FIRST}
    assert list(next(each["models"] for each in episodes if len(each["models"]) == 2)) == [FIRST, SECOND]


def test_the_events_name_the_models_beside_the_one_that_was_requested(played: Played) -> None:
    with open_outbox(played.folder / "data") as outbox:
        payloads = [each.payload for each in outbox.pending(LOCAL, 100)]
    episodes = [decode(each, type=EpisodeCompleted) for each in payloads if b'"episode_id"' in each]
    batches = [decode(each, type=BatchCompleted) for each in payloads if b'"batch_id"' in each and b'"n_ep' in each]
    batteries = [decode(each, type=BatteryCompleted) for each in payloads if b'"batches"' in each]
    known = {batch["batch_id"] for batch in played.batches}
    assert {(each.env, each.task_index): each.models for each in episodes if each.batch_id in known} == {
        task: list(models) for task, models in EXPECTED.items()
    }
    assert [each.models for each in batches if each.batch_id in known] == [[FIRST, SECOND], [SECOND]]
    assert {each.model for each in episodes} == {each.model for each in batches} == {FIRST}
    assert [each.models for each in batteries] == [[FIRST], [FIRST, SECOND]]


def test_the_run_has_a_row_for_each_set_of_models(played: Played, tmp_path: Path) -> None:
    found = [row | {"env": batch["env"]} for batch in played.batches for row in batch["by_models"]]
    assert rows(found, "n_episodes") == [("Maze", FIRST, 1), ("Maze", MIXED, 1), ("Wordle", SECOND, 2)]
    assert [batch["models"] for batch in played.batches] == [[FIRST, SECOND], [SECOND]]
    assert [(each["task_index"], each["models"]) for each in played.batches[0]["episodes"]] == [(0, FIRST), (1, MIXED)]
    assert "Maze: answers came from more than one model: 4 by lab: " in played.errors
    assert f"Wordle: {SECOND} answered in place of {FIRST}\n" in played.errors
    printed = play_killed(tmp_path).stdout
    cells = [[cell.strip() for cell in line.split("│")[1:4]] for line in printed.splitlines() if line.startswith("│")]
    assert cells == [
        [FIRST, "Maze · 3 rounds", "1/2"],
        [MIXED, "Maze · 3 rounds", "1/2"],
        [SECOND, "Wordle · local words · 3 rounds", "2/2"],
    ]


def test_results_matrix_lists_and_queries_name_them(played: Played) -> None:
    document = played.results("--matrix")
    assert rows(document["results"], "n") == [("Maze", FIRST, 1), ("Maze", MIXED, 1), ("Wordle", SECOND, 2)]
    assert [(each["env"], each["model"]) for each in document["matrices"]] == [
        (env, model) for env, model, _ in rows(document["results"], "n")
    ]
    printed = played.run("--results", "--batch", played.battery, "--matrix").stdout
    assert (f"│ {MIXED} " in printed, f"Tasks of react {MIXED} in Maze" in printed) == (True, True)
    assert rows(played.results("--model", SECOND)["results"], "n") == [("Maze", MIXED, 1), ("Wordle", SECOND, 2)]
    assert sum(row["n"] for row in played.results("--model", FIRST)["results"]) == 4
    battery = f"battery:{played.battery}"
    for query, n in (("model:qwen3:8b", 3), ("model:QWEN35*", 4), (f'models:"{MIXED}"', 1), ("models:qwen35_9b", 1)):
        listed = played.run("episodes", query, battery, "--json").stdout.splitlines()
        assert len(listed) == n, query
    (line,) = played.run("episodes", f'models:"{MIXED}"', battery).stdout.splitlines()
    assert f"react {MIXED}" in line
    mixed = next(each["episode_id"] for each in played.batches[0]["episodes"] if each["models"] == MIXED)
    other = played.batches[0]["episodes"][0]["episode_id"]
    assert f"react {MIXED}" in played.run("compare", other, mixed).stdout
    assert json.loads(played.run("compare", other, mixed, "--json").stdout)["models"]["b"] == {FIRST: 1, SECOND: 2}


def test_gates_refuse_a_mixed_battery_or_name_it(played: Played) -> None:
    compared = ("--results", "--batch", played.battery, "--baseline", played.healthy)
    refused = played.run(*compared)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"because a fallback answered: 1 episode by {MIXED}, 2 episodes by {SECOND}; play" in refused.stderr
    as_baseline = played.run("--results", "--batch", played.healthy, "--baseline", played.battery)
    assert as_baseline.returncode == 2
    allowed = played.run(*compared, "--allow-mixed")
    assert allowed.returncode == 0, allowed.stderr
    assert "4 common tasks, 0 won, 0 lost, 4 tied" in allowed.stderr
    assert f"a fallback answered: {MIXED}, {SECOND}" in allowed.stderr
    assert played.results("--baseline", played.healthy, "--allow-mixed")["comparison"]["mixed"] == {MIXED: 1, SECOND: 2}
    healthy = played.run("--results", "--batch", played.healthy, "--baseline", played.healthy)
    assert healthy.returncode == 0, healthy.stderr
    below = played.run("--results", "--batch", played.battery, "--fail-below", "0.5")
    assert below.returncode == 3
    assert f"Not met: react {MIXED} in Maze · 3 rounds: success rate" in below.stderr


async def test_the_console_names_them(played: Played) -> None:
    session = empty_session()
    session.library = StateDirLibrary(lambda: played.folder / "data")
    app = console_app(session)
    async with app.run_test(size=(200, 50)) as pilot:
        await pilot.press("7")
        await wait_for_widget_text(pilot, "#results", MIXED, SECOND)
        await wait_until(pilot, lambda: widget_text(pilot, "#results").count("react") == 4)
        await pilot.press("j", "m")
        await wait_for_widget_text(pilot, "#summary", f"Maze react {MIXED}", "1 task")
        await pilot.press("escape", "enter")
        await wait_for_widget_text(pilot, "#summary", "8 episodes · 1 match")
        assert app.ui_state.filters["episodes"] == f'env:Maze agent:react models:"{MIXED}" limits:"3 rounds"'
        await wait_for_widget_text(pilot, "#episodes", f"↷ react {MIXED}")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, "#heading", f"model {MIXED}")
