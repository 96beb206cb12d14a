"""UI state kept between starts; invalid parts of its file are ignored."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.config.ui_state import (
    MAX_BYTES,
    MAX_NAMES,
    MAX_PLACES,
    UiState,
    read_ui_state,
    state_path,
    write_ui_state,
)
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.sorting import Sorting
from tests.support.console.samples import HOSTILE
from tests.support.examples import examples

UI_STATE = UiState("episodes", {"episodes": "wordle"}, {"environments": Sorting("last", True)}, {"live.wide.left": 40})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "agentgym-console" / "console.json"


def test_the_state_is_restored_and_readable_only_by_its_user(path: Path) -> None:
    assert read_ui_state(path) == UiState()
    write_ui_state(path, UI_STATE)
    write_ui_state(path, UI_STATE)
    assert read_ui_state(path) == UI_STATE
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["console.json"]
    assert state_path({"XDG_STATE_HOME": str(path.parents[1])}) == path


def test_links_and_pipes_are_not_followed(path: Path, tmp_path: Path) -> None:
    write_ui_state(tmp_path / "theirs.json", UI_STATE)
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "theirs.json")
    assert read_ui_state(path) == UiState()
    write_ui_state(path, UiState("live"))
    assert not path.is_symlink() and read_ui_state(tmp_path / "theirs.json") == UI_STATE
    path.unlink()
    os.mkfifo(path)
    assert read_ui_state(path) == UiState()


def test_a_file_of_the_previous_version_keeps_every_entry(path: Path) -> None:
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


def test_screen_and_filters_are_kept_for_each_place_and_sorting_and_sizes_for_all(path: Path) -> None:
    write_ui_state(path, UI_STATE, "/srv/a")
    assert read_ui_state(path, "/srv/b") == UiState(sorting=UI_STATE.sorting, sizes=UI_STATE.sizes)
    write_ui_state(path, UiState("events", {"events": "x"}), "nats://user:secret@host")
    assert read_ui_state(path, "/srv/a") == UiState("episodes", {"episodes": "wordle"})
    assert read_ui_state(path, "nats://user:secret@host") == UiState("events", {"events": "x"})
    assert b"secret" not in path.read_bytes()


def test_a_file_of_the_previous_version_applies_to_the_first_place_that_is_opened(path: Path) -> None:
    write_ui_state(path, UI_STATE)
    assert read_ui_state(path, "/srv/a") == UI_STATE
    write_ui_state(path, UI_STATE, "/srv/a")
    assert read_ui_state(path, "/srv/a") == UI_STATE
    assert read_ui_state(path, "/srv/b").filters == {}


def test_the_places_used_last_are_kept(path: Path) -> None:
    for number in range(MAX_PLACES + 1):
        write_ui_state(path, UiState(filters={"episodes": str(number)}), f"/srv/{number}")
    assert read_ui_state(path, "/srv/0").filters == {}
    assert read_ui_state(path, "/srv/1").filters == {"episodes": "1"}
    path.write_text('{"places": {"a": 5}}')
    assert read_ui_state(path, "/srv/1") == UiState()


def test_a_failed_write_leaves_no_temporary_file(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_ui_state(path, UI_STATE)
    assert [file.name for file in path.parent.iterdir()] == ["console.json"]


@pytest.mark.parametrize(
    "document",
    [
        b"", b"[]", b"{", b"\xff", b"null", b"[" * 100_000, b'{"sizes": ' + b"[" * 50_000, b"{}" + b" " * MAX_BYTES,
        {"screen": 5, "filters": [], "sorting": {"a": 1}, "sizes": {"a": 0}},
        {"screen": "x" * 41, "filters": {"a": "x" * 1001}, "sorting": {"a": ["x", 1]}, "sizes": {"a": 1e300}},
        {"sizes": {"a": True}, "sorting": {"x" * 41: ["a", True]}, "filters": {"a": None}, "unknown": {}},
    ],
)  # fmt: skip
def test_an_invalid_document_is_ignored(path: Path, document: Any) -> None:  # noqa: ANN401
    assert read_document(path, document) == UiState()


def test_valid_entries_of_an_invalid_document_are_read(path: Path) -> None:
    document = {"screen": "episodes", "filters": 5, "sizes": {"live.wide.left": 40, "b": 100}, "sorting": {"e": ["t"]}}
    assert read_document(path, document) == UiState("episodes", sorting={"e": Sorting("t")})


def test_the_state_is_bounded_and_free_of_control_characters(path: Path) -> None:
    filters, sizes = {str(n): "a" for n in range(1000)}, {str(n): 9 for n in range(1000)}
    state = read_document(path, {"filters": filters, "sizes": sizes})
    assert len(state.filters) == len(state.sizes) == MAX_NAMES
    state = read_document(path, {"filters": {"episodes": HOSTILE.encode("utf-8", "replace").decode()[:200]}})
    assert state.filters and not has_unsafe_chars(state.filters["episodes"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=45), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("screen", "filters", "sorting", "sizes"), JSON)))
@settings(max_examples=examples(40), deadline=None)
def test_the_state_of_any_document_can_be_written_and_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    document: Any,  # noqa: ANN401
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(document))
    state = read_ui_state(path)
    write_ui_state(path, state)
    assert read_ui_state(path) == state
    assert not has_unsafe_chars("".join(state.filters.values()))


def read_document(path: Path, document: Any) -> UiState:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return read_ui_state(path)
