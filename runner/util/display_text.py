"""Functions that make text safe to display: they show control characters, limit the length, and mask secrets.

Use ``sanitize`` on external text before it reaches a terminal or a log, and ``mask`` on messages of the runner that may
quote secrets. For a text that needs both functions, call ``mask`` first: it does not recognize a secret that
``sanitize`` has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import zip_longest
from typing import Final

from runner.util.combining_marks import COMBINING_ABOVE_BMP, COMBINING_BMP, EMOJI_MODIFIERS, EMOJI_SELECTORS

MASK = "***"
MIN_SECRET_LENGTH = 4
"""Minimum number of characters of a masked value; masking a flag such as ``1`` or ``yes`` would hide unrelated text."""
MIN_SECRET_DIGITS = 8
"""Minimum number of digits of a masked number; shorter numbers are sizes and limits, such as ``MAX_TOKENS``."""

MAX_MARKS: Final = 2
"""Largest number of combining marks shown on one character; a stack of marks covers the lines above and below it."""

_NOT_SECRET = frozenset({"true", "false", "none", "null"})
"""Values that are never masked: settings such as ``TOKENIZERS_PARALLELISM`` only have a name like a secret."""

_LONE = re.compile("[\ud800-\udfff]")
"""Lone surrogates: the bytes of a variable that are not UTF-8."""
_SECRET_NAME = re.compile(r"(?i)key|token|secret|passw")
# The scheme is left out and the second alternative is bounded, so that hostile text cannot cause quadratic time. The
# second alternative is a password with / ? or #: invalid in a URL, but common. Digits after the colon are a port.
_USERINFO = re.compile(r"://(?:[^\s/?#]*|[^\s/?#:@]*:(?!\d{1,5}[/?#])[^\s@]{0,256})@")

# C0 controls except newline and tab, DEL, C1, format characters, line and paragraph separators, surrogates, private-use
# characters, and the letters and marks that Unicode calls default-ignorable. The variation selectors FE00-FE0F count
# as combining marks.
_UNSAFE_BMP: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufeff\uffa0\ufff0-\ufffb"
)
_UNSAFE_ABOVE_BMP: Final = (
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\U000f0000-\U0010ffff"
)
_MARK: Final = f"[{COMBINING_BMP}{COMBINING_ABOVE_BMP}]"
# A bitmap and one range: many ranges above U+FFFF would make each character of ordinary text 20 times slower.
_SUSPECT: Final = f"[{_UNSAFE_BMP}{COMBINING_BMP}\U00010000-\U0010ffff]"
_STACK_SIZE: Final = f"{{{MAX_MARKS + 1},}}"
_REPLACED: Final = (
    f"(?={_SUSPECT})(?:[{_UNSAFE_BMP}{_UNSAFE_ABOVE_BMP}{EMOJI_MODIFIERS}]"
    f"|(?P<baseless>(?<![^\t\n]){_MARK}+)|(?P<stack>(?={_SUSPECT}{{{MAX_MARKS + 1}}}){_MARK}{_STACK_SIZE}))"
)
_BEYOND_LATIN_1 = re.compile("[^\x00-\xff]")
_SELECTORS = re.compile(f"[{EMOJI_SELECTORS}]")
_NO_BASE: Final = "◌"
"""Base of marks at the start of a line; without it they would be drawn onto whatever is to the left."""


def sanitize(text: str, *, limit: int = 4096) -> str:
    r"""Make external text safe for a terminal or a log; newlines and tabs stay.

    C0 controls and DEL become control pictures (escape is ``␛``). Other unsafe code points become escapes such as
    ``\u{202e}``; private-use characters are unsafe, because each font draws them differently. After ``MAX_MARKS``
    combining marks on a character, the others become their number, such as ``(+48 marks)``. Marks at the start of a
    line get the base ``◌``. Skin tones become escapes and the variation selectors of emoji are left out, because
    terminals disagree on the width of the emoji before them.

    Args:
        limit: maximum length of the result in characters; a truncated result ends in ``… (+N)``, where N is the number
            of omitted characters.
    """
    head = text[:limit]
    if _may_be_unsafe(head):
        head = _compiled(_REPLACED).sub(_visible, _SELECTORS.sub("", head))
    return _truncate(head, len(text) - min(len(text), limit), limit)


def is_unsafe(text: str) -> bool:
    return _may_be_unsafe(text) and _compiled(_REPLACED).search(text) is not None


def unsafe_offsets(text: str) -> Iterator[int]:
    """In ascending order."""
    if _may_be_unsafe(text):
        yield from (match.start() for match in _compiled(_REPLACED).finditer(text))


def one_line(text: str, limit: int = 200) -> str:
    """Make external text safe for a single line: like ``sanitize``, but newlines and tabs become symbols."""
    return sanitize(text, limit=limit).replace("\n", "␊").replace("\t", "␉")


_CONTEXT_CHARS, _EXCERPT_CHARS = 60, 200
"""Maximum characters of an excerpt before the first difference, and of all of it."""


def first_difference(expected: str, actual: str) -> tuple[int, str, str]:
    """Return the number of the first line that differs, and quoted excerpts of both versions around the difference."""
    pairs = enumerate(zip_longest(expected.split("\n"), actual.split("\n")), start=1)
    number, (ours, theirs) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    letters = enumerate(zip_longest(ours or "", theirs or ""))
    start = max(0, next((index for index, pair in letters if pair[0] != pair[1]), 0) - _CONTEXT_CHARS)
    return number, _excerpt(ours, start), _excerpt(theirs, start)


def _excerpt(line: str | None, start: int) -> str:
    if line is None:
        return "no such line"
    cut = line[start : start + _EXCERPT_CHARS]
    return repr(f"{'…' if start else ''}{cut}{'…' if len(line) > start + _EXCERPT_CHARS else ''}")


def pluralize(count: int, noun: str) -> str:
    """The noun gets an ``s`` unless the number is 1."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def mask(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Replace secrets by ``***``: the userinfo of URLs, and the values of secret environment variables.

    A variable is secret if its name contains key, token, secret or passw in any case, and its stripped value has at
    least ``MIN_SECRET_LENGTH`` characters and is neither a word such as ``false`` nor a number of fewer than
    ``MIN_SECRET_DIGITS`` digits. A value is also masked where it is escaped as in Python or JSON.
    """
    return masker(environ)(text)


def masker(environ: Mapping[str, str] | None = None, secrets: Iterable[str] = ()) -> SecretMasker:
    """Return a function that masks like ``mask``, but collects the secrets only once; use it for many texts.

    Args:
        secrets: further values to mask, by the same rules as values of secret variables.
    """
    return SecretMasker(_secret_forms(os.environ if environ is None else environ, secrets))


class SecretMasker:
    def __init__(self, forms: Sequence[str]) -> None:
        """A longer text precedes the ones it contains."""
        self._forms = forms

    def __call__(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, MASK)
        return _USERINFO.sub(f"://{MASK}@", text)

    def may_change(self, document: str) -> bool:
        """Return whether a string of a JSON document, written in ASCII by ``json.dumps``, may have a secret."""
        if "://" in document and "@" in document:
            return True
        return any(form in document for form in self._json_forms)

    @cached_property
    def _json_forms(self) -> list[str]:
        import json

        return [json.dumps(form)[1:-1] for form in self._forms]


def secret_lines(values: Iterable[str]) -> tuple[str, ...]:
    """Return secret values and each of their lines, because output is often masked line by line."""
    return tuple(dict.fromkeys(secret for value in values for secret in (value, *value.splitlines())))


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def public_variables(environ: Mapping[str, str], key_names: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment variables without those that look like secrets or contain a URL with a password."""
    left_out = frozenset(key_names)
    return {
        name: value
        for name, value in environ.items()
        if not (name in left_out or is_secret_name(name) or _USERINFO.search(value))
    }


