from __future__ import annotations

from pathlib import Path

from tests.golden.__main__ import FOLDER
from tests.golden.player import record_all


def test_what_is_written_and_sent_is_what_was_recorded(tmp_path: Path) -> None:
    recorded = {
        str(path.relative_to(FOLDER).with_suffix("")): path.read_bytes().decode().removesuffix("\n").split("\n")
        for path in FOLDER.rglob("*.txt")
    }
    played = record_all(tmp_path)
    assert played.keys() == recorded.keys()
    for name, lines in recorded.items():
        for number, (ours, theirs) in enumerate(zip(played[name], lines, strict=False), start=1):
            assert ours == theirs, f"line {number} of {name}; make golden records on purpose"
        assert len(played[name]) == len(lines), name
