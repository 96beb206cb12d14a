"""The parser of a command line whose error messages are safe to display."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any, NoReturn

from runner.util.display_text import sanitize


class SafeArgumentParser(argparse.ArgumentParser):
    """Parser that makes unsafe characters of the arguments visible, because scripts take arguments from anywhere."""

    def __init__(self, *, formatter_class: Any = argparse.HelpFormatter, **kwargs: Any) -> None:  # noqa: ANN401
        # Without a width, argparse imports ``shutil`` and four compression modules even if no help is printed.
        super().__init__(formatter_class=partial(formatter_class, width=_columns() - 2), **kwargs)

    def error(self, message: str) -> NoReturn:
        """Write the usage and the message to standard error, and exit with status 2."""
        super().error(sanitize(message))


def _columns() -> int:
    """Return the width of the terminal as ``shutil.get_terminal_size`` does: that of the variable, else of stdout."""
    if (columns := os.environ.get("COLUMNS", "")).isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80
