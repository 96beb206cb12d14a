"""What the console keeps from one start to the next: screen, filters, order of lists, sizes of panes.

The file is read as if anybody had written it: of what is wrong in it nothing is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from agentgym_tui.config.paths import read_small_file, xdg_folder
from agentgym_tui.safe_text import sanitize_line
from agentgym_tui.state.sorting import Sorting

MAX_NAMES: Final = 40
"""Filters, lists and panes that are remembered, each."""

MAX_WORDS: Final = 200
"""Characters of a filter that is remembered."""

_Name = Annotated[str, msgspec.Meta(max_length=40)]
_Words = Annotated[str, msgspec.Meta(max_length=MAX_WORDS)]
_Percent = Annotated[int, msgspec.Meta(ge=1, le=99)]


class UiState(msgspec.Struct):
    """What is kept.

    Attributes:
        screen: the mode that was shown last.
        filters: what was looked for, by list; those that show all are not there.
        sorting: the order, by list; those in their usual order are not there.
        sizes: what panes take of the place they share, in per cent.
    """

    screen: _Name = "live"
    filters: dict[_Name, _Words] = {}
    sorting: dict[_Name, Sorting] = {}
    sizes: dict[_Name, _Percent] = {}

    def set_filter(self, view: str, words: str) -> None:
        """Remember what is looked for in a list; nothing, and what is too long, is not kept."""
        self.filters.pop(view, None)
        if 0 < len(words) <= MAX_WORDS:
            self.filters[view] = words

    def set_sorting(self, view: str, sorting: Sorting | None) -> None:
        """Remember the order of a list; None for its usual one."""
        self.sorting.pop(view, None)
        if sorting is not None:
            self.sorting[view] = sorting


def state_path(environ: Mapping[str, str]) -> Path:
    """Where it is kept."""
    return xdg_folder(environ, "XDG_STATE_HOME", ".local/state") / "console.json"


def read_ui_state(path: Path) -> UiState:
    """What was kept, as far as it can be used."""
    try:
        fields = msgspec.json.decode(read_small_file(path, links=False), type=dict[str, msgspec.Raw])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UiState()
    taken = UiState(
        **{
            field.name: _decode_field(field, fields)
            for field in msgspec.structs.fields(UiState)
            if field.name in fields
        }
    )
    taken.filters = {name: sanitize_line(words, MAX_WORDS) for name, words in taken.filters.items()}
    return taken


def write_ui_state(path: Path, kept: UiState) -> None:
    """Keep it, for this user alone; where that cannot be the next start is as the first one.

    Raises:
        OSError: when it cannot be written.
    """
    from runner.util.files import write_secret

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_secret(path, msgspec.json.encode(kept))


def _decode_field(field: msgspec.structs.FieldInfo, fields: Mapping[str, msgspec.Raw]) -> Any:  # noqa: ANN401 - of its field's type
    """What a file says of a field, else what it is at first."""
    try:
        value = msgspec.json.decode(fields[field.name], type=field.type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return getattr(UiState(), field.name)
    return dict(list(value.items())[:MAX_NAMES]) if isinstance(value, dict) else value
