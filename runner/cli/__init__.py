"""The command ``agentgym-runner``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from runner.cli.arguments import Options, parse
from runner.cli.terminal import err
from runner.errors import RunnerError

USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 an episode failed to run, 2 usage, 130 interrupted."""
    options = parse(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(options)
    except RunnerError as exc:
        err(f"agentgym-runner: {exc}")
        return 1 if options.dry_run else USAGE
    except BrokenPipeError:  # the reader of a pipe left; nothing more can be said to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return USAGE


def _dispatch(options: Options) -> int:
    from runner.cli.session import Session

    session = Session.open(options)
    if options.list_envs:
        from runner.cli.listing import list_environments

        return list_environments(session)
    if options.results:
        from runner.cli.results import show_results

        return show_results(session)
    if options.dry_run:
        from runner.cli.preview import preview

        return preview(session)
    from runner.cli.play import play

    return play(session)
