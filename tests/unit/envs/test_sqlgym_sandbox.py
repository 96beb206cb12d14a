from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.envs import sqlgym
from runner.envs.sqlgym import ENGINE_FAILED, Database, evaluate, worker
from runner.envs.sqlgym.worker import MAX_ROWS, STOPPED, TOO_MANY_ROWS, GuardedQueries, open_database, same_rows
from runner.errors import EnvironmentFault

pytestmark = pytest.mark.long

SCRIPT = (
    "CREATE TABLE t (n INTEGER, s TEXT);"
    "INSERT INTO t WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 200) SELECT n, 'x' || n FROM c;"
)
DATABASE = Database(script=SCRIPT)
GOLD = "SELECT count(*) FROM t"
ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
DOUBLING = ", ".join(f"a{n}(x) AS (SELECT 1 FROM a{n - 1}, a{n - 1})" for n in range(1, 40))
TOKENS = (
    *("SELECT", "FROM", "WHERE", "t", "n", "s", "*", "(", ")", ",", "=", "<", "AND", "NOT", "IN", "AS", "GROUP BY"),
    *("ORDER BY", "LIMIT", "JOIN", "UNION", "WITH", "INSERT INTO", "VALUES", "DELETE", "UPDATE", "SET", "DROP TABLE"),
    *("PRAGMA", "ATTACH", "CREATE", "TEMP", "VIEW", "BEGIN", "VACUUM", "EXPLAIN", "1", "-1", "1e999", "'a'", "x'ff'"),
    *("NULL", "count", "cast", "text", "hex", "zeroblob", "9", ";", "--", "/*", "?", ":p", '"', "'", "`", "\x00"),
)
TEXTS = st.text(alphabet=st.characters(codec=None), max_size=40)
QUERIES = TEXTS | st.lists(st.sampled_from(TOKENS) | TEXTS, max_size=12).map(" ".join)


def run_query(sql: str) -> str:
    return evaluate(DATABASE, sql, GOLD).observation


@pytest.mark.parametrize(
    "sql",
    [
        f"{ENDLESS} SELECT count(*) FROM c",
        "SELECT count(*) FROM t a, t b, t c, t d, t e",
        "SELECT printf('%.*c', 2000000000, 'x')",
        f"WITH a0(x) AS (SELECT 1), {DOUBLING} SELECT count(*) FROM a39",
    ],
    ids=["recursion", "cross join", "one long instruction", "exponential before the first row"],
)
def test_an_endless_query_is_stopped(sql: str) -> None:
    assert evaluate(DATABASE, sql, GOLD) == (STOPPED, False)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (f"{ENDLESS} SELECT n FROM c", TOO_MANY_ROWS),
        ("SELECT zeroblob(2000000000)", "string or blob too big"),
        ("SELECT replace(hex(zeroblob(400000)), '0', hex(zeroblob(400000)))", "string or blob too big"),
        (f"SELECT {'(' * 5_000}1{')' * 5_000}", "stack overflow|too large"),
        (f"SELECT '{'x' * 1_100_000}'", "too big|too large"),
        ("SELECT '\ud800'", "surrogates not allowed"),
        ("SELECT 1\x00", "null character"),
        ("SELECT cast(x'ff' AS TEXT)", "Could not decode to UTF-8"),
        ("SELECT ?", "Incorrect number of bindings"),
        ("SELECT 1; SELECT 2", "only execute one statement at a time"),
    ],
)
def test_a_failed_query_returns_its_error(sql: str, message: str) -> None:
    assert re.search(message, run_query(sql))  # SQLite's messages differ between versions


def test_rows_with_equal_hashes_are_compared_in_time() -> None:
    """Putting these rows into a set takes quadratic time, about a minute."""
    values = " UNION ALL ".join(f"SELECT {factor * (2**61 - 1)} AS v" for factor in range(-4, 5))
    rows = f"WITH e AS ({values}) SELECT a.v, b.v, c.v, d.v, e.v, f.v FROM e a, e b, e c, e d, e, e f LIMIT 40000"
    verdict = evaluate(DATABASE, rows, GOLD)
    assert verdict.observation.startswith(f"[({-4 * (2**61 - 1)}, ")
    assert not verdict.solved


def test_rows_that_exhaust_memory_are_no_data_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, limit = str(Path(worker.__file__).parent), 256 << 20
    small = f"import sys; sys.path.append({folder!r}); import worker; worker.MEMORY = {limit}; worker.main()"
    monkeypatch.setattr(sqlgym, "_COMMAND", (sys.executable, "-I", "-S", "-c", small))
    many = f"{ENDLESS} SELECT CASE WHEN n > 101 THEN zeroblob(900000) ELSE n END FROM c LIMIT {{}}"
    assert evaluate(DATABASE, many.format(101 + 170), f"{many.format(101 + 171)} OFFSET 1").solved is False
    assert evaluate(DATABASE, many.format(101 + 1000), GOLD) == ("out of memory", False)


def test_rows_that_cannot_be_compared_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    output = b'"ready"\n"[(1,)]"\n"known"\n'
    killed = subprocess.CompletedProcess[bytes](args=(), returncode=-9, stdout=output, stderr=b"")
    monkeypatch.setattr(sqlgym, "_run", lambda request: killed)
    assert evaluate(DATABASE, "SELECT 1", GOLD) == ("[(1,)]", False)


