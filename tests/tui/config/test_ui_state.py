"""UI state kept between starts; invalid parts of its file are ignored."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.config import MAX_PLACES, MAX_STATE_BYTES, UiState, read_ui_state, state_path, write_ui_state
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.query import Sorting
from tests.support.console.samples import HOSTILE
from tests.support.examples import examples

UI_STATE = UiState("episodes", {"episodes": "wordle"}, {"environments": Sorting("tier", True)}, {"live.wide.left": 40})


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


def test_screen_and_filters_are_kept_for_each_place_and_sorting_and_sizes_for_all(path: Path) -> None:
    write_ui_state(path, UI_STATE, "/srv/a")
    assert read_ui_state(path, "/srv/b") == UiState(sorting=UI_STATE.sorting, sizes=UI_STATE.sizes)
    write_ui_state(path, UiState("events", {"events": "x"}), "nats://user:secret@host")
    assert read_ui_state(path, "/srv/a") == UiState("episodes", {"episodes": "wordle"})
    assert read_ui_state(path, "nats://user:secret@host") == UiState("events", {"events": "x"})
    assert b"secret" not in path.read_bytes()


def test_the_places_used_last_are_kept(path: Path) -> None:
    for number in range(MAX_PLACES + 1):
        write_ui_state(path, UiState(filters={"episodes": str(number)}), f"/srv/{number}")
    assert read_ui_state(path, "/srv/0").filters == {}
    assert read_ui_state(path, "/srv/1").filters == {"episodes": "1"}


def test_a_failed_write_leaves_no_temporary_file(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_ui_state(path, UI_STATE)
    assert [file.name for file in path.parent.iterdir()] == ["console.json"]


@pytest.mark.parametrize(
    "document",
    [
        b"", b"[]", b"{", b"\xff", b"null", b"[" * 100_000, b'{"sizes": ' + b"[" * 50_000,
        b"{}" + b" " * MAX_STATE_BYTES,
        *({"places": each} for each in (5, {"a": 5}, {"a": {"screen": 5}}, {"a": {"filters": {"a": "x" * 1001}}})),
        {"sizes": {"a": 100}}, {"sizes": {"a": True}}, {"sizes": {"a": 1e300}},
        {"sizes": {str(n): 9 for n in range(99)}}, {"filters": {}, "places": None},
        {"sorting": {"a": 1}}, {"sorting": {"a": ["x", 1]}}, {"sorting": {"x" * 41: ["a", True]}}, {"unknown": {}},
        {"queries": {"a": ["x"] * 21}}, {"saved_queries": {"a": {str(n): "x" for n in range(99)}}},
    ],
)  # fmt: skip
def test_an_invalid_document_is_ignored(path: Path, document: Any) -> None:  # noqa: ANN401
    assert read_document(path, document) == UiState()


def test_one_invalid_entry_makes_the_file_worthless(path: Path) -> None:
    write_ui_state(path, UI_STATE)
    document = json.loads(path.read_bytes())
    assert read_document(path, document) == UI_STATE
    assert read_document(path, document | {"sizes": {"live.wide.left": 40, "b": 100}}) == UiState()


NAMES = st.text(max_size=4)  # each character may become ten
WORDS = st.text(max_size=60) | st.sampled_from([HOSTILE.encode("utf-8", "replace").decode()[:60], "\x1b]0;x\x07"])
QUERIES = st.dictionaries(NAMES, WORDS, min_size=1, max_size=3)
DOCUMENTS = st.fixed_dictionaries(
    {
        "places": st.builds(lambda *each: {"screen": each[0], "filters": each[1]}, NAMES, QUERIES),
        "queries": st.dictionaries(NAMES, st.lists(WORDS, max_size=3), min_size=1, max_size=3),
        "saved_queries": st.dictionaries(NAMES, QUERIES, min_size=1, max_size=3),
        "sorting": st.dictionaries(NAMES, st.tuples(NAMES, st.booleans()), max_size=3),
        "sizes": st.dictionaries(NAMES, st.integers(1, 99), min_size=1, max_size=3),
        "theme": NAMES,
    }
)
"""Valid documents with hostile texts; the place is that of a session without one."""


@given(DOCUMENTS)
@settings(max_examples=examples(40), deadline=None)
def test_the_state_of_a_hostile_document_is_safe_and_can_be_written_and_read_again(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    write_ui_state(path, UiState())
    places = dict.fromkeys(json.loads(path.read_bytes())["places"], document["places"])
    state = read_document(path, document | {"places": places})
    assert state.filters and state.queries and state.saved_queries and state.sizes, "the document is valid"
    texts = json.dumps(msgspec.to_builtins(state), ensure_ascii=False)
    assert not has_unsafe_chars(texts)
    write_ui_state(path, state)
    assert read_ui_state(path) == state


@given(st.recursive(st.none() | WORDS, lambda inner: st.lists(inner) | DOCUMENTS | st.dictionaries(NAMES, inner)))
@settings(max_examples=examples(40), deadline=None)
def test_any_document_is_read(tmp_path_factory: pytest.TempPathFactory, document: object) -> None:
    assert isinstance(read_document(tmp_path_factory.getbasetemp() / "any.json", document), UiState)


def read_document(path: Path, document: Any) -> UiState:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return read_ui_state(path)
