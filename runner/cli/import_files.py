"""``agentgym-runner import``: store the episodes of other tools' files, with a report of what could not be read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from runner.cli.arguments import add_state_options, subcommand_parser
from runner.cli.reports import log_to_stderr
from runner.cli.run_session import read_state
from runner.cli.terminal import print_json, print_stderr
from runner.errors import ConfigError
from runner.formats.format import readable_formats, unknown_format
from runner.formats.importing import Importer, ImportReport
from runner.store import EpisodeStore, open_index
from runner.util.clock import Clock
from runner.util.display_text import one_line, pluralize

_N_SHOWN = 10
"""Number of malformed items that are printed; ``--json`` has more."""


def main_import(argv: Sequence[str]) -> int:
    """Import files and print what was stored; return 0, or 1 if something could not be read."""
    options = build_parser().parse_args(argv)
    log_to_stderr()
    _, data_dir = read_state(options, creates=True)
    chosen = None if options.format is None else readable_formats()[options.format]
    path = Path(options.path)
    if not path.exists():
        raise ConfigError(f"there is no file or folder {path}; check the path")
    store = EpisodeStore(data_dir)
    with closing(open_index(store)) as index:
        report = Importer(store, index, Clock().now()).import_path(path, chosen)
    if not report.formats:
        raise ConfigError(unknown_format(path))
    return _report(report, path, as_json=options.json)


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "import",
        "Store the episodes of other tools' files, one batch per import. The format is recognised by the "
        "content. An episode that is stored already is not stored again, and a malformed line costs only itself. "
        "What a file does not say, such as a reward, stays unknown, and results do not rate it.",
    )
    parser.add_argument("path", metavar="FILE", help="file or folder to read; it is not changed")
    parser.add_argument(
        "--format", choices=sorted(readable_formats()), help="format of all files (default: recognised)"
    )
    add_state_options(parser, json="print the report on standard output")
    return parser


def _report(report: ImportReport, path: Path, *, as_json: bool) -> int:
    code = 1 if report.n_malformed else 0
    if as_json:
        print_json(report)
        return code
    titles = ", ".join(report.formats)
    batch = f" as batch {report.batch_id}" if report.batch_id else ""
    print_stderr(f"{path}: {pluralize(report.n_imported, 'episode')} of {titles} imported{batch}")
    if report.n_known:
        print_stderr(f"skipped: {pluralize(report.n_known, 'episode')}, stored already")
    for what, n in report.missing.items():
        print_stderr(f"unknown in {pluralize(n, 'episode')}: {what}")
    if report.n_unrecognised:
        print_stderr(f"not read: {pluralize(report.n_unrecognised, 'file')} without a known format")
    for loss in report.malformed[:_N_SHOWN]:
        print_stderr(f"malformed: {one_line(loss.path, 300)}: {loss.unit} {loss.number}: {one_line(loss.reason, 300)}")
    if report.n_malformed > _N_SHOWN:
        print_stderr(f"malformed: {report.n_malformed} in all; --json lists up to {len(report.malformed)}")
    return code
