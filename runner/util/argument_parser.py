"""The parser of a command line whose error messages are safe to display."""

from __future__ import annotations

import argparse
from typing import NoReturn

from runner.util.display_text import sanitize


class SafeArgumentParser(argparse.ArgumentParser):
    """Parser that makes unsafe characters of the arguments visible, because scripts take arguments from anywhere."""

    def error(self, message: str) -> NoReturn:
        """Write the usage and the message to standard error, and exit with status 2."""
        super().error(sanitize(message))
