"""The terminal console."""

from __future__ import annotations

import os

# read by the framework as it is imported: with its 60 a key waits up to 33 ms for the next drawing but one
os.environ.setdefault("TEXTUAL_FPS", "240")
