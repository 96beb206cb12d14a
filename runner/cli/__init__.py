"""The command ``agentgym-runner``."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code: 0 success, 1 error, 2 invalid usage or settings, 130 interrupted."""
    # Searching all loaded modules for cycles is a quarter of a short command at its exit, and a twentieth before.
    atexit.register(gc.freeze)
    gc.disable()  # until the modules of the command are loaded
    try:
        from runner.cli.dispatch import run  # imported here so that Ctrl-C works while modules load

        return run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130
    finally:
        gc.enable()
