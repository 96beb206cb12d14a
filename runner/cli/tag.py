"""``agentgym-runner tag``: add tags to an episode, remove them, or print them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from runner.cli.arguments import add_state_options, at_least, subcommand_parser
from runner.cli.reports import report_damaged
from runner.cli.run_session import read_state
from runner.cli.terminal import print_json, print_stderr, print_table
from runner.errors import ConfigError
from runner.store import EpisodeStore, open_index_to_read
from runner.store.notes import Notes
from runner.types.notes import Note, NoteChange
from runner.util.clock import is_ulid
from runner.util.display_text import one_line


def main_tag(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(argv)
    _, data_dir = read_state(options)
    tags = tuple(options.tag)
    if options.remove and not tags:
        raise ConfigError("--remove needs the tags to remove")
    _require_episode(data_dir, options.episode)
    add, remove = ((), tags) if options.remove else (tags, ())
    change = NoteChange(step=options.step, add=add, remove=remove)
    found = [note for note in Notes(data_dir).change(options.episode, change) if note.kind == "tag"]
    if options.json:
        print_json({"episode_id": options.episode, "tags": found})
    else:
        _print_tags(found)
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "tag",
        "Add tags to an episode, or remove them, and print the tags it has. Tagged episodes are kept by "
        "agentgym-runner prune.",
    )
    parser.add_argument("episode", metavar="EPISODE", help="id of a stored episode")
    parser.add_argument("tag", metavar="TAG", nargs="*", help="words of at most 64 characters; none: only print them")
    parser.add_argument("--remove", action="store_true", help="remove these tags")
    parser.add_argument("--step", type=at_least(0), metavar="N", help="tag this step, counted from 0, not the episode")
    add_state_options(parser, json="print JSON on standard output")
    return parser


def _require_episode(data_dir: Path, episode_id: str) -> None:
    if is_ulid(episode_id) and (data_dir / "runs").is_dir():
        with closing(open_index_to_read(EpisodeStore(data_dir))) as index:
            if index.select("SELECT 1 FROM episodes WHERE episode_id = ? LIMIT 1", (episode_id,)):
                return
        report_damaged(index.damaged)  # the episode may be in one of these
    raise ConfigError(
        f"there is no episode {one_line(episode_id, 60)!r} in {data_dir}; the names of the files in runs/ are the ids"
    )


def _print_tags(tags: Sequence[Note]) -> None:
    if not tags:
        print_stderr("No tags")
        return
    rows = [
        (
            one_line(tag.text),
            "episode" if tag.step is None else f"step {tag.step}",
            tag.at.isoformat(timespec="seconds"),
            one_line(tag.author or "-"),
        )
        for tag in tags
    ]
    print_table("Tags", ("tag", "of", "since", "by"), rows)
