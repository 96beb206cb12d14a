"""The terminal console of AgentGym."""

from __future__ import annotations

import os

# read by Textual when it is imported; with its default of 60 a key waits up to 33 ms for its repaint
os.environ.setdefault("TEXTUAL_FPS", "240")
