"""The terminal console of AgentGym."""

from __future__ import annotations

import os
from types import SimpleNamespace

from runner.util.late_imports import ImportedOnUse, import_late

# read by Textual when it is imported; with its default of 60 a key waits up to 33 ms for its repaint
os.environ.setdefault("TEXTUAL_FPS", "240")

# Textual's own command palette and the widgets in it, which the console replaces, take a tenth of the time until the
# first paint; only the list of themes in that palette is lost
_PALETTE = ("CommandPalette", "CommandListItem", "SimpleProvider", "DiscoveryHit", "Hit", "Hits")
import_late(
    ("textual.app", "textual.theme"),
    {
        "textual.command": SimpleNamespace(
            Provider=object, **{name: ImportedOnUse("textual.command", name) for name in _PALETTE}
        )
    },
)
