"""What a command line stands for: the options of a run, or a subcommand with options of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from runner.cli.arguments import Options, parse
from runner.cli.signals import INTERRUPTED, leave_stuck_threads
from runner.cli.terminal import delivered, drop_output, err, mend_streams, output
from runner.errors import RunnerError

USAGE = 2
Subcommand: TypeAlias = Callable[[Sequence[str]], int]


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code, with everything said and printed."""
    mend_streams()
    code = _run(arguments)
    leave_stuck_threads(code)
    return code


def _run(arguments: list[str]) -> int:
    failure = USAGE
    code = 0
    try:
        if arguments and (subcommand := _subcommand(arguments[0])) is not None:
            code = subcommand(arguments[1:])
        else:
            options = parse(arguments)
            failure = 1 if options.dry_run else USAGE
            code = _dispatch(options)
    except RunnerError as exc:
        err(f"agentgym-runner: {exc}")
        code = failure
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        drop_output()  # the reader left early, which is no failure
    except OSError as exc:
        drop_output()
        err(f"agentgym-runner: {exc}")
        code = failure
    return delivered(code, output().flush)


def _subcommand(name: str) -> Subcommand | None:
    """What runs a subcommand; these and the options of a run exclude each other."""
    match name:
        case "node":
            from runner.cli.node import main_node

            return main_node
        case "watch":
            from runner.cli.watch import main_watch

            return main_watch
        case "outbox":
            from runner.cli.outbox import main_outbox

            return main_outbox
        case "serve-model":
            from runner.cli.serve_model import main_serve_model

            return main_serve_model
        case "nats-info":
            from runner.cli.node import main_nats_info

            return main_nats_info
        case "preflight":
            from runner.cli.preflight import main_preflight

            return main_preflight
        case "serve":
            from runner.cli.serve import main_serve

            return main_serve
    return None


def _dispatch(options: Options) -> int:
    from runner.cli.session import Session

    session = Session.open(options)
    if options.list_envs:
        from runner.cli.list_envs import list_environments

        return list_environments(session)
    if options.results:
        from runner.cli.results import show_results

        return show_results(session)
    if options.dry_run:
        from runner.cli.dry_run import preview

        return preview(session)
    from runner.cli.run import play

    return play(session)
