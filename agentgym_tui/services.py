"""What several screens use: toasts, clipboard, files and pictures of the user, background work, redraw throttling."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from textual.app import App
from textual.dom import DOMNode

from agentgym_tui.safe_text import sanitize_line, sanitize_message, sanitize_text
from runner.errors import StoreError
from runner.types import Span
from runner.util.clock import is_ulid

# Toasts: short messages over the first rows for a few seconds; the newest ones are kept to be read in full.

TOAST_TIMEOUT_S, ERROR_TIMEOUT_S = 4.0, 6.0
MAX_MESSAGES: Final = 50
MAX_MESSAGE_CHARS: Final = 8_000


class Message(NamedTuple):
    at: datetime
    text: str
    failed: bool


class _Toasts:
    def __init__(self) -> None:
        self.kept: deque[Message] = deque(maxlen=MAX_MESSAGES)
        self.reply: Message | None = None
        self.reply_ends_at = 0.0


_toasts: WeakKeyDictionary[App[Any], _Toasts] = WeakKeyDictionary()


def toast(app: App[Any], text: str, *, failed: bool = False) -> None:
    """Show the reply to a command in place of the previous message, so that only one toast covers the screen."""
    toasts, message = _keep(app, text, failed)
    toasts.reply, toasts.reply_ends_at = message, time.monotonic() + _show(app, message.text, failed)


def announce(app: App[Any], text: str, *, failed: bool = False) -> None:
    """Show an event that the user did not cause, below a reply that is still shown, because it must not hide that."""
    toasts, (_, shown, _) = _keep(app, text, failed)
    if toasts.reply is not None and time.monotonic() < toasts.reply_ends_at:
        shown, failed = f"{toasts.reply.text}\n{shown}", failed or toasts.reply.failed
    _show(app, shown, failed)


def messages(app: App[Any]) -> list[Message]:
    """Return the messages of ``app``, the newest first."""
    return [*reversed(_toasts[app].kept)] if app in _toasts else []


def _keep(app: App[Any], text: str, failed: bool) -> tuple[_Toasts, Message]:
    message = Message(datetime.now(UTC), sanitize_message(text, MAX_MESSAGE_CHARS), failed)
    (toasts := _toasts.setdefault(app, _Toasts())).kept.append(message)
    return toasts, message


def _show(app: App[Any], text: str, failed: bool) -> float:
    timeout_s = ERROR_TIMEOUT_S if failed else TOAST_TIMEOUT_S
    app.clear_notifications()
    app.notify(text, severity="error" if failed else "information", timeout=timeout_s, markup=False)
    return timeout_s


# The terminal's clipboard, by the escape sequence OSC 52.

MAX_CLIPBOARD_BYTES: Final = 100 * 1024
"""Maximum size of a copied text, as UTF-8. Terminals discard a larger text entirely."""


class ClipboardText(NamedTuple):
    """A text to copy, which may be only the start of a longer one; sizes in bytes, as UTF-8."""

    text: str
    n_bytes: int
    n_total: int


def copy_to_clipboard(app: App[Any], text: str, what: str, *, raw: bool, whole: str = "") -> None:
    """Copy an untrusted text, and show in a toast how much of ``what``; ``whole`` hints where to find all of it."""
    shown = clipboard_text(text, raw=raw)
    if shown.text:
        app.copy_to_clipboard(shown.text)
        toast(app, copy_summary(shown, what, os.environ, raw=raw, whole=whole))
    else:
        toast(app, "nothing to copy", failed=True)


def clipboard_text(text: str, *, raw: bool) -> ClipboardText:
    """Return the start of a text, at most ``MAX_CLIPBOARD_BYTES`` bytes; lone surrogates are replaced."""
    n_total = len(text.encode("utf-8", "replace"))
    head = text[:MAX_CLIPBOARD_BYTES]
    shown = head if raw else sanitize_text(head)
    clipped = shown.encode("utf-8", "replace")[:MAX_CLIPBOARD_BYTES].decode("utf-8", "ignore")
    is_whole = len(head) == len(text) and len(clipped) == len(shown)
    size = len(clipped.encode())
    return ClipboardText(clipped, size, size if is_whole else max(n_total, size))


def copy_summary(
    copy: ClipboardText, what: str, environ: Mapping[str, str], *, raw: bool = False, whole: str = ""
) -> str:
    """Describe how much text was sent to the terminal, which does not confirm that it accepted the text."""
    is_whole, mode = copy.n_bytes == copy.n_total, ", unchanged" if raw else ""
    part = "" if is_whole else f"the first {_byte_count(copy.n_bytes)} of "
    more = f"; {whole}" if whole and not is_whole else ""
    hint = "; in tmux this needs: set -g set-clipboard on" if environ.get("TMUX") else ""
    return f"sent {part}the {what} ({_byte_count(copy.n_total)}{mode}) to the terminal's clipboard (OSC 52){more}{hint}"


def _byte_count(n: int) -> str:
    if n < 1024:
        return f"{n} bytes"
    return f"{n / 1024:.1f} KiB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MiB"


# Files in a folder of the user: episodes as JSON, and pictures of the screen as SVG.

MAX_COPIES: Final = 100
_MAX_NS: Final = 1 << 63

_FONT_FACE = re.compile(r"\s*@font-face\s*\{[^{}]*\}")
_COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)
_RICH_FONTS: Final = "font-family: Fira Code, monospace;"
_LOCAL_FONTS: Final = 'font-family: "Fira Code", "DejaVu Sans Mono", Menlo, Consolas, monospace;'


class ExportError(Exception):
    """A file could not be written; the message may contain untrusted text."""

    published_error_type = "ExportFailed"


def export_episode(episode_id: str, data: bytes, folder: Path, suffix: str = ".json") -> Path:
    """Write an episode file with mode 0600 and return its path, or raise ``ExportError``; never overwrite a file."""
    if not is_ulid(episode_id):
        raise ExportError(f"the episode id {episode_id[:40]!r} is not a valid file name")
    return write_new_file(folder, episode_id, suffix, data)


def write_trace(spans: Sequence[Span], episode_id: str, folder: Path) -> Path:
    """Write the spans of an episode as a new Perfetto trace; times of no clock are left out. Raises ``ExportError``."""
    from runner.tracing import ProtobufCollector

    collector = ProtobufCollector()
    if not (valid := [span for span in spans if 0 <= span.start_ns <= span.end_ns < _MAX_NS]):
        raise ExportError("no span of the episode has a valid time")
    for span in valid:
        collector.on_span(span)
    path = export_episode(episode_id, b"", folder, ".pftrace")
    try:
        collector.save(path)
    except (StoreError, ValueError, OverflowError) as exc:
        path.unlink(missing_ok=True)
        raise ExportError(f"the trace cannot be written: {exc}") from exc
    return path


def write_new_file(folder: Path, stem: str, suffix: str, data: bytes) -> Path:
    """Write a file with mode 0600, or raise ``ExportError``; if the file exists, a number is appended to ``stem``."""
    try:
        path, descriptor = _open_new_file(folder, stem, suffix)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
    except OSError as exc:
        raise ExportError(f"{folder} is not writable: {exc.strerror}; start the console in another folder") from exc
    return path


def _open_new_file(folder: Path, stem: str, suffix: str) -> tuple[Path, int]:
    for number in range(1, MAX_COPIES + 1):
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    raise ExportError(f"{folder} already has {MAX_COPIES} files of this name; move them away")


async def save_screenshot(app: App[Any]) -> None:
    """Write a screenshot as SVG into the current folder, and show the path or the error in a toast."""
    svg = screenshot_svg(app).encode("utf-8", "replace")
    name = f"agentgym-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    try:
        path = await asyncio.to_thread(write_new_file, Path.cwd(), name, ".svg", svg)
    except (ExportError, OSError) as exc:
        toast(app, f"screenshot failed: {exc}", failed=True)
    else:
        toast(app, f"screenshot written to {path}")


def screenshot_svg(app: App[Any], title: str | None = None) -> str:
    """Return a screenshot as SVG that refers to nothing on the network: it uses the fonts of the reader's machine."""
    return remove_network_references(app.export_screenshot(title=sanitize_line(title or app.title)))


