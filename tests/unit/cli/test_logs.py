from __future__ import annotations

import logging
from pathlib import Path

import pytest

from runner.cli.reports import log_to_file, log_to_stderr
from runner.pool.choose import WORKER_LOG

HOSTILE = "\x1b[2J\u202e"


def _log_hostile_error(name: str) -> None:
    try:
        raise ValueError(f"{HOSTILE}\nWARNING: forged")
    except ValueError as exc:
        logging.getLogger(name).error("%s encountered error", HOSTILE, exc_info=exc)


@pytest.mark.parametrize("name", ["nats.aio.client", "asyncio", WORKER_LOG])
def test_library_records_go_to_the_file_only_and_are_sanitized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    log_to_file(tmp_path)
    _log_hostile_error(name)
    assert capsys.readouterr().err == ""
    lines = (tmp_path / "logs" / "runner.log").read_text().splitlines()
    assert f"ERROR {name} ␛[2J" in lines[0]
    assert lines[1:] == ["  ValueError: ␛[2J\\u{202e}", "  WARNING: forged"]


def test_library_records_are_discarded_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr()
    _log_hostile_error("nats.aio.client")
    assert capsys.readouterr().err == ""
    logging.getLogger("runner.bus.connection").warning("a callback failed: %s", HOSTILE)
    assert capsys.readouterr().err == "WARNING: a callback failed: ␛[2J\\u{202e}\n"
