"""Functions that make text safe to display: they show control characters, limit the length, and mask secrets.

Use ``sanitize`` on external text before it reaches a terminal or a log, and ``mask`` on messages of the runner that may
quote secrets; where a text needs both, ``mask`` first, as it does not recognize a secret that ``sanitize`` has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import zip_longest
from typing import Final

# The characters that a terminal draws onto the character before them, as ranges of a regular expression: all combining
# marks of Unicode 17.0.0 (categories Mn, Mc and Me) and the vowels and final consonants of conjoining Hangul, without
# those that are replaced below. They are a table, because ``unicodedata`` differs between versions of Python: a mark
# that it does not know yet would pass.
COMBINING_BMP: Final = (
    "\u0300-\u034e\u0350-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a"
    "\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0"
    "\u07eb-\u07f3\u07fd\u0816-\u0819\u081b-\u0823\u0825-\u0827\u0829-\u082d\u0859-\u085b\u0897-\u089f\u08ca-\u08e1"
    "\u08e3-\u0903\u093a-\u093c\u093e-\u094f\u0951-\u0957\u0962\u0963\u0981-\u0983\u09bc\u09be-\u09c4\u09c7\u09c8"
    "\u09cb-\u09cd\u09d7\u09e2\u09e3\u09fe\u0a01-\u0a03\u0a3c\u0a3e-\u0a42\u0a47\u0a48\u0a4b-\u0a4d\u0a51\u0a70\u0a71"
    "\u0a75\u0a81-\u0a83\u0abc\u0abe-\u0ac5\u0ac7-\u0ac9\u0acb-\u0acd\u0ae2\u0ae3\u0afa-\u0aff\u0b01-\u0b03\u0b3c"
    "\u0b3e-\u0b44\u0b47\u0b48\u0b4b-\u0b4d\u0b55-\u0b57\u0b62\u0b63\u0b82\u0bbe-\u0bc2\u0bc6-\u0bc8\u0bca-\u0bcd"
    "\u0bd7\u0c00-\u0c04\u0c3c\u0c3e-\u0c44\u0c46-\u0c48\u0c4a-\u0c4d\u0c55\u0c56\u0c62\u0c63\u0c81-\u0c83\u0cbc"
    "\u0cbe-\u0cc4\u0cc6-\u0cc8\u0cca-\u0ccd\u0cd5\u0cd6\u0ce2\u0ce3\u0cf3\u0d00-\u0d03\u0d3b\u0d3c\u0d3e-\u0d44"
    "\u0d46-\u0d48\u0d4a-\u0d4d\u0d57\u0d62\u0d63\u0d81-\u0d83\u0dca\u0dcf-\u0dd4\u0dd6\u0dd8-\u0ddf\u0df2\u0df3"
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f18\u0f19\u0f35\u0f37\u0f39\u0f3e\u0f3f"
    "\u0f71-\u0f84\u0f86\u0f87\u0f8d-\u0f97\u0f99-\u0fbc\u0fc6\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064"
    "\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u1161-\u11ff\u135d-\u135f\u1712-\u1715\u1732-\u1734"
    "\u1752\u1753\u1772\u1773\u17b6-\u17d3\u17dd\u1885\u1886\u18a9\u1920-\u192b\u1930-\u193b\u1a17-\u1a1b"
    "\u1a55-\u1a5e\u1a60-\u1a7c\u1a7f\u1ab0-\u1add\u1ae0-\u1aeb\u1b00-\u1b04\u1b34-\u1b44\u1b6b-\u1b73\u1b80-\u1b82"
    "\u1ba1-\u1bad\u1be6-\u1bf3\u1c24-\u1c37\u1cd0-\u1cd2\u1cd4-\u1ce8\u1ced\u1cf4\u1cf7-\u1cf9\u1dc0-\u1dff"
    "\u20d0-\u20f0\u2cef-\u2cf1\u2d7f\u2de0-\u2dff\u302a-\u302f\u3099\u309a\ua66f-\ua672\ua674-\ua67d\ua69e\ua69f"
    "\ua6f0\ua6f1\ua802\ua806\ua80b\ua823-\ua827\ua82c\ua880\ua881\ua8b4-\ua8c5\ua8e0-\ua8f1\ua8ff\ua926-\ua92d"
    "\ua947-\ua953\ua980-\ua983\ua9b3-\ua9c0\ua9e5\uaa29-\uaa36\uaa43\uaa4c\uaa4d\uaa7b-\uaa7d\uaab0\uaab2-\uaab4"
    "\uaab7\uaab8\uaabe\uaabf\uaac1\uaaeb-\uaaef\uaaf5\uaaf6\uabe3-\uabea\uabec\uabed\ud7b0-\ud7ff\ufb1e\ufe00-\ufe0f"
    "\ufe20-\ufe2f"
)
"""Ranges up to U+FFFF; a set of only these is a fast bitmap."""
COMBINING_ABOVE_BMP: Final = (
    "\U000101fd\U000102e0\U00010376-\U0001037a\U00010a01-\U00010a03\U00010a05\U00010a06\U00010a0c-\U00010a0f"
    "\U00010a38-\U00010a3a\U00010a3f\U00010ae5\U00010ae6\U00010d24-\U00010d27\U00010d69-\U00010d6d\U00010eab"
    "\U00010eac\U00010efa-\U00010eff\U00010f46-\U00010f50\U00010f82-\U00010f85\U00011000-\U00011002"
    "\U00011038-\U00011046\U00011070\U00011073\U00011074\U0001107f-\U00011082\U000110b0-\U000110ba\U000110c2"
    "\U00011100-\U00011102\U00011127-\U00011134\U00011145\U00011146\U00011173\U00011180-\U00011182"
    "\U000111b3-\U000111c0\U000111c9-\U000111cc\U000111ce\U000111cf\U0001122c-\U00011237\U0001123e\U00011241"
    "\U000112df-\U000112ea\U00011300-\U00011303\U0001133b\U0001133c\U0001133e-\U00011344\U00011347\U00011348"
    "\U0001134b-\U0001134d\U00011357\U00011362\U00011363\U00011366-\U0001136c\U00011370-\U00011374"
    "\U000113b8-\U000113c0\U000113c2\U000113c5\U000113c7-\U000113ca\U000113cc-\U000113d0\U000113d2\U000113e1"
    "\U000113e2\U00011435-\U00011446\U0001145e\U000114b0-\U000114c3\U000115af-\U000115b5\U000115b8-\U000115c0"
    "\U000115dc\U000115dd\U00011630-\U00011640\U000116ab-\U000116b7\U0001171d-\U0001172b\U0001182c-\U0001183a"
    "\U00011930-\U00011935\U00011937\U00011938\U0001193b-\U0001193e\U00011940\U00011942\U00011943"
    "\U000119d1-\U000119d7\U000119da-\U000119e0\U000119e4\U00011a01-\U00011a0a\U00011a33-\U00011a39"
    "\U00011a3b-\U00011a3e\U00011a47\U00011a51-\U00011a5b\U00011a8a-\U00011a99\U00011b60-\U00011b67"
    "\U00011c2f-\U00011c36\U00011c38-\U00011c3f\U00011c92-\U00011ca7\U00011ca9-\U00011cb6\U00011d31-\U00011d36"
    "\U00011d3a\U00011d3c\U00011d3d\U00011d3f-\U00011d45\U00011d47\U00011d8a-\U00011d8e\U00011d90\U00011d91"
    "\U00011d93-\U00011d97\U00011ef3-\U00011ef6\U00011f00\U00011f01\U00011f03\U00011f34-\U00011f3a"
    "\U00011f3e-\U00011f42\U00011f5a\U00013440\U00013447-\U00013455\U0001611e-\U0001612f\U00016af0-\U00016af4"
    "\U00016b30-\U00016b36\U00016f4f\U00016f51-\U00016f87\U00016f8f-\U00016f92\U00016fe4\U00016ff0\U00016ff1"
    "\U0001bc9d\U0001bc9e\U0001cf00-\U0001cf2d\U0001cf30-\U0001cf46\U0001d165-\U0001d169\U0001d16d-\U0001d172"
    "\U0001d17b-\U0001d182\U0001d185-\U0001d18b\U0001d1aa-\U0001d1ad\U0001d242-\U0001d244\U0001da00-\U0001da36"
    "\U0001da3b-\U0001da6c\U0001da75\U0001da84\U0001da9b-\U0001da9f\U0001daa1-\U0001daaf\U0001e000-\U0001e006"
    "\U0001e008-\U0001e018\U0001e01b-\U0001e021\U0001e023\U0001e024\U0001e026-\U0001e02a\U0001e08f"
    "\U0001e130-\U0001e136\U0001e2ae\U0001e2ec-\U0001e2ef\U0001e4ec-\U0001e4ef\U0001e5ee\U0001e5ef\U0001e6e3"
    "\U0001e6e6\U0001e6ee\U0001e6ef\U0001e6f5\U0001e8d0-\U0001e8d6\U0001e944-\U0001e94a"
)

EMOJI_MODIFIERS: Final = "\U0001f3fb-\U0001f3ff"
"""The skin tones; some terminals draw one onto the emoji before it, others give it two columns of its own."""
EMOJI_SELECTORS: Final = "\ufe0e\ufe0f"
"""Variation selectors of emoji; some terminals draw the character before them in two columns, others in one."""

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
_MAY_BE_UNSAFE = re.compile(_SUSPECT).search
"""Finds a character that is perhaps replaced; by far the faster of the two patterns."""
_SELECTORS = re.compile(f"[{EMOJI_SELECTORS}]")
_CONTEXT_CHARS, _EXCERPT_CHARS = 60, 200
"""Maximum characters of an excerpt before the first difference, and of all of it."""
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
    if _MAY_BE_UNSAFE(head):
        head = _replaced().sub(_visible, _SELECTORS.sub("", head))
    return _truncate(head, len(text) - min(len(text), limit), limit)


@cache
def _replaced() -> re.Pattern[str]:
    # compiled when the first suspect character comes: it takes 5 ms, for which no command should wait at its start
    return re.compile(
        f"(?={_SUSPECT})(?:[{_UNSAFE_BMP}{_UNSAFE_ABOVE_BMP}{EMOJI_MODIFIERS}]"
        f"|(?P<baseless>(?<![^\t\n]){_MARK}+)|(?P<stack>(?={_SUSPECT}{{{MAX_MARKS + 1}}}){_MARK}{_STACK_SIZE}))"
    )


def is_unsafe(text: str) -> bool:
    return _MAY_BE_UNSAFE(text) is not None and _replaced().search(text) is not None


def unsafe_offsets(text: str) -> Iterator[int]:
    """In ascending order."""
    if _MAY_BE_UNSAFE(text):
        yield from (match.start() for match in _replaced().finditer(text))


def one_line(text: str, limit: int = 200) -> str:
    """Make external text safe for a single line: like ``sanitize``, but newlines and tabs become symbols."""
    return sanitize(text, limit=limit).replace("\n", "␊").replace("\t", "␉")


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
    marked = f"{'…' if start else ''}{cut}{'…' if len(line) > start + _EXCERPT_CHARS else ''}"
    return repr(one_line(marked, 2 * _EXCERPT_CHARS))


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

    ``secrets`` are further values to mask, by the same rules as values of secret variables.
    """
    return SecretMasker(_secret_forms(os.environ if environ is None else environ, secrets))


class SecretMasker:
    def __init__(self, forms: Sequence[str]) -> None:
        self._forms = forms  # a longer text precedes the ones it contains

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
