from __future__ import annotations

import pytest

from agentgym_tui.state.query import Query


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", True),
        (" MAZE  error ", True),
        ("maze reset", False),
        ("straße", True),
        ("STRASSE", True),
        ("ÄRGER", True),
    ],
)
def test_a_text_matches_the_words_in_any_order_and_case(text: str, found: bool) -> None:
    assert Query(text).matches("error in the Straße of maze: Ärger".casefold()) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", True),
        ("NEW orders", True),
        ("new bills", False),
        ("Ärger", True),
        ("Orders ärger", False),
        ("Öl", True),
        ("ÖL orders", True),
        ("Öl bills", False),
        ("\ud800", False),
    ],
)
def test_bytes_match_ascii_letters_in_any_case_and_other_letters_as_they_are(text: str, found: bool) -> None:
    query = Query(text)
    assert query.matches_bytes(["payload of new Ärger about öl".encode(), b"Orders"]) is found
    assert bool(query) is bool(text.strip())


def test_a_part_that_cannot_change_the_answer_is_not_requested() -> None:
    def parts() -> object:
        yield b"all words"
        raise AssertionError("not needed")

    assert Query("words all").matches_bytes(parts())  # type: ignore[arg-type]
