"""Objects of a configuration equal those that Hydra builds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hydra.utils
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.agents.baselines import Script
from runner.envs.http.server import ServerAddress
from runner.episode.factory import build_object
from runner.errors import catch_foreign

PART = f"{__name__}.Part"


class Part:
    """Keeps its arguments."""

    n_built = 0

    def __init__(self, **arguments: object) -> None:
        self.arguments = arguments
        Part.n_built += 1
        if arguments.get("broken"):
            raise ValueError("broken part")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and repr(other.arguments) == repr(self.arguments)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Part({self.arguments!r})"


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec="utf-8", exclude_characters="$?")),
    st.sampled_from(
        [Script(("${up}",)), ServerAddress("http://h", secrets=("${x}",)), "a.b", "[1]", "${count}", "???"]
    ),
)
KEYS = st.text("abc_{}", min_size=1, max_size=4).filter(lambda key: not (key.startswith("_") and key.endswith("_")))
VALUES = st.recursive(
    LEAVES,
    lambda values: st.one_of(
        st.lists(values, max_size=3),
        st.lists(values, max_size=3).map(tuple),
        st.dictionaries(KEYS, values, max_size=3),
        st.dictionaries(KEYS, values, max_size=3).map(lambda entries: {"_target_": PART, **entries}),
        st.dictionaries(KEYS, values, max_size=3).map(lambda entries: {"_target_": PART, "_partial_": True, **entries}),
    ),
    max_leaves=8,
)
CONFIGS = st.dictionaries(KEYS, VALUES, max_size=4).map(lambda entries: {"_target_": PART, **entries, "count": 3})


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(CONFIGS)
def test_every_object_equals_that_of_hydra(cfg: dict[str, Any]) -> None:
    expected: list[object] = []
    problems: list[BaseException] = []
    with catch_foreign(problems.append):
        expected.append(hydra.utils.instantiate(cfg, _convert_="all"))
    if problems:
        with pytest.raises(type(problems[0])):
            build_object(cfg)
        return
    for built in (build_object(cfg), build_object(cfg)):
        assert repr(built) == repr(expected[0])
    first, second = (list(mutable_parts(build_object(cfg))) for _ in range(2))
    assert not {id(part) for part in first} & {id(part) for part in second}


def mutable_parts(value: object) -> Iterator[object]:
    """Yield the containers and parts within a value."""
    if isinstance(value, Part):
        yield value
        yield from mutable_parts(value.arguments)
    elif isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from mutable_parts(item)
    elif isinstance(value, list):
        yield value
        for item in value:
            yield from mutable_parts(item)


def test_further_arguments_are_not_copied() -> None:
    manager = object()
    for _ in range(3):
        assert build_object({"_target_": PART, "a": [1]}, manager=manager).arguments == {"a": [1], "manager": manager}


def test_a_constructor_that_fails_is_called_again_for_the_next_object() -> None:
    cfg = {"_target_": PART, "broken": True}
    before = Part.n_built
    for _ in range(2):
        with pytest.raises(Exception, match="broken part"):
            build_object(cfg)
    assert Part.n_built == before + 2


@pytest.mark.parametrize("target", ["no_such_module.Part", f"{__name__}.NoPart", f"{__name__}.PART", "..", "", None])
def test_a_target_that_cannot_be_imported_fails_as_in_hydra(target: str | None) -> None:
    errors: list[BaseException] = []
    for build in (hydra.utils.instantiate, build_object):
        with catch_foreign(errors.append):
            build({"_target_": target})
    expected, actual = errors
    assert (type(actual), str(actual)) == (type(expected), str(expected))


def test_an_attribute_takes_precedence_over_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "twofold").mkdir()
    (tmp_path / "twofold" / "__init__.py").write_text("from twofold.thing import thing")
    (tmp_path / "twofold" / "thing.py").write_text("def thing(): return 'built'")
    monkeypatch.syspath_prepend(tmp_path)
    assert build_object({"_target_": "twofold.thing"}) == "built"
