"""UI state that is kept between sessions: last screen, filters, last queries, sort orders and pane sizes.

Queries, sort orders and pane sizes apply to all sessions; screen and filters only to sessions of the same place: a
state directory, a bus, or opened files.

The state file is untrusted: invalid entries are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.state.sorting import Sorting
from runner.util.files import read_regular, replace_file, xdg_folder

MAX_BYTES: Final = 512 * 1024
"""Maximum size of the file, in bytes."""

MAX_NAMES: Final = 40
"""Maximum number of entries per field of the UI state."""

MAX_QUERIES: Final = 20
"""Maximum number of queries per list that are remembered."""

MAX_PLACES: Final = 20
"""Maximum number of places whose screen and filters are stored; the ones used last are kept."""

RENAMED_COLUMNS: Final = {"over": "transport"}
"""New titles of sort columns, by the old title that an earlier version of the console stored."""

MAX_NAME_CHARS: Final = 40

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
_Words = Annotated[str, msgspec.Meta(max_length=MAX_CHARS)]
_Queries = Annotated[list[_Words], msgspec.Meta(max_length=MAX_QUERIES)]
_Named = Annotated[dict[_Name, _Words], msgspec.Meta(max_length=MAX_NAMES)]
_Percent = Annotated[int, msgspec.Meta(ge=1, le=99)]


class UiState(msgspec.Struct):
    """UI state that is kept between sessions.

    Attributes:
        screen: the screen that was shown last.
        filters: the query of each list, by list name; a list without filter has no entry.
        sorting: the sort order of each list, by list name; a list in default order has no entry.
        sizes: the size of each adjustable pane, by name, in percent of the space it shares with its neighbor.
        queries: the last queries of each list, by list name, the newest first.
        saved_queries: the queries of each list that were saved under a name, by list name and name.
    """

    screen: _Name = "live"
    filters: dict[_Name, _Words] = {}
    sorting: dict[_Name, Sorting] = {}
    sizes: dict[_Name, _Percent] = {}
    queries: dict[_Name, _Queries] = {}
    saved_queries: dict[_Name, _Named] = {}

    def set_filter(self, view: str, words: str) -> None:
        """Store the query of a list; remove it if it is empty or longer than ``MAX_CHARS`` characters."""
        self.filters.pop(view, None)
        if 0 < len(words) <= MAX_CHARS:
            self.filters[view] = words

    def remember_query(self, view: str, text: str) -> None:
        """Put a query before the last ones of a list; the oldest one is dropped."""
        others = [each for each in self.queries.get(view, ()) if each != text]
        if 0 < len(text) <= MAX_CHARS:
            self.queries[view] = [text, *others][:MAX_QUERIES]

    def save_query(self, view: str, name: str, text: str) -> None:
        """Save a query of a list under a name; an empty query removes the name, as does one past ``MAX_NAMES``."""
        others = {known: query for known, query in self.saved_queries.get(view, {}).items() if known != name}
        added = {name: text} if 0 < len(text) <= MAX_CHARS else {}
        self.saved_queries[view] = dict([*others.items(), *added.items()][-MAX_NAMES:])

    def set_sorting(self, view: str, sorting: Sorting | None) -> None:
        """Store the sort order of a list; None removes it, for the default order."""
        self.sorting.pop(view, None)
        if sorting is not None:
            self.sorting[view] = sorting


def state_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the UI state file."""
    return xdg_folder(environ, "XDG_STATE_HOME", ".local/state") / "console.json"


def read_ui_state(path: Path, place: str = "") -> UiState:
    """Read the UI state file. Each invalid field gets its default; without a readable file, all fields do.

    Args:
        path: the file. In a file of an earlier version, screen and filters apply to all places.
        place: what the session shows; "" for screen and filters that belong to no place.
    """
    fields = _read_fields(path)
    if place and "places" in fields:
        own = _read_places(fields).get(_place_key(place), {})
        fields = {name: fields[name] for name in _SHARED if name in fields} | own
    state = UiState(
        **{
            field.name: _decode_field(field, fields)
            for field in msgspec.structs.fields(UiState)
            if field.name in fields
        }
    )
    state.filters = {name: sanitize_line(words, MAX_CHARS) for name, words in state.filters.items()}
    state.queries = {name: [sanitize_line(text, MAX_CHARS) for text in texts] for name, texts in state.queries.items()}
    state.saved_queries = {
        view: {sanitize_line(name, MAX_NAME_CHARS): sanitize_line(text, MAX_CHARS) for name, text in saved.items()}
        for view, saved in state.saved_queries.items()
    }
    state.sorting = {
        name: sorting._replace(column=RENAMED_COLUMNS.get(sorting.column, sorting.column))
        for name, sorting in state.sorting.items()
    }
    return state


def write_ui_state(path: Path, state: UiState, place: str = "") -> None:
    """Write the UI state file with mode 0600; keep screens and filters of other places than ``place``.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fields = msgspec.structs.asdict(state)
    if place:
        places = _read_places(_read_fields(path))
        places.pop(key := _place_key(place), None)
        newest = [*places.items(), (key, {name: fields.pop(name) for name in _OF_PLACE})][-MAX_PLACES:]
        fields["places"] = dict(newest)
    replace_file(path, msgspec.json.encode(fields))


_SHARED: Final = ("queries", "saved_queries", "sorting", "sizes")
_OF_PLACE: Final = ("screen", "filters")


def _place_key(place: str) -> str:
    return sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:16]  # a bus address may contain a password


def _read_fields(path: Path) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(read_regular(path, MAX_BYTES, links=False)[0], type=dict[str, msgspec.Raw])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _read_places(fields: Mapping[str, msgspec.Raw]) -> dict[str, dict[str, msgspec.Raw]]:
    try:
        return msgspec.json.decode(fields.get("places", b"{}"), type=dict[str, dict[str, msgspec.Raw]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _decode_field(field: msgspec.structs.FieldInfo, fields: Mapping[str, msgspec.Raw]) -> Any:  # noqa: ANN401 - the type of the field
    try:
        value = msgspec.json.decode(fields[field.name], type=field.type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return getattr(UiState(), field.name)
    return dict(list(value.items())[:MAX_NAMES]) if isinstance(value, dict) else value
