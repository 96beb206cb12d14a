"""Search in payloads: words in their bytes, and the JSON fields that queries name; nothing else is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from runner.query.fields import GetValue, Kind, Value

Row = TypeVar("Row")

MAX_ITEMS: Final = 1_000
"""Maximum number of items of a live message whose fields are read."""

_MAX_CHARS: Final = 400

_COLUMNS: Final[tuple[tuple[str, Kind, str, str], ...]] = (
    ("env", "text", "environment", "env"),
    ("kind", "text", "kind of the item", "kind"),
    ("outcome", "text", "how the episode ended", "outcome"),
    ("agent", "text", "agent", "agent"),
    ("model", "text", "model", "model"),
    ("status", "text", "status of the batch, node or server", "status"),
    ("episode", "id", "beginning of the id of the episode", "episode_id"),
    ("batch", "id", "beginning of the id of the batch", "batch_id"),
    ("battery", "id", "beginning of the id of the battery", "battery_id"),
    ("task", "number", "index of the task", "task_index"),
    ("reward", "number", "reward of the episode", "reward"),
    ("rounds", "number", "number of steps", "rounds"),
)
"""Fields of messages and log lines: name, kind, description, and the name in JSON."""


class Words:
    """Words that a text must contain, in any order.

    ASCII letters match in upper and lower case, other letters as entered or in lower case.

    Args:
        words: the words, which may have blanks in them.

    Attributes:
        needles: for each word its forms as bytes, one of which must occur: as entered and in lower case, ASCII letters
            always in lower case. Most words have only one form.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.needles = tuple(
            tuple(dict.fromkeys(form.encode("utf-8", "replace").lower() for form in (word, word.lower())))
            for word in words
        )

    def found_in(self, parts: Iterable[bytes]) -> bool:
        """Return whether each word is in one of the parts; a part that cannot change the answer is not requested."""
        missing = self.needles
        if missing:
            for part in parts:
                lower = part.lower()
                missing = tuple(forms for forms in missing if not any(form in lower for form in forms))
                if not missing:
                    break
        return not missing


def json_columns(payload_of: Callable[[Row], bytes]) -> list[tuple[str, Kind, str, GetValue[Row]]]:
    """Return the columns of the fields in the payloads of rows, for ``FieldSet``."""
    fields = PayloadFields()

    def getter(name: str) -> GetValue[Row]:
        return lambda row: fields.values(payload_of(row), name)

    return [(name, kind, about, getter(json_name)) for name, kind, about, json_name in _COLUMNS]


class PayloadFields:
    """The fields of the last decoded payload; the next test of the same payload does not decode it again."""

    def __init__(self) -> None:
        self._payload = b""
        self._objects: list[Mapping[str, msgspec.Raw]] = []

    def values(self, payload: bytes, name: str) -> Value | tuple[Value, ...]:
        """Return the values of a field in an object and in the items of a live message; None without any."""
        if payload is not self._payload:
            self._payload, self._objects = payload, list(_objects(payload))
        found = dict.fromkeys(
            value for each in self._objects if (raw := each.get(name)) is not None for value in _scalars(raw)
        )
        return tuple(found) if len(found) > 1 else next(iter(found), None)


def _objects(payload: bytes) -> Iterator[Mapping[str, msgspec.Raw]]:
    if payload[:1] != b"{":
        return
    try:
        whole = _OBJECT.decode(payload)
        yield whole
        if (items := whole.get("items")) is not None:
            yield from _ITEMS.decode(items)[:MAX_ITEMS]
    except (ValueError, RecursionError):
        return


def _scalars(raw: msgspec.Raw) -> Iterator[Value]:
    if bytes(raw)[:1] not in (b"{", b"["):
        try:
            value = msgspec.json.decode(raw)
        except (ValueError, RecursionError):  # JSON allows numbers of any size
            return
        if isinstance(value, str):
            yield value[:_MAX_CHARS]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield value


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
