"""The command ``agentgym-runner``: dispatch to a subcommand or a run, and conversion of errors to exit codes.

Only the standard library is imported with this module, so that Ctrl-C works while the others load.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.cli.arguments import Options

USAGE = 2
_SHARED_MODULES = {
    **dict.fromkeys(("export", "import"), "formats"),
    **dict.fromkeys(("clusters", "compare", "eval-report"), "analyses"),
    "serve-model": "serve",
    "nats-info": "node",
    "skill": "completion",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code: 0 success, 1 error, 2 invalid usage or settings, 130 interrupted."""
    try:
        from runner.cli.terminal import exit_despite_stuck_threads, repair_std_streams

        repair_std_streams()
        code = _run(list(sys.argv[1:] if argv is None else argv))
        exit_despite_stuck_threads(code)
        return code
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str]) -> int:
    from runner.cli.arguments import parse_options
    from runner.cli.terminal import INTERRUPTED, discard_output, output_stream, print_stderr, write_result
    from runner.errors import RunnerError
    from runner.util.resources import describe_shortage, find_shortage

    failure, code = USAGE, 0
    try:
        if arguments and not arguments[0].startswith("-"):
            code = _run_subcommand(*arguments)
        else:
            options = parse_options(arguments)
            failure = 1 if options.dry_run else USAGE
            code = _run_action(options)
    except RunnerError as exc:
        print_stderr(f"agentgym-runner: {exc}")
        code = failure
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        discard_output()  # the reader closed the pipe, which is not a failure
    except (OSError, MemoryError, RuntimeError, ExceptionGroup) as exc:
        shortage = find_shortage(exc)
        if shortage is None and not isinstance(exc, OSError):
            raise
        discard_output()
        from runner.util.files import deleted_folder_problem

        problem = exc if shortage is None else describe_shortage(shortage)
        print_stderr(f"agentgym-runner: {deleted_folder_problem(os.environ) or problem}")
        code = failure
    return write_result(code, output_stream().flush)


def _run_subcommand(name: str, *arguments: str) -> int:
    from runner.cli.arguments import SUBCOMMANDS
    from runner.errors import ConfigError
    from runner.util.argument_parser import suggestion
    from runner.util.display_text import one_line

    if name not in SUBCOMMANDS:
        problem = f"there is no subcommand '{one_line(name, 100)}'{suggestion(name, SUBCOMMANDS)}"
        raise ConfigError(f"{problem}; --help lists all, and runs start with --run")
    code: int = getattr(subcommand_module(name), f"main_{name.replace('-', '_')}")(arguments)
    return code


def subcommand_module(name: str) -> ModuleType:
    """Import the module of a subcommand, which has its name, unless it has several."""
    return importlib.import_module(f"runner.cli.{_SHARED_MODULES.get(name, name)}")


def _run_action(options: Options) -> int:
    from runner.cli.run_session import RunSession

    if options.list_envs:
        from runner.cli.list_envs import list_environments as action
    elif options.results:
        from runner.cli.results import show_results as action
    elif options.dry_run:
        from runner.cli.preflight import dry_run as action
    else:
        from runner.cli.run import run_batches as action
    return action(RunSession.open(options))
