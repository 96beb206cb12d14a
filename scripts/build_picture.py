"""Write the pictures of the console: a real one, beside a real node that the oracle keeps busy.

    python -m scripts.build_picture [FOLDER]

Each run has other ids, times and loads; the tasks and what is played are the same.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentgym_tui.app import Console
from agentgym_tui.launch import Wanted
from agentgym_tui.sessions import NodeSession
from textual.pilot import Pilot

DOCS = Path(__file__).resolve().parent.parent / "docs" / "pictures"
SIZE = (120, 36)
WAIT_S = 60.0
