"""The parser of a command line whose error messages are safe to display."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

from runner.util.display_text import sanitize

_INVALID_CHOICE = re.compile(r"invalid choice: '(?P<given>.{1,100})' \(choose from (?P<choices>.*)\)$", re.DOTALL)


_COMPLETED_AS: Final = {
    **dict.fromkeys(("FILE", "PATH", "NAME|PATH", "NAME|@FILE", "A", "B"), "file"),
    "DIR": "directory",
    "ENV": "ENV",
    "AGENT": "AGENT",
}
"""How shells complete values, by placeholder."""


class _Value(argparse.Action):
    """Stores a value, as argparse does by default; ``complete`` is for shtab, which makes completion scripts."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:  # noqa: ANN401
        super().__init__(option_strings, dest, **settings)
        placeholder = self.metavar if isinstance(self.metavar, str) else dest.upper()
        if placeholder in _COMPLETED_AS:
            self.complete = _COMPLETED_AS[placeholder]

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: object = None
    ) -> None:
        setattr(namespace, self.dest, values)


class SafeArgumentParser(argparse.ArgumentParser):
    """Parser that makes unsafe characters of the arguments visible, because scripts take arguments from anywhere."""

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **settings)
        self.register("action", None, _Value)

    def error(self, message: str) -> NoReturn:
        """Write the usage and the message, with the nearest valid choice, to standard error; exit with status 2."""
        if (found := _INVALID_CHOICE.search(message)) is not None:
            message += suggestion(found["given"], re.findall(r"[\w-]+", found["choices"]))
        super().error(sanitize(message))


def describe_completion(parser: argparse.ArgumentParser) -> None:
    """For a subcommand that prints the completion script of a shell."""
    parser.description = "Print the completion script of a shell; put it where the shell looks for such scripts."
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="shell of the script")


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Return a question for the choice that is nearest to a wrong name; empty if none is near."""
    import difflib  # needed only after an error

    close = difflib.get_close_matches(name.lower(), choices, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
