from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli.outbox import main_outbox
from runner.events.outbox import LOCAL, Ack
from tests.publishing import event, outbox_in


def _filled(folder: Path) -> None:
    with outbox_in(folder) as outbox:
        outbox.register("egress")
        outbox.add(*map(event, range(4)))
        outbox.ack(LOCAL, [Ack("event:0", "S", 1)])
        outbox.bury("egress", "event:1", "too \x1b[31mlarge")
        outbox.bury("egress", "event:2", "not allowed")


def test_counts_and_dead_letters_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _filled(tmp_path)
    assert main_outbox(["--data-dir", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["sinks"] == {
        "egress": {"pending": 2, "acked": 0, "dead": 2},
        "local": {"pending": 3, "acked": 1, "dead": 0},
    }
    assert [letter["id"] for letter in shown["dead_letters"]] == ["event:1", "event:2"]


def test_tables_are_safe_for_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _filled(tmp_path)
    assert main_outbox(["--data-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "not allowed" in out
    assert "event:2" in out
    assert "\x1b[31m" not in out


def test_dead_letters_are_sent_again_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _filled(tmp_path)
    place = ["--data-dir", str(tmp_path), "--json"]
    assert main_outbox([*place, "--retry", "event:1"]) == 0
    assert json.loads(capsys.readouterr().out)["sinks"]["egress"] == {"pending": 3, "acked": 0, "dead": 1}
    assert main_outbox([*place, "--retry", "event:1"]) == 1
    assert main_outbox([*place, "--retry", "all"]) == 0
    capsys.readouterr()
    assert main_outbox([*place, "--retry", "all"]) == 1
    assert json.loads(capsys.readouterr().out)["dead_letters"] == []


def test_nothing_is_created_where_nothing_was_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_outbox(["--data-dir", str(tmp_path / "data"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sinks": {}, "dead_letters": []}
    assert not (tmp_path / "data").exists()


def test_it_needs_no_client_of_the_bus() -> None:
    code = "import sys, runner.cli.outbox, runner.publish; sys.exit('nats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
