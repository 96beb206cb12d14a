"""The terminal console of AgentGym."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Final

from runner.util.late_imports import ImportedOnUse, import_late

# read by Textual when it is imported; with its default of 60 a key waits up to 33 ms for its repaint
os.environ.setdefault("TEXTUAL_FPS", "240")

_USED_LATE: Final = {
    "pickle": ("dumps", "loads"),
    "platformdirs": ("user_downloads_path",),
    "rich.table": ("Table",),
    "textual.command": ("CommandPalette", "CommandListItem", "SimpleProvider", "DiscoveryHit", "Hit", "Hits"),
}
"""Functions and classes that Textual hardly uses or, as its command palette, that the console replaces.

Importing them takes an eighth of the time until the first paint.
"""

_stand_ins = {
    module: SimpleNamespace(**{name: ImportedOnUse(module, name) for name in names})
    for module, names in _USED_LATE.items()
}
_stand_ins["textual.command"].Provider = object  # of the list of themes in Textual's palette, which is lost
import_late(
    ("rich.style", "textual.app", "textual.design", "textual.style", "textual.theme"),
    _stand_ins,
)
