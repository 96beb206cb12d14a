"""Text from outside made safe: control characters, marks, secrets."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, get_character_cell_size

from runner.util.display_text import (
    COMBINING_ABOVE_BMP,
    COMBINING_BMP,
    EMOJI_MODIFIERS,
    EMOJI_SELECTORS,
    MASK,
    MAX_MARKS,
    is_secret_name,
    is_unsafe,
    mask,
    one_line,
    public_variables,
    sanitize,
    secret_variables,
    unsafe_offsets,
)

FORBIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
UNSAFE = (
    "\x1b\x00\x7f\x85\x9b\u061c\u200b\u200d\u200e\u200f\u2028\u2029\u202a\u202e\u2060\u2066\u2069\ufeff\ud800\udfff"
)
HOSTILE_TEXT = st.text(st.one_of(st.characters(), st.sampled_from(UNSAFE + "\u3164\U000e0041 a\n\t")))
SECRETS = st.lists(st.text("abcdefgh+/= é\n", min_size=4).map(str.strip).filter(lambda value: len(value) >= 4))


def forbidden(text: str, allowed: str = "\n\t") -> Iterator[str]:
    return (char for char in text if unicodedata.category(char) in FORBIDDEN and char not in allowed)


@given(HOSTILE_TEXT)
def test_sanitized_text_has_no_forbidden_code_point_and_can_be_encoded(text: str) -> None:
    shown = sanitize(text)
    assert not list(forbidden(shown))
    assert shown.encode("utf-8").decode("utf-8") == shown
    assert is_unsafe(text) == (shown != text)


@given(HOSTILE_TEXT)
def test_one_line_returns_one_line(text: str) -> None:
    line = one_line(text)
    assert not list(forbidden(line, allowed=""))
    assert len(line) <= 200


USED = [*range(0x20000), *range(0xE0000, 0xE1000), *range(0xFFF00, 0x100100), *range(0x10FF00, 0x110000)]


@pytest.mark.parametrize("codes", [USED, pytest.param(range(0x110000), marks=pytest.mark.long)], ids=["used", "all"])
def test_every_forbidden_code_point_of_unicode_becomes_visible(codes: Sequence[int]) -> None:
    characters = "".join(map(chr, codes))
    assert not list(forbidden(sanitize(characters, limit=20 * len(characters))))


@pytest.mark.parametrize(
    "invisible", ["\u034f", "\u115f", "\u17b4", "\u180b", "\u2065", "\u3164", "\uffa0", "\U000e0100"]
)
def test_default_ignorable_letters_and_marks_become_visible_too(invisible: str) -> None:
    assert sanitize(f"a{invisible}b") == f"a\\u{{{ord(invisible):x}}}b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, 漢字, é and ✔\ufe0f\nsecond\tline", "plain, 漢字, é and ✔\nsecond\tline"),
        ("\x1b[2J\x00\r\x7f", "␛[2J␀␍␡"),
        ("\x9b31m", "\\u{9b}31m"),
        ("abc\u202edef\u200b", "abc\\u{202e}def\\u{200b}"),
        ("\ud83d", "\\u{d83d}"),
        ("", ""),
    ],
)
def test_unsafe_characters_are_replaced_by_visible_ones(text: str, shown: str) -> None:
    assert sanitize(text) == shown


def test_a_truncated_text_ends_with_the_number_of_omitted_characters() -> None:
    assert sanitize("x" * 30, limit=30) == "x" * 30
    shown = sanitize("x" * 1000, limit=30)
    prefix, mark = shown[:-8], shown[-8:]
    assert mark == f"… (+{1000 - len(prefix)})"
    assert set(prefix) == {"x"}
    assert len(shown) <= 30


def test_the_time_to_sanitize_depends_only_on_the_limit() -> None:
    huge = "\x1b" * 10_000_000
    start = thread_time()
    sanitize(huge)
    assert thread_time() - start < 0.5


@given(SECRETS, st.text("xyz. "), st.sampled_from(["API_KEY", "MyToken", "client_secret", "DB_PASSWORD", "passwd"]))
def test_masked_text_contains_no_secret(secrets: list[str], separator: str, name: str) -> None:
    environ = {f"{name}_{index}": secret for index, secret in enumerate(secrets)}
    masked = mask(separator.join(["", *secrets, *secrets, ""]), environ)
    assert not [secret for secret in secrets if secret in masked]


@given(st.text("ab%+=.é", min_size=1), st.text("ab:%/?#+=.é"))
def test_masked_urls_contain_no_user_information(user: str, password: str) -> None:
    shown = mask(f"see nats://{user}:{password}@host:4222/path", {})
    assert shown == f"see nats://{MASK}@host:4222/path"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("http://user:pa55@host:80/x", f"http://{MASK}@host:80/x"),
        ("nats://s3cr3t@host", f"nats://{MASK}@host"),
        ("http://user:p@ss@host", f"http://{MASK}@host"),
        ("http://user:ab/cd@host", f"http://{MASK}@host"),
        ("http://a:b@c http://d:e@f", f"http://{MASK}@c http://{MASK}@f"),
        ("http://localhost:3030/v1/@scope", "http://localhost:3030/v1/@scope"),
        ("http://host/path?mail=a@b", "http://host/path?mail=a@b"),
        ("mail me@home", "mail me@home"),
    ],
)
def test_only_the_userinfo_of_urls_is_masked(text: str, masked: str) -> None:
    assert mask(text, {}) == masked


def test_only_variables_named_like_secrets_are_masked() -> None:
    environ = {"OPENAI_API_KEY": "sk-123456\n", "HOME": "/home/me", "TOKENIZERS_PARALLELISM": "false", "KEY_ID": "abc"}
    assert mask("sk-123456 in /home/me is false, abc", environ) == f"{MASK} in /home/me is false, abc"
    assert is_secret_name("db_PassWord")
    assert not is_secret_name("PATH")


def test_short_numbers_are_not_secrets() -> None:
    environ = {"MAX_TOKENS": "4096", "KEY_SIZE": "1234567", "PIN_TOKEN": "12345678"}
    assert mask("4096 1234567 12345678", environ) == f"4096 1234567 {MASK}"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "very-hidden-value")
    assert mask("a very-hidden-value here") == f"a {MASK} here"


@pytest.mark.timeout(30)  # far above linear time, far below quadratic time
def test_masking_hostile_text_takes_linear_time() -> None:
    for hostile in ("://a:b" * 50_000, "a" * 300_000 + "://", "://" + ":" * 300_000, "://x:" + "y/" * 150_000):
        mask(hostile, {})


@pytest.mark.parametrize("secret", ["back\\slash-7", "quo\"te'd-7", "tab\tbed-7", "schlüssel-7", "nul\x00-77"])
@pytest.mark.parametrize("write", [str, repr, lambda text: repr([text, "'\""]), json.dumps])
def test_a_secret_is_masked_in_every_escaped_form(secret: str, write: Callable[[str], str]) -> None:
    shown = mask(f"denied: {write(secret)}!", {"API_KEY": secret})
    assert secret[:4] not in shown
    assert MASK in shown


def test_a_secret_that_contains_another_is_masked_whole() -> None:
    assert mask("first-part-and-rest", {"A_KEY": "first-part", "B_KEY": "first-part-and-rest"}) == MASK


def test_variables_passed_on_have_no_secret() -> None:
    environ = {
        "PATH": "/bin",
        "HF_TOKEN": "hf_0123",
        "NATS_URL": "nats://user:word@host:4222",
        "MINE": "sk-mine",
        "PLAIN_URL": "http://host:80/a",
    }
    public = {"PATH": "/bin", "PLAIN_URL": "http://host:80/a"}
    assert public_variables(environ, ["MINE"]) == public
    assert secret_variables(environ, ["MINE"]) == {name: environ[name] for name in environ.keys() - public.keys()}


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


@given(ANY_TEXT | HOSTILE_TEXT, st.integers(0, 60))
def test_sanitizing_is_idempotent(text: str, limit: int) -> None:
    cut = sanitize(text, limit=limit)
    for shown in (sanitize(text), cut, one_line(text)):
        assert sanitize(shown) == shown
        assert not is_unsafe(shown)
    assert len(cut) <= limit and sanitize(cut, limit=limit) == cut


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
    assert one_line("a\n\tb") == "a␊␉b"


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
