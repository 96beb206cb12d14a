from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.envs.base import BIRD_VARIABLE
from runner.envs.sqlgym import SQLGym, catalogue
from runner.errors import EnvironmentFault
from runner.types import Action, InvalidAction, Mode, ToolCall
from tests.support.batches import resolved_batch
from tests.support.bird_sample import write_bird

QUESTION = "How many books are there whose genre is poetry?"
GOLD = "SELECT count(*) FROM books WHERE genre = 'poetry'"
N_TASKS = 200


@pytest.fixture(autouse=True)
def shipped_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BIRD_VARIABLE, raising=False)


def step_text(env: SQLGym, text: str) -> tuple[str, float, bool]:
    chat, reward, done = env.step(Action(text=text))
    return chat[0]["content"] or "", reward, done


def start_env(task_index: int = 0, mode: Mode = "strict") -> SQLGym:
    env = SQLGym(mode=mode)
    env.reset(task_index=task_index)
    return env


def test_an_episode_is_one_query() -> None:
    env = SQLGym()
    assert env.n_tasks == N_TASKS
    observation = env.reset(task_index=0)[0]["content"] or ""
    assert observation.endswith(f"\n\n{QUESTION}")
    assert step_text(env, GOLD) == ("[(5,)]", 1.0, True)
    assert not env.truncated
    with pytest.raises(EnvironmentFault, match="call reset first"):
        step_text(env, GOLD)


def test_the_schema_lists_tables_columns_and_keys() -> None:
    schema, question = (start_env().reset(task_index=0)[0]["content"] or "").split("\n\n")
    assert question == QUESTION
    assert schema == (
        "library contains tables such as branches, members, books, loans. "
        "Table branches has columns such as id, name, country, opening_year. id is the primary key. "
        "Table members has columns such as id, name, card, age, branch_id. id is the primary key. "
        "Table books has columns such as id, name, genre, pages. id is the primary key. "
        "Table loans has columns such as id, member_id, book_id, lent_on, days, fine_cents. id is the primary key. "
        "The branch_id of members is the foreign key of id of branches. "
        "The member_id of loans is the foreign key of id of members. "
        "The book_id of loans is the foreign key of id of books."
    )


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("SELECT sum(genre = 'poetry') FROM books;", 1.0),
        ("SELECT '5'", 0.0),
        ("SELECT 5, 5", 0.0),
        ("", 0.0),
    ],
)
def test_rows_are_compared_as_a_set_of_values(text: str, reward: float) -> None:
    assert step_text(start_env(), text)[1:] == (reward, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Let me think.\n```sql\n{GOLD}\n```\nThat is it.", "[(5,)]"),
        (f"```sql\nSELECT 1\n```\nNo:\n```SQL\n{GOLD}```", "[(5,)]"),
        ("```sqlx\nSELECT 1\n```", 'near "```sqlx\nSELECT 1\n```": syntax error'),
        ("I do not know", 'near "I": syntax error'),
    ],
)
def test_the_last_sql_block_is_executed_else_the_full_text(text: str, expected: str) -> None:
    env = start_env()
    parsed = env.parse(text)
    assert isinstance(parsed, Action)
    assert parsed.text == text
    assert step_text(env, text)[0] == expected
    by_call = start_env()
    assert by_call.step(Action(tool_calls=parsed.tool_calls))[0][0]["content"] == expected


def test_a_text_without_a_query_is_invalid() -> None:
    env = start_env()
    for text in ("", " \n", "```sql\n```"):
        assert isinstance(env.parse(text), InvalidAction)
    call = ToolCall(id="c", name="query", arguments=json.dumps({"sql": " "}))
    chat, reward, done = env.step(Action(tool_calls=[call]))
    assert "Invalid action" in (chat[0]["content"] or "")
    assert (reward, done) == (0.0, False)
    assert step_text(env, GOLD)[1:] == (1.0, True)


def test_a_long_observation_is_truncated() -> None:
    observation, _, _ = step_text(start_env(), "SELECT name FROM members ORDER BY id")
    assert len(observation) == 103
    assert observation.startswith("[('")
    assert observation.endswith("...")


def test_the_listed_queries_count_the_rows_of_each_table() -> None:
    env = start_env()
    actions = env.admissible_actions()
    assert actions == [f'SELECT count(*) FROM "{table}"' for table in ("branches", "members", "books", "loans")]
    assert step_text(env, actions[3])[0] == "[(560,)]"


@pytest.mark.long
def test_the_oracle_solves_the_first_tasks() -> None:
    for task_index in range(20):
        env = start_env(task_index)
        text = env.oracle(0).next_action()
        _, reward, done = step_text(env, text)
        assert (reward, done) == (1.0, True), text


def test_episodes_contain_the_data_label_but_not_the_gold_query(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="test", profile="test")
    result = Batch(resolved_batch(env="SQLGym", agent="random", repeat=2), workspace).run()
    assert len(result.episodes) == 2
    for episode in result.episodes:
        record = workspace.store.load(episode.episode_id)
        assert (record.error, record.data_label, record.rounds) == (None, "local databases", 1)
        _, task = catalogue(None)[episode.task_index]
        (file,) = tmp_path.rglob(f"{episode.episode_id}.json")
        assert task.question in json.loads(file.read_bytes())["reset_observation"][0]["content"]
        assert task.gold not in file.read_text("utf-8")
    workspace.close()


@pytest.fixture
def broken_gold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a folder of BIRD's layout whose gold query names a table that does not exist."""
    monkeypatch.setenv(BIRD_VARIABLE, str(write_bird(tmp_path, gold="SELECT secret FROM nowhere")))


@pytest.mark.usefixtures("broken_gold")
def test_a_gold_query_with_an_error_is_an_error_of_the_task() -> None:
    with pytest.raises(EnvironmentFault, match="task 0 cannot be scored") as caught:
        step_text(start_env(), "SELECT 1")
    assert "secret" not in str(caught.value)
    assert step_text(start_env(), "SELEC")[1:] == (0.0, True)
