"""The command ``agentgym-tui``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Say that there is no console yet, and what to use meanwhile; returns 2."""
    sys.stderr.write(
        "agentgym-tui: the console is not part of this version yet.\n"
        "Episodes are played and summed up by agentgym-runner; try: agentgym-runner --battery lightweight\n"
    )
    return 2
