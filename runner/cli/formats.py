"""``agentgym-runner export`` and ``import``: stored episodes in the formats of trainers and other tools."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from runner.cli.arguments import add_state_options, subcommand_parser
from runner.cli.query_arguments import add_query_argument, protect_negations, query_condition, query_epilog
from runner.cli.reports import report_damaged
from runner.cli.run_session import read_state
from runner.cli.terminal import print_json, print_stderr, print_text
from runner.errors import ConfigError
from runner.formats.export import UNREADABLE, Manifest, export_episodes
from runner.formats.format import find_format, readable_formats, unknown_format, writable_formats
from runner.formats.importing import Importer, ImportReport
from runner.formats.selection import Filters, select_candidates
from runner.formats.training import audit_episodes
from runner.store import EpisodeStore, open_index
from runner.store.index import open_index_to_read
from runner.util.clock import Clock
from runner.util.display_text import one_line, pluralize


def main_export(argv: Sequence[str]) -> int:
    """Export the selected episodes, or audit them; return 0, or 1 if a file could not be read."""
    options = export_parser().parse_args(protect_negations(argv))
    if options.audit and (options.format or options.output):
        raise ConfigError("--audit writes nothing; leave out --format and --output")
    if not options.audit and not (options.format and options.output):
        raise ConfigError("export needs --format and --output, or --audit")
    _, data_dir = read_state(options)
    target, now = None if options.audit else find_format(options.format), Clock().now()
    query = " ".join(options.query)
    filters = Filters(first_success=options.first_success, drop_flat=options.drop_flat, balanced=options.balanced)
    condition = query_condition(query, data_dir, now)
    store = EpisodeStore(data_dir)
    with closing(open_index_to_read(store)) as index:
        candidates, left_out = select_candidates(
            index, condition.sql, condition.parameters, filters, by_task=target is not None and target.by_task
        )
        code = report_damaged(index.damaged)
        if code:
            left_out[UNREADABLE] += len(index.damaged)
    if not candidates:
        raise ConfigError(_nothing_selected(data_dir, left_out))
    if target is None:
        audit = audit_episodes(store, candidates, left_out)
        if options.json:
            print_json(audit)
        else:
            print_text("\n".join(audit.lines()))
        return code
    path = Path(options.output)
    manifest = export_episodes(
        store,
        candidates,
        left_out,
        target,
        path,
        query=query,
        filters=[name for name, is_on in msgspec.structs.asdict(filters).items() if is_on],
        now=now,
    )
    _report_export(manifest, path, as_json=options.json)
    return 1 if UNREADABLE in manifest.left_out else 0


def _nothing_selected(data_dir: Path, left_out: Mapping[str, int]) -> str:
    if not left_out:
        return f"no episode in {data_dir} is selected; list them with: agentgym-runner episodes"
    reasons = "; ".join(f"{pluralize(n, 'episode')}: {reason}" for reason, n in left_out.items())
    return f"the filters leave nothing of what the query selects: {reasons}; leave a filter out or change the query"


def export_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "export",
        "Write stored episodes in the format of a trainer or another tool, with a manifest: the query, the "
        "number of episodes, what was left out and why, and the SHA-256 of each file.",
        epilog=query_epilog(),
    )
    add_query_argument(parser)
    parser.add_argument("--format", choices=[*writable_formats()], help="format of the output")
    parser.add_argument(
        "--output", metavar="FILE", help="file or folder to create, with the folders above it; it must not exist"
    )
    parser.add_argument(
        "--audit",
        action="store_true",
        help="write nothing, but print what a trainer could use: token ids, loss masks, groups with different rewards",
    )
    group = parser.add_argument_group("filters, after the query")
    group.add_argument("--drop-flat", action="store_true", help="drop tasks whose attempts all have the same reward")
    group.add_argument("--first-success", action="store_true", help="keep only the first success of each task")
    group.add_argument("--balanced", action="store_true", help="keep the same number of episodes per environment")
    add_state_options(parser, json="print the manifest or the audit as JSON on standard output")
    return parser


def _report_export(manifest: Manifest, path: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(manifest)
        return
    n_bytes = sum(file.bytes for file in manifest.files)
    size = f"{pluralize(len(manifest.files), 'file')}, {n_bytes:,} bytes"
    print_stderr(f"{path}: {pluralize(manifest.n_written, 'episode')} as {manifest.format_version}, {size}")
    for reason, n in manifest.left_out.items():
        print_stderr(f"left out: {pluralize(n, 'episode')}: {reason}")


_N_SHOWN = 10
"""Number of malformed items that are printed; ``--json`` has more."""


def main_import(argv: Sequence[str]) -> int:
    """Import files and print what was stored; return 0, or 1 if something could not be read."""
    options = import_parser().parse_args(argv)
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
    return _report_import(report, path, as_json=options.json)


def import_parser() -> argparse.ArgumentParser:
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


def _report_import(report: ImportReport, path: Path, *, as_json: bool) -> int:
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
