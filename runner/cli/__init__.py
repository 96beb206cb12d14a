"""The command ``agentgym-runner``."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code: 0 success, 1 error, 2 invalid usage or settings, 130 interrupted."""
    # Without it, the interpreter searches all loaded modules for cycles when it exits: a quarter of a short command.
    atexit.register(gc.freeze)
    try:
        from runner.cli.dispatch import run  # imported here so that Ctrl-C works while modules load

        return run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130
