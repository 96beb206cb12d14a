"""Generate ``docs/agentgym-runner.1``, the man page, from the parsers of the command.

    python -m scripts.build_man_page

The output is deterministic; a test compares it with the checked-in file, and the wheel installs it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.cli.arguments import EPILOG, build_parser
from runner.cli.completion import subcommand_parsers

PROGRAM = "agentgym-runner"
MAN_PAGE = Path(__file__).resolve().parent.parent / "docs" / f"{PROGRAM}.1"


def main() -> None:
    """Write the page."""
    MAN_PAGE.write_text(man_page(), "utf-8")


def man_page() -> str:
    """Return the page in roff."""
    lines = [
        f'.TH {PROGRAM.upper()} 1 "" "AgentGym Console"',
        ".SH NAME",
        f"{PROGRAM} \\- run agents in AgentGym environments and store every episode as a file",
        ".SH SYNOPSIS",
        f".B {PROGRAM}",
        "\\-\\-run ENV | \\-\\-battery TIER | \\-\\-list\\-envs | \\-\\-results",
        "[OPTION]...",
        ".br",
        f".B {PROGRAM}",
        "COMMAND [OPTION]...",
        ".SH OPTIONS",
    ]
    for name, parser in {"": build_parser(), **subcommand_parsers()}.items():
        if name:
            lines += [f'.SH "COMMAND {_escape(name)}"', _escape(parser.description or "")]
        for action in parser._actions:
            lines += _option(action)
    _, _, codes = EPILOG.partition("exit codes:\n")
    lines += [".SH EXIT STATUS", ".nf", *map(_escape, codes.splitlines()), ".fi"]
    lines += [
        ".SH FILES",
        "$XDG_DATA_HOME/agentgym\\-console or ~/.local/share/agentgym\\-console: the state directory, unless",
        "\\-\\-data\\-dir or AGENTGYM_DATA_DIR names another; in a checkout of the repository, \\&./data.",
    ]
    return "\n".join(lines) + "\n"


def _option(action: argparse.Action) -> list[str]:
    placeholder = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None:
        placeholder = " | ".join(map(str, action.choices))
    value = f" {_escape(placeholder)}" if action.nargs != 0 else ""
    names = ", ".join(f"\\fB{_escape(name)}\\fR" for name in action.option_strings)
    return [".TP", f"{names}{value}".strip(), _escape((action.help or "").replace("%%", "%"))]


def _escape(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    main()
