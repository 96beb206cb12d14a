"""``docs/build/library.md``: its programs run; ``docs/design/specification.md``: the tests that it names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.perfetto import read_slices

ROOT = Path(__file__).parents[2]
OUTPUTS = {
    "counting.py": "counting-3 [0.0, 0.0, 1.0] None",
    "traced.py": "",
    "many.py": "100 episodes, 100 without an error",
}


def write_programs(folder: Path) -> list[str]:
    """Write the programs of the page to files; return their names."""
    page = (ROOT / "docs/build/library.md").read_text("utf-8")
    programs = re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL)
    for name, text in programs:
        (folder / name).write_text(text)
    return [name for name, _ in programs]


@pytest.mark.long
def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    assert set(write_programs(tmp_path)) == {*OUTPUTS, "actors.py"}
    for name, expected in OUTPUTS.items():
        command = [sys.executable, "-W", "error", name]
        played = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (played.returncode, played.stdout.strip()) == (0, expected), played.stderr
    slices = [each for row in read_slices(tmp_path / "rollouts.pftrace").values() for each in row]
    assert sorted(each.name for each in slices) == ["episode"] * 3 + ["rollout"] * 3
    by_name = {name: [each for each in slices if each.name == name] for name in ("episode", "rollout")}
    assert [e.flows_in for e in by_name["episode"]] == [r.flows_out for r in by_name["rollout"]]
    assert [e.flows_out for e in by_name["episode"]] == [r.flows_in for r in by_name["rollout"]]


def test_the_program_with_a_pool_of_actors_is_the_one_that_is_tested() -> None:
    program = (ROOT / "tests" / "ray" / "program.py").read_text("utf-8").replace("  # noqa: T201", "")
    assert f"```python\n{program}```\n" in (ROOT / "docs/build/library.md").read_text("utf-8")
    assert len(program.splitlines()) <= 12


def test_the_tests_named_in_the_specification_exist() -> None:
    named = re.findall(r"`(tests/\S+?\.py)::(\w+)`", (ROOT / "docs/design/specification.md").read_text("utf-8"))
    assert len(named) > 20
    for path, test in named:
        assert re.search(rf"def {test}\(", (ROOT / path).read_text("utf-8")), (path, test)
