from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fault_still_has_its_place_and_its_tests(mutant: Mutant) -> None:
    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert source.count(mutant.before) == 1
    assert mutant.before != mutant.after
    compile(source.replace(mutant.before, mutant.after), mutant.path, "exec")
    assert all((ROOT / each).exists() for each in mutant.tests)


def test_no_two_faults_are_the_same() -> None:
    assert len({(mutant.path, mutant.before, mutant.after) for mutant in MUTANTS}) == len(MUTANTS) >= 60