def secret_variables(environ: Mapping[str, str], key_names: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that ``public_variables`` leaves out; without those that are not valid UTF-8."""
    public = public_variables(environ, key_names)
    return {name: value for name, value in environ.items() if name not in public and not _LONE.search(name + value)}


def _secret_forms(environ: Mapping[str, str], secrets: Iterable[str]) -> list[str]:
    values = {value.strip() for value in (*secrets, *(environ[name] for name in environ if is_secret_name(name)))}
    forms = {form for value in values if _is_secret(value) for form in (value, *_escaped(value))}
    # Longest first: masking a secret inside another secret would leave the rest of the outer one readable.
    return sorted(forms, key=lambda form: (-len(form), form))


def _is_secret(value: str) -> bool:
    if value.isdecimal():
        return len(value) >= MIN_SECRET_DIGITS
    return len(value) >= MIN_SECRET_LENGTH and value.lower() not in _NOT_SECRET


def _escaped(value: str) -> Iterator[str]:
    import json

    yield repr(value)[1:-1]
    yield repr(value + "'\"")[1:-1].removesuffix("\\'\"")  # in a text with both kinds of quotes
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Only on use: both patterns together take 4 ms to compile, and few commands need the second one.
    return re.compile(pattern)


def _may_be_unsafe(text: str) -> bool:
    if text.isprintable() and (text.isascii() or _BEYOND_LATIN_1.search(text) is None):
        return False  # without the time that the large pattern takes to compile
    return _compiled(_SUSPECT).search(text) is not None


def _visible(match: re.Match[str]) -> str:
    if match.lastgroup:
        return _NO_BASE * (match.lastgroup == "baseless") + _first_marks(match[0])
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"\\u{{{code:x}}}"


def _first_marks(marks: str) -> str:
    n_more = len(marks) - MAX_MARKS
    return marks[:MAX_MARKS] + (f"(+{n_more:,} mark{'s' * (n_more > 1)})" if n_more > 0 else "")


def _truncate(sanitized: str, n_omitted: int, limit: int) -> str:
    total = len(sanitized) + n_omitted
    if total <= limit:
        return sanitized
    n_kept = max(limit - len(f"… (+{total})"), 0)
    return f"{sanitized[:n_kept]}… (+{total - n_kept})"[:limit]
