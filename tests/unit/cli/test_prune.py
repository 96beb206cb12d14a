"""``agentgym-runner prune``, ``tag`` and ``outbox`` on a state directory."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from runner.cli import main
from runner.cli.outbox import main_outbox
from runner.cli.prune import main_prune
from runner.cli.tag import main_tag
from runner.errors import ConfigError
from runner.publish.outbox import LOCAL, Ack
from runner.store import EpisodeStore, open_index
from tests.support.episodes import RecordedEpisode, new_id
from tests.support.publishing import open_outbox, outbox_event


@pytest.fixture
def ids(tmp_path: Path) -> list[str]:
    """Ids of two stored episodes of a batch, which ended long ago, and whose events were never sent."""
    batch_id, ids = new_id(), []
    store = EpisodeStore(tmp_path)
    with closing(open_index(store)) as index:
        for _ in range(2):
            recording = RecordedEpisode(store, index, batch_id=batch_id)
            recording.record_episode()
            ids.append(recording.header.episode_id)
    return ids


def output(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_tagged_and_undelivered_episodes_are_kept(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--data-dir", str(tmp_path), "--json"]
    assert main_tag([ids[0], "good", "loop", *folder]) == 0
    assert main_tag([ids[0], "loop", "--remove", *folder]) == 0
    capsys.readouterr()
    assert main_tag([ids[0], *folder]) == 0
    tags = output(capsys)["tags"]
    assert isinstance(tags, list)
    assert [tag["text"] for tag in tags] == ["good"]
    assert main_prune(["--older", "1d", *folder]) == 0
    assert output(capsys)["kept"] == {"tagged": 1, "event not delivered": 1}
    assert main_prune(["--older", "1d", "--undelivered", "--keep", "tagged", "--dry-run", *folder]) == 0
    assert output(capsys)["n_archived"] == 1
    assert main_prune(["--older", "1d", "--undelivered", "--keep", "tagged", *folder]) == 0
    assert output(capsys)["n_archived"] == 1
    assert main(["--results", *folder]) == 0
    assert (
        main_prune(["--max-bytes", "1K", "--undelivered", "--keep", "none", "--delete", "--data-dir", str(tmp_path)])
        == 0
    )
    assert "2 episodes" in capsys.readouterr().out
    assert list((tmp_path / "runs").iterdir()) == []
    (tmp_path / "empty").mkdir()
    assert main_prune(["--older", "1d", "--data-dir", str(tmp_path / "empty")]) == 0


def test_a_limit_that_cannot_be_kept_is_reported_with_what_to_do(
    tmp_path: Path, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_tag([ids[0], "good", "--data-dir", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main_prune(["--max-bytes", "1", "--undelivered", "--delete", "--data-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "kept: tagged" in printed.out
    assert "nothing more can be pruned" in printed.err and "--keep none" in printed.err
    assert main_prune(["--older", "1d", "--undelivered", "--delete", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("option", [["--older", "soon"], ["--older", "1y"], ["--max-bytes", "0"], ["--max-bytes", "x"]])
def test_invalid_values_are_refused(option: list[str]) -> None:
    with pytest.raises(SystemExit):
        main_prune(option)


def test_what_to_prune_has_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--older or --max-bytes"):
        main_prune(["--data-dir", str(tmp_path)])


def test_unknown_episodes_and_tags_are_refused(tmp_path: Path, ids: list[str]) -> None:
    for episode in (new_id(), "../x\x1b"):
        with pytest.raises(ConfigError, match="there is no episode"):
            main_tag([episode, "a", "--data-dir", str(tmp_path)])
    assert main(["tag", ids[0], "a b", "--data-dir", str(tmp_path)]) == 2
    assert main(["tag", ids[0], "--remove", "--data-dir", str(tmp_path)]) == 2
    assert main(["tag", ids[0], "a", "--step", "2", "--data-dir", str(tmp_path)]) == 0


EGRESS = "egress nats://there:4222"
FORMER = "egress nats://gone:4222"


@pytest.fixture(autouse=True)
def egress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://user:secret@there")


def _fill_outbox(folder: Path) -> None:
    with open_outbox(folder) as outbox:
        outbox.register_sinks(EGRESS, FORMER)
        outbox.add(*map(outbox_event, range(4)))
        outbox.ack(LOCAL, [Ack("event:0", "S", 1)])
        outbox.mark_dead(EGRESS, "event:1", "too \x1b[31mlarge")
        outbox.mark_dead(EGRESS, "event:2", "not allowed")


def test_counts_and_dead_letters_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _fill_outbox(tmp_path)
    assert main_outbox(["--data-dir", str(tmp_path), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["sinks"] == {
        EGRESS: {"configured": True, "pending": 2, "acked": 0, "dead": 2, "held": 0},
        FORMER: {"configured": False, "pending": 4, "acked": 0, "dead": 0, "held": 0},
        "local": {"configured": True, "pending": 3, "acked": 1, "dead": 0, "held": 0},
    }
    assert [letter["id"] for letter in output["dead_letters"]] == ["event:1", "event:2"]


def test_tables_are_safe_for_the_terminal_and_mark_an_unconfigured_sink(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # each sink in a line of its own
    _fill_outbox(tmp_path)
    assert main_outbox(["--data-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "not allowed" in out
    assert "event:2" in out
    assert "\x1b[31m" not in out
    lines = [line for line in out.splitlines() if "not configured" in line]
    assert ["│ the external broker nats://gone:4222 " in line for line in lines] == [True]
    monkeypatch.delenv("NATS_URL")
    assert main_outbox(["--data-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("not configured") == 2
    assert "secret" not in out


def test_retry_queues_dead_letters_for_delivery(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _fill_outbox(tmp_path)
    options = ["--data-dir", str(tmp_path), "--json"]
    assert main_outbox([*options, "--retry", "event:1"]) == 0
    sink = json.loads(capsys.readouterr().out)["sinks"][EGRESS]
    assert (sink["pending"], sink["dead"]) == (3, 1)
    assert main_outbox([*options, "--retry", "event:1"]) == 1
    assert main_outbox([*options, "--retry", "all"]) == 0
    capsys.readouterr()
    assert main_outbox([*options, "--retry", "all"]) == 1
    assert json.loads(capsys.readouterr().out)["dead_letters"] == []


def test_an_empty_state_directory_stays_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_outbox(["--data-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sinks": {}, "dead_letters": []}
    assert not list(tmp_path.iterdir())
