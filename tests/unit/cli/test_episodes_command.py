"""``agentgym-runner episodes`` and ``export`` on a state directory."""

from __future__ import annotations

import hashlib
import json
import resource
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runner.cli import main
from runner.cli.tag import main_tag
from runner.store import EpisodeStore, open_index
from runner.types import Outcome
from tests.support.episodes import RecordedEpisode, make_step


@pytest.fixture
def ids(tmp_path: Path) -> list[str]:
    """Ids of three stored episodes: a success, a failure of the same task, and one in another environment."""
    store, ids = EpisodeStore(tmp_path), []
    with closing(open_index(store)) as index:
        for env, success in (("Maze", True), ("Maze", False), ("Wordle", True)):
            recording = RecordedEpisode(store, index, env=env, agent="react", model="qwen3:8b")
            recording.record_episode(
                3 if success else 2, outcome=Outcome.SUCCESS if success else Outcome.FAILURE, success=success
            )
            ids.append(recording.header.episode_id)
    return ids


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["episodes", "--json", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_query_selects_episodes(tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--data-dir", str(tmp_path))
    assert [line["episode_id"] for line in lines(capsys, *folder)] == ids[::-1]
    assert [line["episode_id"] for line in lines(capsys, "-outcome:failure", "env:maze", *folder)] == ids[:1]
    assert [line["episode_id"] for line in lines(capsys, "rounds<3", *folder)] == ids[1:2]
    assert [line["env"] for line in lines(capsys, "--sort", "rounds", "--limit", "2", *folder)] == ["Wordle", "Maze"]
    assert main_tag([ids[2], "todo", *folder]) == 0
    capsys.readouterr()
    assert [line["episode_id"] for line in lines(capsys, "tag:TO*", *folder)] == ids[2:]
    assert lines(capsys, 'tag:"to*"', *folder) == []
    assert lines(capsys, "tag:[t]odo", *folder) == []
    assert main(["episodes", "outcome:failure", *folder]) == 0
    captured = capsys.readouterr()
    assert captured.out.split()[0] == ids[1]
    assert {"Maze", "react", "qwen3:8b", "failure", "rounds"} <= set(captured.out.split())
    assert captured.err == "1 episode\n"


def test_words_are_found_with_their_lines(tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--data-dir", str(tmp_path))
    assert [line["episode_id"] for line in lines(capsys, 'text:"observation 3"', *folder)] == [ids[2], ids[0]]
    assert [line["episode_id"] for line in lines(capsys, "env:maze -text:3", *folder)] == [ids[1]]
    hits = lines(capsys, "env:maze text:obs* rounds>2", "--hits", "--limit", "2", *folder)
    assert [(hit["episode_id"], hit["step"], hit["line"]) for hit in hits] == [
        (ids[0], None, "observation 0"),
        (ids[0], 0, "observation 1"),
    ]
    assert main(["episodes", "text:obs*", "env:wordle", "--hits", *folder]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == [ids[2], "reset", "observation", "observation", "0"]
    assert captured.err == "4 hits in 1 episode\n"
    assert main(["episodes", "env:maze", "--hits", *folder]) == 2
    assert 'add a term such as text:"locked door"' in capsys.readouterr().err


def test_an_invalid_query_ends_with_its_place(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["episodes", "env:maze", "roundz>3", "--data-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err.splitlines()
    assert "did you mean rounds" in error[0]
    assert error[1:] == ["  env:maze roundz>3", "           ^^^^^^^^"]


def export(tmp_path: Path, format_name: str, output: str, *arguments: str) -> int:
    return main(
        ["export", "--format", format_name, "--output", str(tmp_path / output), "--data-dir", str(tmp_path), *arguments]
    )


def test_an_export_has_a_manifest_with_hashes_and_what_was_left_out(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(tmp_path, "messages", "m.jsonl", "outcome:success,failure", "--first-success") == 0
    data = (tmp_path / "m.jsonl").read_bytes()
    written = [json.loads(line) for line in data.splitlines()]
    assert [line["episode_id"] for line in written] == [ids[0], ids[2]]
    assert [message["role"] for message in written[0]["messages"]] == ["user", *["assistant", "user"] * 3]
    manifest = json.loads((tmp_path / "m.jsonl.manifest.json").read_bytes())
    assert manifest["query"] == "outcome:success,failure"
    assert (manifest["n_selected"], manifest["n_written"]) == (3, 2)
    assert manifest["left_out"] == {"not the first success of its task": 1}
    assert manifest["files"] == [{"path": "m.jsonl", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}]
    assert "left out: 1 episode: not the first success of its task" in capsys.readouterr().err


def test_an_audit_counts_what_an_export_would_train_and_writes_nothing(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    arguments = ["export", "--audit", "--data-dir", str(tmp_path), "outcome:success,failure", "--first-success"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 episodes, 2 groups"
    assert "left out                1 episode: not the first success of its task" in lines
    assert lines[-1] == "this export would train 0% of its groups (0 of 2)"
    assert main([*arguments, "--json"]) == 0
    audit = json.loads(capsys.readouterr().out)
    assert (audit["n_episodes"], audit["n_steps_with_ids"], audit["n_without_tokens"]) == (2, 0, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", [["--audit", "--output", "x"], ["--format", "atif"], []])
def test_an_export_needs_a_format_and_an_output_and_an_audit_neither(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--data-dir", str(tmp_path), *arguments]) == 2
    assert "--audit" in capsys.readouterr().err


def test_an_existing_output_is_kept_and_a_failed_export_leaves_nothing(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").write_text("mine")
    assert export(tmp_path, "atif", "kept") == 2
    assert (tmp_path / "kept").read_text() == "mine"
    assert export(tmp_path, "atif", "none", "env:nothing") == 2
    assert "is selected" in capsys.readouterr().err
    assert export(tmp_path, "atif", "none", "--drop-flat", "env:wordle") == 2
    assert "1 episode: its task's attempts all have the same reward" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert not list(tmp_path.glob(".*"))


def test_an_export_creates_the_folders_above_it_and_offers_what_can_be_written(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(tmp_path, "atif", "new/below/trajectories") == 0
    folder = tmp_path / "new" / "below" / "trajectories"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert main(["import", str(folder), "--data-dir", str(tmp_path / "other")]) == 0
    assert "without a known format" not in capsys.readouterr().err
    assert {file["path"] for file in manifest["files"]} == {path.name for path in folder.iterdir()} - {"manifest.json"}
    (tmp_path / "file").write_text("mine")
    assert export(tmp_path, "messages", "file/m.jsonl") == 2
    with pytest.raises(SystemExit):
        export(tmp_path, "inspect", "log.eval")
    assert "choose from" in capsys.readouterr().err


def test_an_output_without_room_is_reported_and_leaves_nothing(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))  # the disk has no room for larger files
    try:
        assert export(tmp_path, "messages", "m.jsonl") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "m.jsonl cannot be written: File too large" in capsys.readouterr().err
    assert not list(tmp_path.glob("*m.jsonl*"))


def test_preferences_pair_the_attempts_of_a_task(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(tmp_path, "preferences", "p.jsonl", "--json") == 0
    manifest = json.loads(capsys.readouterr().out)
    pairs = [json.loads(line) for line in (tmp_path / "p.jsonl").read_bytes().splitlines()]
    assert manifest["left_out"] == {
        "the only attempt of its task": 1,
        "the replies of one are the first replies of the other": 2,
    }
    assert pairs == []


def test_every_command_names_what_it_left_out_and_ends_with_1(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--data-dir", str(tmp_path))
    (file,) = tmp_path.glob(f"runs/*/{ids[0]}.json")
    archive, wrong = file.with_name("archive.zip"), tmp_path / "runs" / "copied runs"
    with closing(open_index(EpisodeStore(tmp_path))):
        file.write_bytes(b"{")
    archive.write_bytes(b"PK\5\6 no archive")
    wrong.mkdir()
    left_out = {str(path) for path in (file, archive, wrong)}
    for command in (["episodes"], ["episodes", "--hits", "text:door"], ["clusters"], ["--results"]):
        for as_json in ([], ["--json"]):
            assert main([*command, *folder, *as_json]) == 1, command
            captured = capsys.readouterr()
            assert {line.split(": ")[0] for line in captured.err.splitlines()} >= {
                f"Skipped {path}" for path in left_out
            }
            if as_json:
                document = json.loads(captured.out.splitlines()[-1] if command[0] == "episodes" else captured.out)
                assert {damaged["path"] for damaged in document["damaged"]} == left_out
    assert export(tmp_path, "sharegpt", "s.jsonl", "--json") == 1
    manifest = json.loads(capsys.readouterr().out)
    assert (manifest["n_written"], manifest["n_selected"]) == (2, 5)
    assert manifest["left_out"] == {"its file is missing or damaged": 3}
    assert len((tmp_path / "s.jsonl").read_bytes().splitlines()) == 2
    assert main(["export", "--audit", *folder]) == 1
    assert "3 episodes: its file is missing or damaged" in capsys.readouterr().out
    assert main(["prune", "--older", "1h", "--dry-run", *folder]) == 1
    assert f"Skipped {file}" in capsys.readouterr().err
    for command in (["compare", ids[0], ids[1]], ["tag", ids[0], "seen"]):
        assert main([*command, *folder]) == 2
        assert f"Skipped {file}" in capsys.readouterr().err
    assert main(["episodes", "--data-dir", str(tmp_path / "runs")]) == 2
    assert "name the folder above runs" in capsys.readouterr().err


def test_two_episodes_are_compared_from_their_first_difference_on(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--data-dir", str(tmp_path))
    (file,) = tmp_path.glob(f"runs/*/{ids[1]}.json")
    assert main(["compare", ids[0], str(file), *folder]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["A", ids[0]], ["B", ids[1]]]
    assert lines[2] == "They differ after 2 steps."
    assert "step 2: no such step on one side" in lines
    assert "step 1: the same" not in lines
    assert main(["compare", ids[0], ids[1], "--json", *folder]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert (compared["a"], compared["b"], compared["divergence"]) == (ids[0], ids[1], 2)
    assert [step["differences"] for step in compared["steps"]] == [[], [], ["missing"]]


@pytest.mark.parametrize(("name", "problem"), [("0", "more than one"), ("7ZZ", "no episode"), ("../x", "no episode")])
def test_an_unknown_or_ambiguous_id_cannot_be_compared(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str], name: str, problem: str
) -> None:
    assert main(["compare", name, ids[0], "--data-dir", str(tmp_path)]) == 2
    assert problem in capsys.readouterr().err


def test_failed_episodes_are_grouped_by_how_they_failed(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--data-dir", str(tmp_path))
    with closing(open_index(EpisodeStore(tmp_path))) as index:
        for n_steps in (4, 1):
            recording = RecordedEpisode(EpisodeStore(tmp_path), index, env="Maze", agent="react", model="qwen3:8b")
            recording.record_episode(n_steps, outcome=Outcome.FAILURE, success=False)
    assert main(["clusters", "--json", *folder]) == 0
    found = json.loads(capsys.readouterr().out)
    (cluster,) = found["clusters"]
    assert (cluster["env"], cluster["n"], cluster["cause"]) == ("Maze", 3, "wrong")
    assert (cluster["representative"], cluster["step"]) == (recording.header.episode_id, 0)
    assert cluster["agents"] == {"react qwen3:8b": 3}
    assert cluster["episodes"][0] == ids[1]
    assert main(["clusters", "env:maze", *folder]) == 0
    captured = capsys.readouterr()
    assert "3 failed episodes in 1 cluster" in captured.err
    assert recording.header.episode_id in captured.out
    assert main(["clusters", "env:wordle", *folder]) == 0
    assert capsys.readouterr().err == "No failed episodes\n"


def test_flags_and_failures_are_fields_and_columns(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_index(EpisodeStore(tmp_path))) as index:
        recording = RecordedEpisode(EpisodeStore(tmp_path), index, env="Maze")
        recording.start()
        for number in range(3):
            recording.play(make_step(number, observation=[{"role": "user", "content": "A wall is there."}]))
        recording.end(outcome=Outcome.TRUNCATED, success=False)
    folder = ("--data-dir", str(tmp_path))
    (found,) = lines(capsys, "flag:loop", "failure:loop:*move*", *folder)
    assert found["episode_id"] == recording.header.episode_id
    assert found["flags"] == ["loop", "truncated", "unearned"]
    assert found["failure"] == {"cause": "loop", "action": "move …", "observation": "… wall is there", "step": 0}
    assert {each["episode_id"] for each in lines(capsys, "flag:none", *folder)} == {ids[0], ids[2]}
    assert main(["episodes", "flag:l*", *folder]) == 0
    assert capsys.readouterr().out.rstrip().endswith("loop truncated unearned")


def test_the_reward_of_a_format_without_one_is_unknown_and_not_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chats, folder = tmp_path / "chats.jsonl", ("--data-dir", str(tmp_path / "state"))
    messages = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "left"}]
    known = {"messages": messages, "success": False, "reward": 0.0}
    chats.write_text(f"{json.dumps({'messages': messages})}\n{json.dumps(known)}\n")
    assert main(["import", str(chats), *folder]) == 0
    capsys.readouterr()
    (row,) = lines(capsys, "outcome:unknown", *folder)
    assert (row["reward"], row["outcome"], row["success"], row["unscored"]) == (None, None, None, True)
    assert lines(capsys, "outcome:interrupted", *folder) == []
    assert main(["episodes", "--sort", "outcome", *folder]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    rewards = {line[line.index("round") - 3]: line[line.index("round") - 2] for line in listed}
    assert rewards == {"unknown": "-", "failure": "0"}
