"""Run a command with the variables of a file; nothing in the file is evaluated, and no value is printed.

    python scripts/with_env.py .env COMMAND...

A line is ``NAME=VALUE``, perhaps after ``export``; a value with spaces or ``#`` is in quotes.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def read_variables(text: str) -> dict[str, str]:
    """Return the variables in the text of a file; raises ``ValueError`` with the number of the first invalid line."""
    variables = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        matched = _LINE.fullmatch(line.strip())
        try:
            values = shlex.split(matched[2], comments=True) if matched else ["", ""]
        except ValueError:
            values = ["", ""]
        if matched is None or len(values) > 1 or matched[2][:1].isspace():
            raise ValueError(f"line {number} is not NAME=VALUE; put a value with spaces in quotes")
        variables[matched[1]] = "".join(values)
    return variables


def main(arguments: list[str]) -> None:
    """Replace this process by the command; exit with 2 where the file cannot be read."""
    file, *command = arguments
    try:
        variables = read_variables(Path(file).read_text("utf-8"))
    except (OSError, ValueError) as exc:
        sys.stderr.write(f"{file}: {exc}\n")
        sys.exit(2)
    os.execvpe(command[0], command, {**os.environ, **variables})


if __name__ == "__main__":
    main(sys.argv[1:])
