from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.util.display_text import (
    MASK,
    is_secret_name,
    is_unsafe,
    mask,
    one_line,
    public_variables,
    sanitize,
    secret_variables,
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


def test_every_forbidden_code_point_of_unicode_becomes_visible() -> None:
    all_characters = "".join(map(chr, range(0x110000)))
    assert not list(forbidden(sanitize(all_characters, limit=20 * len(all_characters))))


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


def test_newline_and_tab_are_visible_in_one_line() -> None:
    assert one_line("a\n\tb") == "a␊␉b"


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
