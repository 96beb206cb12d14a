"""Combining marks, Hangul vowels, skin tones and private-use characters in text from outside."""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, get_character_cell_size

from runner.util.display_text import (
    COMBINING_ABOVE_BMP,
    COMBINING_BMP,
    EMOJI_MODIFIERS,
    EMOJI_SELECTORS,
    MAX_MARKS,
    is_unsafe,
    one_line,
    sanitize,
    unsafe_offsets,
)

ACUTE, KEYCAP, VIRAMA, JAMO, VARIATION = "\u0301", "\u20e3", "\u094d", "\u1161", "\ufe0f"
SKIN_TONE, PRIVATE, PRIVATE_PLANE = "\U0001f3fd", "\ue000", "\U0010fffd"
SPECIAL = ACUTE + KEYCAP + VIRAMA + JAMO + VARIATION + SKIN_TONE + PRIVATE + PRIVATE_PLANE + "\U0001e947\u200d\x1b"
ANY_TEXT = st.text(st.one_of(st.characters(), st.sampled_from(SPECIAL * 2 + "e👍 \n\t"), st.sampled_from(ACUTE + JAMO)))
ZERO_WIDTH = re.compile(f"[{COMBINING_BMP}{COMBINING_ABOVE_BMP}]")
MAX_WIDTH_OF_A_CHARACTER = len("\\u{10ffff}")


def is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M") or get_character_cell_size(char) == 0


def longest_stack(text: str) -> int:
    return max((len(list(run)) for marks, run in groupby(text, is_mark) if marks), default=0)


@given(ANY_TEXT)
def test_no_character_bears_more_than_two_marks_and_none_is_without_a_base(text: str) -> None:
    shown = sanitize(text)
    assert longest_stack(re.sub("[\n\t]", " ", shown)) <= MAX_MARKS
    assert not any(is_mark(line[0]) for line in re.split("[\n\t]", shown) if line)
    assert not [char for char in shown if unicodedata.category(char) in ("Co", "Cs")]


@given(ANY_TEXT, st.integers(0, 60))
def test_sanitizing_marks_is_idempotent(text: str, limit: int) -> None:
    for shown in (sanitize(text), sanitize(text, limit=limit), one_line(text)):
        assert sanitize(shown) == shown
        assert not is_unsafe(shown)
    assert len(sanitize(text, limit=limit)) <= limit


@given(ANY_TEXT)
def test_the_shown_text_grows_at_most_by_a_factor(text: str) -> None:
    shown = sanitize(text, limit=10_000)
    assert len(shown) <= MAX_WIDTH_OF_A_CHARACTER * len(text)
    assert cell_len(shown) <= MAX_WIDTH_OF_A_CHARACTER * len(text)


@given(st.lists(ANY_TEXT))
def test_safe_texts_remain_safe_when_they_are_joined(texts: list[str]) -> None:
    joined = "".join(sanitize(text) for text in texts)
    assert longest_stack(re.sub("[\n\t]", " ", joined)) <= MAX_MARKS


@given(ANY_TEXT)
def test_the_offsets_are_the_places_that_are_replaced(text: str) -> None:
    offsets = list(unsafe_offsets(text))
    shown, kept = sanitize(text, limit=10_000), re.compile(f"[{EMOJI_SELECTORS}]")
    assert bool(offsets) == is_unsafe(text)
    assert offsets or shown == kept.sub("", text)
    start = offsets[0] if offsets else len(text)
    assert shown.startswith(kept.sub("", text[:start]))


@pytest.mark.long
def test_the_table_has_every_mark_and_every_character_without_a_column() -> None:
    characters = [chr(code) for code in range(0x110000) if chr(code) not in "\n\t"]
    tones = re.compile(f"[{EMOJI_MODIFIERS}]")
    alone = [char for char in characters if is_mark(char) and not tones.match(char) and not ZERO_WIDTH.match(char)]
    assert not [char for char in alone if not is_unsafe(f"a{char}b")]
    assert not [char for char in characters if ZERO_WIDTH.match(char) and get_character_cell_size(char)]


def test_a_hostile_stack_of_marks_becomes_its_number() -> None:
    assert sanitize(f"e{ACUTE * 50}x") == f"e{ACUTE * 2}(+48 marks)x"
    assert sanitize(f"e{ACUTE * 3}") == f"e{ACUTE * 2}(+1 mark)"
    assert sanitize(f"e{ACUTE * 2}{KEYCAP}{JAMO}{VARIATION}") == f"e{ACUTE * 2}(+2 marks)"
    assert sanitize("e" + ACUTE * 2_002, limit=5_000).endswith("(+2,000 marks)")


@pytest.mark.parametrize("before", ["", "\n", "\t", "line\n"])
def test_marks_without_a_base_get_one(before: str) -> None:
    assert sanitize(f"{before}{ACUTE}x") == f"{before}◌{ACUTE}x"
    assert sanitize(f"{before}{ACUTE * 4}x") == f"{before}◌{ACUTE * 2}(+2 marks)x"


def test_a_mark_after_a_replaced_character_belongs_to_its_symbol() -> None:
    assert sanitize(f"\x1b{ACUTE}") == f"␛{ACUTE}"
    assert one_line(f"a\n{ACUTE}") == f"a␊◌{ACUTE}"


@pytest.mark.parametrize(
    "text",
    [
        "Việt Nam: e\u0302\u0301",
        "हिन्दी में लिखा हुआ",
        "ที่นี่ น้ำ",
        "اللّٰه مُحَمَّد",
        "שָׁלוֹם",
        "한국어 \u1112\u1161\u11ab",
        "か\u3099",
        "🇩🇪 ✔ 1⃣ 👍 ❤",
    ],
)
def test_ordinary_text_of_many_scripts_is_unchanged(text: str) -> None:
    assert sanitize(text) == text
    assert not is_unsafe(text)


def test_emoji_of_several_characters_stay_readable() -> None:
    assert sanitize("👩\u200d🚀") == "👩\\u{200d}🚀"  # terminals differ in the width of joined emoji
    assert sanitize("🏳️\u200d🌈") == "🏳\\u{200d}🌈"
    assert sanitize("✔️ 1️⃣ ⌚\ufe0e") == "✔ 1⃣ ⌚"
    assert sanitize(f"👍{SKIN_TONE} a{SKIN_TONE}") == "👍\\u{1f3fd} a\\u{1f3fd}"


@given(st.text(st.sampled_from([*"a漢👍❤⌚©🇩", VARIATION, "\ufe0e", SKIN_TONE, ACUTE, KEYCAP, "\u200d"])))
def test_the_width_of_a_text_is_the_sum_of_the_widths_of_its_characters(text: str) -> None:
    shown = sanitize(text, limit=10_000)
    assert cell_len(shown) == sum(map(get_character_cell_size, shown))


@pytest.mark.parametrize("code", [0xE000, 0xE0B0, 0xF8FF, 0xF0000, 0xFFFFD, 0x100000, 0x10FFFD])
def test_private_use_characters_are_shown_as_their_number(code: int) -> None:
    assert sanitize(f"a{chr(code)}b") == f"a\\u{{{code:x}}}b"
    assert is_unsafe(chr(code))
