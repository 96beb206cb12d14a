"""What is kept from one start to the next, and that of a file anybody may have written nothing wrong is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.config.ui_state import MAX_NAMES, UiState, read_ui_state, state_path, write_ui_state
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.sorting import Sorting
from tests.support.console.samples import HOSTILE

KEPT = UiState("episodes", {"episodes": "wordle"}, {"environments": Sorting("last", True)}, {"live.wide.left": 40})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "agentgym-console" / "console.json"


def test_it_is_read_as_it_was_written_and_is_the_users_alone(path: Path) -> None:
    assert read_ui_state(path) == UiState()
    write_ui_state(path, KEPT)
    write_ui_state(path, KEPT)
    assert read_ui_state(path) == KEPT
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["console.json"]
    assert state_path({"XDG_STATE_HOME": str(path.parents[1])}) == path


def test_a_file_that_others_could_have_prepared_is_not_followed(path: Path, tmp_path: Path) -> None:
    write_ui_state(tmp_path / "theirs.json", KEPT)
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "theirs.json")
    assert read_ui_state(path) == UiState()
    write_ui_state(path, UiState("live"))
    assert not path.is_symlink() and read_ui_state(tmp_path / "theirs.json") == KEPT
    path.unlink()
    os.mkfifo(path)
    assert read_ui_state(path) == UiState()


def test_a_state_of_the_version_before_keeps_every_entry(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(
        '{"screen":"episodes","filters":{"episodes":"wordle"},"sorting":{"environments":["over",true],'
        '"episodes":["reward",false]},"sizes":{"live.wide.left":40,"episode.narrow.steps":30}}'
    )
    assert read_ui_state(path) == UiState(
        "episodes",
        {"episodes": "wordle"},
        {"environments": Sorting("transport", True), "episodes": Sorting("reward")},
        {"live.wide.left": 40, "episode.narrow.steps": 30},
    )


def test_nothing_is_left_beside_what_cannot_be_replaced(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_ui_state(path, KEPT)
    assert [each.name for each in path.parent.iterdir()] == ["console.json"]


@pytest.mark.parametrize(
    "document",
    [
        b"", b"[]", b"{", b"\xff", b"null", b"[" * 100_000, b'{"sizes": ' + b"[" * 50_000, b"{}" + b" " * 70_000,
        {"screen": 5, "filters": [], "sorting": {"a": 1}, "sizes": {"a": 0}},
        {"screen": "x" * 41, "filters": {"a": "x" * 201}, "sorting": {"a": ["x", 1]}, "sizes": {"a": 1e300}},
        {"sizes": {"a": True}, "sorting": {"x" * 41: ["a", True]}, "filters": {"a": None}, "unknown": {}},
    ],
)  # fmt: skip
def test_what_is_wrong_is_not_taken(path: Path, document: Any) -> None:  # noqa: ANN401
    assert read(path, document) == UiState()


def test_what_is_right_beside_it_is(path: Path) -> None:
    document = {"screen": "episodes", "filters": 5, "sizes": {"live.wide.left": 40, "b": 100}, "sorting": {"e": ["t"]}}
    assert read(path, document) == UiState("episodes", sorting={"e": Sorting("t")})


def test_it_is_bounded_and_safe(path: Path) -> None:
    found = read(path, {"filters": {**{str(n): "a" for n in range(1000)}}, "sizes": {str(n): 9 for n in range(1000)}})
    assert len(found.filters) == len(found.sizes) == MAX_NAMES
    found = read(path, {"filters": {"episodes": HOSTILE.encode("utf-8", "replace").decode()[:200]}})
    assert found.filters and not has_unsafe_chars(found.filters["episodes"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=45), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("screen", "filters", "sorting", "sizes"), JSON)))
@settings(max_examples=40, deadline=None)
def test_whatever_it_says_something_comes_of_it_that_can_be_written_again(
    tmp_path_factory: pytest.TempPathFactory,
    document: Any,  # noqa: ANN401
) -> None:
    path = tmp_path_factory.getbasetemp() / "whatever.json"
    path.write_text(json.dumps(document))
    found = read_ui_state(path)
    write_ui_state(path, found)
    assert read_ui_state(path) == found
    assert not has_unsafe_chars("".join(found.filters.values()))


def read(path: Path, document: Any) -> UiState:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return read_ui_state(path)
