"""UI state that is kept between sessions: last screen, filters, last queries, sort orders and pane sizes.

Queries, sort orders and pane sizes apply to all sessions; screen and filters only to sessions of the same place: a
state directory, a bus, or opened files. The file is untrusted: one that is invalid is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import msgspec

from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.state.query import MAX_CHARS, Sorting
from runner.util.files import read_regular, replace_file, xdg_folder

MAX_BYTES: Final = 512 * 1024
MAX_NAMES: Final = 40
"""Maximum number of lists, of panes, and of saved queries of a list."""
MAX_QUERIES, MAX_PLACES, MAX_NAME_CHARS = 20, 20, 40
"""Of the queries of a list, and of the places, the ones used last are kept."""

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
_Words = Annotated[str, msgspec.Meta(max_length=MAX_CHARS)]
_Few = msgspec.Meta(max_length=MAX_NAMES)
_Percent = Annotated[int, msgspec.Meta(ge=1, le=99)]


class _Place(msgspec.Struct):
    screen: _Name = "live"
    filters: Annotated[dict[_Name, _Words], _Few] = {}


class UiState(_Place):
    """UI state that is kept between sessions; what belongs to a list has its name as key.

    Panes have the size in percent of the space that they share with a neighbor; the newest of ``queries`` is the first.
    """

    sorting: Annotated[dict[_Name, Sorting], _Few] = {}
    sizes: Annotated[dict[_Name, _Percent], _Few] = {}
    queries: Annotated[dict[_Name, Annotated[list[_Words], msgspec.Meta(max_length=MAX_QUERIES)]], _Few] = {}
    saved_queries: Annotated[dict[_Name, Annotated[dict[_Name, _Words], _Few]], _Few] = {}

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
        self.sorting.pop(view, None)
        if sorting is not None:
            self.sorting[view] = sorting


class _File(UiState):
    """The state of the last session, and the last screen and filters of each place, by ``_place_key``."""

    places: dict[_Name, _Place] = {}


def state_path(environ: Mapping[str, str]) -> Path:
    return xdg_folder(environ, "XDG_STATE_HOME", ".local/state") / "console.json"


def read_ui_state(path: Path, place: str = "") -> UiState:
    """Read the UI state of a place; without a valid file, return the defaults."""
    file = _read(path)
    own = file.places.get(_place_key(place), _Place())
    return UiState(own.screen, own.filters, file.sorting, file.sizes, file.queries, file.saved_queries)


def write_ui_state(path: Path, state: UiState, place: str = "") -> None:
    """Write the UI state file with mode 0600; keep screens and filters of other places."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    places, key = _read(path).places, _place_key(place)
    places.pop(key, None)
    kept = dict([*places.items(), (key, _Place(state.screen, state.filters))][-MAX_PLACES:])
    replace_file(path, msgspec.json.encode(_File(**msgspec.structs.asdict(state), places=kept)))


def _place_key(place: str) -> str:
    return sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:16]  # a bus address may contain a password


def _read(path: Path) -> _File:
    try:
        document = msgspec.json.decode(read_regular(path, MAX_BYTES, links=False)[0])
        return msgspec.convert(_sanitized(document), _File)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _File()


def _sanitized(value: object) -> object:
    match value:
        case str():
            return sanitize_line(value, MAX_BYTES)
        case list():
            return [_sanitized(each) for each in value]
        case dict():
            return {_sanitized(name): _sanitized(each) for name, each in value.items()}
    return value
