"""What the commands that serve something have in common: where they listen, and what they say when they do."""

from __future__ import annotations

import argparse

from runner.cli.terminal import delivered, output, safe


def add_listening(group: argparse._ActionsContainer) -> None:
    """Add ``--host``, ``--token`` and ``--allow-host``."""
    group.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1; any other machine's needs --token")
    group.add_argument("--token", metavar="NAME|@FILE", help="the variable or private file with what clients must send")
    group.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="another name that clients know this host by"
    )


def port(text: str) -> int:
    """A port, for argparse; 0 stands for one that is free."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return value


def say(line: str) -> None:
    """Print that a server is ready."""
    delivered(0, lambda: output().write(f"{safe(line)}\n"))
