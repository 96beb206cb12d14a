"""Text from outside made safe to show: control characters visible, lengths bounded, secrets masked.

``sanitize`` stands between foreign text and a terminal or a log, ``mask`` between our own messages and the secrets
they may quote. Where both are needed ``mask`` comes first, as an escaped secret is no longer recognised.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping

MASK = "***"
MIN_SECRET_LENGTH = 4
"""Shorter values are not masked: a flag such as ``1`` or ``yes`` would blank out unrelated text."""
MIN_SECRET_NUMBER = 8
"""Digits; shorter numbers are sizes and limits, such as ``MAX_TOKENS``."""

_PLAIN_WORDS = frozenset({"true", "false", "none", "null"})
"""Values of settings such as ``TOKENIZERS_PARALLELISM``, whose names only look like secrets."""

_SECRET_NAME = re.compile(r"(?i)key|token|secret|passw")
# Without the scheme, and the second form bounded: else hostile text would take quadratic time. The second form is a
# password that holds / ? or #, which makes no valid URL but is written all the same; digits there are a port.
_USERINFO = re.compile(r"://(?:[^\s/?#]*|[^\s/?#:@]*:(?!\d{1,5}[/?#])[^\s@]{0,256})@")

# Controls but newline and tab, DEL, C1, format characters, line and paragraph separators, surrogates, and the letters
# and marks that Unicode calls default-ignorable. The variation selectors FE00-FE0F stay, emoji are written with them.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def sanitize(text: str, *, limit: int = 4096) -> str:
    r"""Make outside text safe for a terminal or a log; newlines and tabs stay.

    C0 controls and DEL become control pictures (escape is ``␛``), every other unsafe code point its number, such as
    ``\u{202e}``. The result has at most ``limit`` characters and ends in ``… (+N)`` when N more were left out.
    """
    head = text[:limit]
    if not (head.isascii() and head.isprintable()):
        head = _UNSAFE.sub(_visible, head)
    return _cut(head, len(text) - min(len(text), limit), limit)


def is_unsafe(text: str) -> bool:
    """Whether ``sanitize`` would change some character; stops at the first one."""
    return not (text.isascii() and text.isprintable()) and _UNSAFE.search(text) is not None


def one_line(text: str, limit: int = 200) -> str:
    """Make outside text safe for one line: as ``sanitize``, and newline and tab become visible too."""
    return sanitize(text, limit=limit).replace("\n", "␊").replace("\t", "␉")


def mask(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Replace secrets by ``***``: the userinfo of URLs, and the values of variables named like a secret.

    Values are found as they are, and as Python or JSON writes them with escapes.

    A variable counts when its name contains key, token, secret or passw in any case, and its value, stripped, has at
    least ``MIN_SECRET_LENGTH`` characters and is neither a plain word such as ``false`` nor a number below
    ``MIN_SECRET_NUMBER`` digits.

    Args:
        text: what is about to be shown or stored.
        environ: the variables, by default those of this process.
    """
    return masker(environ)(text)


def masker(environ: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """``mask`` for many texts: it looks for the secrets once."""
    secrets = _secrets(os.environ if environ is None else environ)

    def masked(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, MASK)
        return _USERINFO.sub(f"://{MASK}@", text)

    return masked


def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name is taken to hold a secret."""
    return _SECRET_NAME.search(name) is not None


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """Longest first, so that a secret within another one does not leave the other's rest behind."""
    named = {value.strip() for name, value in environ.items() if is_secret_name(name)}
    written = {form for value in named if _is_secret(value) for form in (value, *_escaped(value))}
    return sorted(written, key=lambda value: (-len(value), value))


def _is_secret(value: str) -> bool:
    if value.isdecimal():
        return len(value) >= MIN_SECRET_NUMBER
    return len(value) >= MIN_SECRET_LENGTH and value.lower() not in _PLAIN_WORDS


def _escaped(value: str) -> Iterator[str]:
    yield repr(value)[1:-1]
    yield repr(value + "'\"")[1:-1].removesuffix("\\'\"")  # as in a text that holds both kinds of quotes
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"\\u{{{code:x}}}"


def _cut(shown: str, unread: int, limit: int) -> str:
    """Cut ``shown`` to ``limit`` characters; ``unread`` more of the original were never looked at."""
    total = len(shown) + unread
    if total <= limit:
        return shown
    kept = max(limit - len(f"… (+{total})"), 0)
    return f"{shown[:kept]}… (+{total - kept})"[:limit]