def remove_network_references(svg: str) -> str:
    """Remove the web fonts and the comment that Rich writes at the start of each SVG; the text stays as it is."""
    head, end_of_style, rest = svg.partition("</style>")
    head = _COMMENT.sub("", _FONT_FACE.sub("", head)).replace(_RICH_FONTS, _LOCAL_FONTS)
    return head + end_of_style + rest


# Background work, and how often screens are drawn.


def start_worker(node: DOMNode, work: Callable[[], Awaitable[object]], *, group: str, exclusive: bool = False) -> None:
    """Run ``work`` in the background of ``node`` unless that is closing; so no coroutine is left unawaited."""
    node.run_worker(cast("Any", work), group=group, exclusive=exclusive)


MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 0.5
CPU_TIME_FACTOR: Final = 5
"""The interval is ``CPU_TIME_FACTOR`` times the CPU time used since the last repaint, within the two limits above."""


class RedrawThrottle:
    """Limits how often a screen is redrawn: the more CPU time the process uses, the longer the interval."""

    def __init__(self, now: Callable[[], float], cpu_time: Callable[[], float] = time.process_time) -> None:
        self._now, self._cpu_time = now, cpu_time
        self._drawn_at, self._cpu_time_s = now() - MAX_INTERVAL_S, cpu_time()  # the first repaint need not wait

    def mark_redrawn(self) -> None:
        self._drawn_at, self._cpu_time_s = self._now(), self._cpu_time()

    @property
    def wait_s(self) -> float:
        interval = min(max(MIN_INTERVAL_S, CPU_TIME_FACTOR * (self._cpu_time() - self._cpu_time_s)), MAX_INTERVAL_S)
        return max(self._drawn_at + interval - self._now(), 0.0)
