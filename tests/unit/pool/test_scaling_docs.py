"""``docs/run/many-machines.md``: its program is the one that the tests on Ray run."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_documented_program_is_the_one_that_is_tested() -> None:
    program = (ROOT / "tests" / "ray" / "program.py").read_text("utf-8").replace("  # noqa: T201", "")
    document = (ROOT / "docs/run/many-machines.md").read_text("utf-8")
    assert f"```python\n{program}```\n" in document
    assert len(program.splitlines()) <= 12
