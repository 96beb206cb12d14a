from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.cli.outbox import main_outbox
from runner.publish.outbox import LOCAL, Ack
from tests.support.publishing import open_outbox, outbox_event

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
