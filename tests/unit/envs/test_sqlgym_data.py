from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from runner import plugins
from runner.envs.base import BIRD_VARIABLE
from runner.envs.sqlgym import DatabaseSchema, SQLGym, Task, catalogue
from runner.envs.sqlgym.worker import GuardedQueries, open_database
from runner.errors import ConfigError
from runner.types import Action
from runner.util.files import package_resource
from scripts.build_sqlgym_data import main
from tests.support.bird_sample import GOLD, TABLES, TASK, write_bird


def test_the_shipped_files_equal_the_scripts_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["build", "--output", str(tmp_path)])
    main()
    written = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(written) == 8 + 2
    for name, content in written.items():
        assert package_resource("data", "sqlgym", name).read_bytes() == content, f"{name}: run the build script"
    licence = package_resource("data", "sqlgym", "LICENSE").read_text("utf-8")
    assert "MIT License" in licence
    assert "no results on BIRD" in licence


def test_every_gold_query_returns_a_few_exact_values() -> None:
    tasks = catalogue(None)
    readers: dict[str, GuardedQueries] = {}
    questions, sizes = set(), Counter[str]()
    for index in range(len(tasks)):
        split, task = tasks[index]
        if task.db_id not in readers:
            readers[task.db_id] = GuardedQueries(open_database(split.database(task).script, None))
        rows = readers[task.db_id].gold(task.gold)
        assert 1 <= len(rows) <= 30
        assert {type(value) for row in rows for value in row} <= {int, str}
        questions.add((task.db_id, task.question))
        sizes[task.db_id] += 1
    assert len(questions) == len(tasks) == 200
    assert set(sizes.values()) == {25}


def test_the_schemas_match_the_databases() -> None:
    tasks = catalogue(None)
    for index in range(8):
        split, task = tasks[index]
        schema, connection = split.schema(task), open_database(split.database(task).script, None)
        for number, table in enumerate(schema.table_names_original):
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            assert [name for at, name in schema.column_names_original if at == number] == [row[1] for row in columns]
            assert [row[1] for row in columns if row[5]] == ["id"]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()


def test_the_environment_variable_selects_bird(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = SQLGym()
    monkeypatch.setenv(BIRD_VARIABLE, str(write_bird(tmp_path)))
    assert plugins.load(plugins.ENVS, "SQLGym").data_label == "BIRD"
    env = SQLGym()
    assert (env.n_tasks, env.data_label) == (2, "BIRD")
    schema, question = (env.reset(task_index=1)[0]["content"] or "").split("\n\n")
    assert question == TASK["question"]
    assert "Table Customers has columns such as id, name, city." in schema
    assert schema.endswith("The customer_id of orders is the foreign key of id of Customers.")
    chat, reward, done = env.step(Action(text=GOLD.lower().replace("'rome'", "'Rome'")))
    assert (chat[0]["content"], reward, done) == ("[(20,)]", 1.0, True)
    monkeypatch.setenv(BIRD_VARIABLE, "")
    assert (SQLGym().n_tasks, SQLGym.data_label) == (local.n_tasks, "local databases")


def test_one_split_of_bird_is_enough(tmp_path: Path) -> None:
    tasks = catalogue(str(write_bird(tmp_path, ("dev",))))
    split, task = tasks[0]
    uri = split.database(task).uri or ""
    assert len(tasks) == 1
    assert uri.endswith("dev/dev_databases/shop/shop.sqlite?mode=ro")


@pytest.mark.parametrize("content", [None, "[]"])
def test_the_error_names_a_folder_without_tasks(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "dev").mkdir()
        for name in ("dev", "dev_tables"):
            (tmp_path / "dev" / f"{name}.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"{BIRD_VARIABLE} is '{re.escape(str(tmp_path))}', which has neither"):
        catalogue(str(tmp_path))


def test_the_error_names_an_invalid_task_list(tmp_path: Path) -> None:
    write_bird(tmp_path)
    for content in (b"{", b'[{"db_id": 1}]', b"\xff", b"[" * 100_000):
        (tmp_path / "dev" / "dev.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"Cannot read SQLGym's data file .*dev\.json"):
            catalogue(str(tmp_path))


def test_a_database_name_must_not_be_a_path(tmp_path: Path) -> None:
    split, _ = catalogue(str(write_bird(tmp_path)))[0]
    for name in ("../shop", "", "/etc/passwd", "a/b", ".", "..", "shop\x00"):
        with pytest.raises(ConfigError, match="is not a valid database name"):
            split.database(Task(db_id=name, question="?", gold=""))


def test_missing_bird_files_are_reported(tmp_path: Path) -> None:
    split, _ = catalogue(str(write_bird(tmp_path)))[0]
    missing = Task(db_id="missing", question="?", gold="")
    with pytest.raises(ConfigError, match="no schema for the database 'missing'"):
        split.schema(missing)
    with pytest.raises(ConfigError, match=r"no database .*missing\.sqlite"):
        split.database(missing)


def describe_schema(**changes: object) -> tuple[str, str]:
    schema = msgspec.json.decode(json.dumps({**TABLES, **changes}), type=DatabaseSchema)
    return schema.described("strict"), schema.described("compat")


def test_a_schema_describes_composite_and_missing_keys() -> None:
    strict, compat = describe_schema(primary_keys=[[4, 5]])
    assert "orders has columns such as id, customer_id, total. id, customer_id is the primary key." in strict
    assert "city. Table orders" in strict
    assert "city.  is the primary key. Table orders" in compat
    assert "total.  is the primary key. The" in compat


def test_compat_shifts_foreign_keys_and_wraps_around_at_the_last_column() -> None:
    assert describe_schema(foreign_keys=[[6, 1]])[1].endswith(
        "The id of orders is the foreign key of name of customers."
    )
