from __future__ import annotations

import pytest

from agentgym_tui.state.event_log import Words


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
    words = Words(text.split())
    assert words.found_in(["payload of new Ärger about öl".encode(), b"Orders"]) is found


def test_a_part_that_cannot_change_the_answer_is_not_requested() -> None:
    def parts() -> object:
        yield b"all words"
        raise AssertionError("not needed")

    assert Words(["words", "all"]).found_in(parts())  # type: ignore[arg-type]
