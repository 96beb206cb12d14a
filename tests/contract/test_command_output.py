"""The output of the command: third-party prints, closed streams, a full disk, narrow and wide terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import time
from pathlib import Path

import pytest

from tests.support.command import COMMAND, ENVIRON, REPOSITORY, environ_with_environments, run_agentgym, run_shell

pytestmark = pytest.mark.long


def test_prints_of_environments_stay_out_of_the_result(tmp_path: Path) -> None:
    environ = environ_with_environments(tmp_path, "Printing")
    step = ("printed by a step", "written by a step", "echoed by a child")
    for options, prints in ((("--run", "Printing"), step), (("--run", "Printing", "--dry-run"), ())):
        completed = run_agentgym(tmp_path, *options, "--agent", "random", "--json", environ=environ)
        assert completed.returncode == 0, completed.stderr
        json.loads(completed.stdout)
        for expected in ("printed by an import", *prints):
            assert expected in completed.stderr, options
    plain = run_agentgym(tmp_path, "--run", "Printing", "--agent", "random", environ=environ).stdout
    assert "Results of random" in plain
    assert "by a step" not in plain


def test_json_is_ascii_whatever_it_quotes(tmp_path: Path) -> None:
    environ = environ_with_environments(tmp_path, "Hostile") | {"PYTHONIOENCODING": "ascii"}
    completed = run_agentgym(tmp_path, "--run", "Hostile", "--agent", "random", "--json", environ=environ)
    assert completed.returncode == 1
    assert re.fullmatch("[\n -~]*", completed.stdout)
    (episode,) = json.loads(completed.stdout)["batches"][0]["episodes"]
    assert episode["error"].endswith("\x9b2J \x7f \u202e \\ud800 ·")


@pytest.mark.parametrize(
    ("script", "code", "expected"),
    [
        ("agentgym-runner --run Maze --agent oracle >&-", 0, "Maze: episodes in"),
        ("agentgym-runner --run Maze --agent oracle >&- 2>&-", 0, ""),
        ("agentgym-runner --run Maze --agent oracle >/dev/full", 1, "the result could not be written: No space left"),
        ("agentgym-runner --run Maze --agent oracle --json >/dev/full", 1, "could not be written: No space left"),
        ("agentgym-runner --list-envs >/dev/full", 1, "the result could not be written: No space left"),
        ("agentgym-runner --run Maze --agent oracle | true; exit ${PIPESTATUS[0]}", 0, "Maze: episodes in"),
        ("agentgym-runner --run Maze --agent oracle 2>&1 --repeat 50 | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("agentgym-runner --list-envs | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("agentgym-runner --run Maze --agent scripted --script /dev/null | true; exit ${PIPESTATUS[0]}", 1, "fault"),
        ("PYTHONIOENCODING=ascii agentgym-runner --run Maze --agent oracle --compat", 0, "Maze \\xb7 oracle"),
    ],
)  # fmt: skip
def test_unwritable_output_causes_no_traceback(tmp_path: Path, script: str, code: int, expected: str) -> None:
    completed = run_shell(tmp_path, script)
    assert completed.returncode == code, completed.stderr
    assert "Traceback" not in completed.stderr
    assert "Exception" not in completed.stderr
    assert expected in completed.stderr


def test_a_full_disk_ends_the_run_and_is_reported(tmp_path: Path) -> None:
    environ = environ_with_environments(tmp_path, "FullDisk")
    completed = run_agentgym(tmp_path, "--run", "FullDisk", "--agent", "random", "--repeat", "40", environ=environ)
    assert completed.returncode == 1
    assert re.search(r"[1-3] not stored", completed.stdout), completed.stdout
    assert "could not be stored; no further episodes start" in completed.stderr
    assert "Logging error" not in completed.stderr
    assert list((tmp_path / "data" / "runs").glob("*/*.json.tmp")) == []


def test_narrow_output_gets_lines_with_whole_words(tmp_path: Path) -> None:
    summary = run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle", environ={"COLUMNS": "60"}).stdout
    assert summary.splitlines()[:3] == ["Results of oracle (baseline, no model)", "Maze", "  episodes      1/1"]
    results = run_agentgym(tmp_path, "--results", environ={"COLUMNS": "80"}).stdout
    assert re.search(r"^  completion_time_sec  \d", results, re.MULTILINE)
    wide = run_agentgym(tmp_path, "--results", environ={"COLUMNS": "200"}).stdout
    assert [table.count("│ Maze") for table in wide.split("Time and GPUs")] == [1, 1]


def test_the_documents_show_the_actual_output(tmp_path: Path) -> None:
    printed = run_agentgym(tmp_path, "--battery", "lightweight", "--agent", "oracle", "--repeat", "20").stdout
    expected = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    assert expected.startswith(" ")
    assert expected in (REPOSITORY / "docs/run/commands.md").read_text("utf-8")


def test_a_run_continues_without_a_log_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "logs").write_text("")
    for option in (("--run", "Maze", "--agent", "oracle"), ("--results",)):
        completed = run_agentgym(tmp_path, *option)
        assert completed.returncode == 0
        assert "Logging to a file is off" in completed.stderr


def test_damaged_files_are_named_once_by_run_and_results(tmp_path: Path) -> None:
    (batch,) = json.loads(run_agentgym(tmp_path, "--run", "Maze", "--agent", "oracle", "--json").stdout)["batches"]
    folder = tmp_path / "data" / "runs" / batch["batch_id"]
    episode_id = batch["episodes"][0]["episode_id"]
    (folder / f"{episode_id}.json").write_bytes(b"{")
    journal = folder / "01ARZ3NDEKTSV4RRFFQ69G5FAV.journal.jsonl"
    journal.write_bytes(b"{\n\x1b[2J")
    (tmp_path / "data" / "index.sqlite").write_bytes(b"not a database, but as long as one" * 40)
    for options in (("--run", "Maze", "--agent", "oracle"), ("--results",)):
        completed = run_agentgym(tmp_path, *options)
        assert completed.stderr.count(f"Skipped {folder / episode_id}.json") == 1
        assert completed.stderr.count(f"WARNING: {journal}: ") == 1
        assert "\x1b" not in completed.stderr
    assert "rebuilt from the episode files" in (tmp_path / "data" / "logs" / "runner.log").read_text()


def test_a_terminal_gets_a_live_bar(tmp_path: Path) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(
            COMMAND,
            [COMMAND, "--run", "Maze", "--agent", "oracle", "--repeat", "5"],
            ENVIRON | {"TERM": "xterm-256color"},
        )
    output = read_all(fd, deadline=time.monotonic() + 60)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "5/5" in output
    assert "success 100%" in output


def read_all(fd: int, deadline: float) -> str:
    data = b""
    while select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            chunk = os.read(fd, 65536)
        except OSError:  # Linux reports the end of a pseudo terminal this way
            break
        if not chunk:
            break
        data += chunk
    return data.decode(errors="replace")
