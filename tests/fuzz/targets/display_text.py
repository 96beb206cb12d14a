"""Text from outside on its way to a terminal: sanitized, masked, cut, and as a hex dump."""

from __future__ import annotations

import re
import unicodedata

from agentgym_tui import safe_text
from runner.util.display_text import EMOJI_SELECTORS, is_unsafe, mask, masker, one_line, sanitize, unsafe_offsets
from tests.fuzz.oracles import SECRET, check_displayable, check_masked, secret_environment

TOKENS = (b"\x1b[2J", b"\xc2\x9b", b"\xe2\x80\xae", b"\xcc\x81", b"://", b"@", b"\xef\xb8\x8f", b"\xf0\x9f\x8f\xbd")
PASSWORD = "passw0rd-in-URL"
LIMITS = (0, 1, 5, 16, 200, 2_000)


def check(data: bytes) -> None:
    limit = LIMITS[data[0] % len(LIMITS)] if data else 0
    text = data[1:].decode("utf-8", "surrogatepass" if data[:1] > b"\x7f" else "replace") if _decodes(data) else ""
    _check_sanitized(text, limit)
    _check_lines(text, limit)
    _check_masked(text)


def _decodes(data: bytes) -> bool:
    try:
        data[1:].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data[:1] <= b"\x7f"
    return True


def _check_sanitized(text: str, limit: int) -> None:
    shown = sanitize(text, limit=limit)
    check_displayable(shown, lines=True)
    assert len(shown) <= limit
    assert not is_unsafe(shown)
    whole = sanitize(text, limit=16 * len(text) + 100)
    assert sanitize(whole, limit=len(whole)) == whole
    assert is_unsafe(text) or whole == re.sub(f"[{EMOJI_SELECTORS}]", "", text)
    offsets = list(unsafe_offsets(text))
    assert offsets == sorted(set(offsets)) and bool(offsets) == is_unsafe(text)
    line = one_line(text, limit)
    check_displayable(line)
    assert "\n" not in line and "\t" not in line
    assert not any(part[:1] and unicodedata.category(part[0]).startswith("M") for part in whole.split("\n"))


def _check_lines(text: str, limit: int) -> None:
    lines, changed = safe_text.sanitize_lines(text, limit)
    for line in lines:
        check_displayable(line)
    assert len(lines) <= safe_text.MAX_TEXT_LINES + 1
    assert changed or not safe_text.has_unsafe_chars(text) or any(len(part) > limit for part in text.split("\n"))
    assert text.endswith(safe_text.unsafe_excerpt(text))
    data = text.encode("utf-8", "surrogatepass")[:4_096]
    for row in (safe_text.hex_line(data, index) for index in range(safe_text.n_hex_lines(data))):
        assert row.isascii() and row.isprintable() and len(row) <= 72


def _check_masked(text: str) -> None:
    with secret_environment():
        mask_text = masker()
        at = len(text) // 2
        for quoted in (f"{text[:at]}{SECRET}{text[at:]}", f"{text[:at]}://user:{PASSWORD}@host{text[at:]}"):
            masked = mask_text(quoted)
            check_masked(masked, *([PASSWORD] if PASSWORD not in text else []))
            assert mask(quoted) == masked
        safe_text._masker.cache_clear()
        check_masked(safe_text.sanitize_message(f"{SECRET} {text}"))
    safe_text._masker.cache_clear()