def test_rows_are_compared_without_order_and_duplicates() -> None:
    gold: set[tuple[object, ...]] = {(1, "a"), (2, None)}
    assert same_rows([(2, None), (1, "a"), (2, None)], gold)
    assert same_rows([], set())
    for rows in ([(1, "a")], [(1, "a"), (2, None), (3,)], []):
        assert not same_rows(list(rows), gold)


def test_rows_that_do_not_fit_into_memory_are_rejected() -> None:
    sql = f"{ENDLESS} SELECT zeroblob(900000) FROM c LIMIT {MAX_ROWS}"
    assert run_query(sql) in ("out of memory", ENGINE_FAILED, STOPPED)


@pytest.mark.parametrize(
    ("refusal", "statements"),
    [
        (
            "readonly database",
            "DROP TABLE t|DELETE FROM t RETURNING n|INSERT INTO t VALUES (1, 'x')|UPDATE t SET n = 1",
        ),
        ("readonly database", "CREATE TEMP TABLE u (n)|CREATE VIEW v AS SELECT 1|ALTER TABLE t RENAME TO u|ANALYZE"),
        ("readonly database", "CREATE VIRTUAL TABLE v USING fts5(x)"),
        ("authoriz", "ATTACH '{file}' AS other|VACUUM INTO '{file}'|SELECT load_extension('{file}')"),
        ("authoriz", "PRAGMA query_only = OFF|PRAGMA table_info(t)|BEGIN"),
    ],
)
def test_a_statement_that_writes_opens_files_or_changes_settings_is_rejected(
    refusal: str, statements: str, tmp_path: Path
) -> None:
    for sql in statements.split("|"):
        assert refusal in run_query(sql.format(file=tmp_path / "file")), sql
    assert list(tmp_path.iterdir()) == []


def test_a_database_file_is_opened_read_only(tmp_path: Path) -> None:
    path = tmp_path / "odd name?mode=rwc#.sqlite"
    connection = open_database(SCRIPT, path.as_uri())
    connection.close()
    before = path.read_bytes()
    database = Database(uri=f"{path.as_uri()}?mode=ro")
    assert evaluate(database, "SELECT 200", GOLD) == ("[(200,)]", True)
    assert evaluate(database, "DELETE FROM t", GOLD) == ("attempt to write a readonly database", False)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [None, b"no database at all" * 100])
def test_a_database_that_cannot_be_opened_is_a_fault(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EnvironmentFault, match=r"could not open the database of this task: sqlite3\."):
        evaluate(Database(uri=f"{path.as_uri()}?mode=ro"), "SELECT 1", GOLD)


def test_a_gold_query_with_an_error_scores_no_query_that_works() -> None:
    broken = "SELECT secret FROM nowhere"
    assert evaluate(DATABASE, "SELECT 1", broken) == ("[(1,)]", None)
    assert evaluate(DATABASE, "SELEC", broken).solved is False


def test_a_slow_gold_query_is_a_fault_and_stays_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quick = tmp_path / "worker.py"
    quick.write_text(re.sub(r"GOLD_LIMIT_S = [\d.]+", "GOLD_LIMIT_S = 0.05", Path(worker.__file__).read_text("utf-8")))
    monkeypatch.setattr(sqlgym, "_COMMAND", (*sqlgym._COMMAND[:-1], str(quick)))
    with pytest.raises(EnvironmentFault, match="gold query of this task took longer than") as caught:
        evaluate(DATABASE, "SELECT 1", f"{ENDLESS} SELECT count(*) AS secret FROM c")
    assert "secret" not in str(caught.value)


def test_a_query_without_columns_never_equals_an_empty_result() -> None:
    nothing = f"{GOLD} LIMIT 0"
    assert evaluate(DATABASE, "-- nothing", nothing) == ("[]", False)
    assert evaluate(DATABASE, "SELECT n FROM t WHERE n < 0", nothing) == ("[]", True)


def test_a_worker_that_cannot_start_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sqlgym, "_COMMAND", (str(tmp_path / "none"),))
    with pytest.raises(EnvironmentFault, match="could not run a query: FileNotFoundError"):
        run_query("SELECT 1")


def test_a_worker_crash_becomes_the_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = subprocess.CompletedProcess[bytes](args=(), returncode=-11, stdout=b'"ready"\n', stderr=b"")
    monkeypatch.setattr(sqlgym, "_run", lambda request: crashed)
    assert run_query("SELECT 1") == ENGINE_FAILED


@settings(max_examples=20, deadline=None)
@given(sql=QUERIES)
def test_no_text_breaks_the_sandbox(sql: str) -> None:
    assert len(run_query(sql)) <= 103


@settings(max_examples=300, deadline=None)
@given(sql=QUERIES)
def test_no_text_breaks_the_query_runner_or_changes_the_database(sql: str) -> None:
    connection = open_database(SCRIPT, None)
    reader = GuardedQueries(connection)
    rows, observation = reader.answer(sql)
    assert isinstance(observation, str)
    assert rows is None or isinstance(rows, list)
    assert reader.gold("SELECT count(*), sum(n), (SELECT count(*) FROM sqlite_schema) FROM t") == {(200, 20_100, 1)}
    connection.close()
