"""Keys of endpoints: read where they are needed, and kept out of everything that is shown or stored."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import TypeGuard
from urllib.parse import unquote, urlsplit

import msgspec

from runner.inference.chat_format import ModelReply
from runner.inference.endpoints import EndpointSpec, Kind
from runner.inference.errors import EndpointFailure, Mask
from runner.types import DeltaPart, StreamDelta
from runner.util.text import MASK, masker

MIN_KEY_LENGTH = 16
"""Shorter ones are what one writes where any key will do, such as ``EMPTY``, and models say such words."""

_SENDABLE = re.compile(r"[\x21-\x7e]{1,4096}")


def read_api_key(spec: EndpointSpec, kind: Kind, environ: Mapping[str, str]) -> str | None:
    """The key that is sent along, None where there is none.

    Raises:
        EndpointFailure: when the variable that should hold it is not set, or holds what no header can.
    """
    name = spec.api_key_env or (spec.optional_key_env if kind == "tensorzero" else None)
    value = environ.get(name, "").strip() if name else ""
    if value and not _SENDABLE.fullmatch(value):
        raise EndpointFailure("configuration", f"{name} holds characters that a key cannot have")
    if spec.api_key_env and not value:
        raise EndpointFailure("configuration", f"the variable {name}, which should hold its key, is not set")
    if spec.api_key_env and "@" in urlsplit(spec.url).netloc:
        raise EndpointFailure("configuration", f"its URL has a login and {name} a key, of which only one can be sent")
    return value or None


def build_mask(specs: tuple[EndpointSpec, ...], environ: Mapping[str, str]) -> Mask:
    """Masks what ``runner.util.text.mask`` masks, and these endpoints' keys whatever their variables are called."""
    named = {f"key of {spec.name}": environ.get(spec.api_key_env, "") for spec in specs if spec.api_key_env}
    logins = {f"password of {spec.name}": _sent_login(spec.url) for spec in specs}
    return masker({**environ, **named, **logins})


def is_secret(key: str | None) -> TypeGuard[str]:
    """Whether a key is long enough to be one."""
    return key is not None and len(key) >= MIN_KEY_LENGTH


def redact_key(reply: ModelReply, key: str | None) -> ModelReply:
    """The reply, in which a server may have quoted the key that it was sent, without it."""
    if not is_secret(key):
        return reply
    encoded = without = msgspec.json.encode(reply)
    for form in _encoded_forms(key):
        without = without.replace(form, MASK.encode())
    return reply if without == encoded else msgspec.json.decode(without, type=ModelReply)


def _encoded_forms(key: str) -> list[bytes]:
    """The key as it stands in a reply's JSON."""
    return sorted((msgspec.json.encode(form)[1:-1] for form in _forms(key)), key=len, reverse=True)


def _forms(key: str) -> list[str]:
    """The key in a text, and in arguments, which are JSON in a text; longest first."""
    quoted = msgspec.json.encode(key).decode()[1:-1]
    return sorted({key, quoted, quoted.replace("/", "\\/")}, key=len, reverse=True)


def _sent_login(url: str) -> str:
    """A URL's userinfo as a header holds it, where a server may quote it from."""
    userinfo, at, _ = urlsplit(url).netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    return base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if at else ""


class KeyFilter:
    """Keeps a key out of a text that comes in pieces, wherever it is cut."""

    def __init__(self, key: str) -> None:
        """Start with nothing held back."""
        self._forms = _forms(key)
        self._withheld = ""

    def add(self, piece: str) -> str:
        """What of the text may be told now; its end is held back while it may be the beginning of the key."""
        text = _redact(self._withheld + piece, self._forms)
        longest = min(len(self._forms[0]) - 1, len(text))
        ends = (size for size in range(longest, 0, -1) if any(form.startswith(text[-size:]) for form in self._forms))
        n_withheld = next(ends, 0)
        self._withheld = text[len(text) - n_withheld :]
        return text[: len(text) - n_withheld]

    def flush(self) -> str:
        """What is held back: nothing follows any more."""
        withheld, self._withheld = self._withheld, ""
        return withheld


class DeltaFilter:
    """Keeps a key out of an answer that comes in pieces, each part of which is a text of its own.

    Args:
        key: what must not get through.
        tell: takes what may.
    """

    def __init__(self, key: str, emit: Callable[[StreamDelta], None]) -> None:
        """Start with nothing held back."""
        self._key = key
        self._forms = _forms(key)
        self._emit = emit
        self._parts: dict[tuple[DeltaPart, int], tuple[KeyFilter, StreamDelta]] = {}

    def add(self, piece: StreamDelta) -> None:
        """Take the next piece."""
        part = piece.part, piece.call
        filter = self._parts[part][0] if part in self._parts else KeyFilter(self._key)
        tool = _redact(piece.tool, self._forms)
        filtered = msgspec.structs.replace(piece, text=filter.add(piece.text), tool=tool)
        self._parts[part] = filter, msgspec.structs.replace(filtered, n=0)
        if filtered.text or not piece.text:
            self._emit(filtered)

    def flush(self) -> None:
        """Tell what is held back."""
        for filter, last in self._parts.values():
            if text := filter.flush():
                self._emit(msgspec.structs.replace(last, text=text))


def _redact(text: str, forms: list[str]) -> str:
    for form in forms:
        text = text.replace(form, MASK)
    return text
