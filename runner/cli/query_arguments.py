"""Queries on the command line: words and terms as separate arguments, and errors with a mark under their place."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from runner.errors import ConfigError
from runner.query.episodes import FIELDS, Condition, episode_condition, episode_lookups
from runner.query.syntax import QueryError
from runner.util.display_text import one_line

_NEGATED = re.compile(r"^-(?=[^-\s])")

QUERY_HELP = """query:
  words, which an episode's line has to contain, and terms:
{fields}

  env:babyai outcome:failure,truncated     one of several values
  model:qwen* -agent:oracle                wildcards; - or NOT negates
  reward>0.5 rounds<=3 task:10..19         comparisons and ranges
  since:2h (tag:todo OR note:"door")       ages; OR and parentheses
  text:"locked door" text:unlock*          words of the transcript; * for the rest of a word

quote the query, or it is interpreted by the shell; an empty query means all episodes"""


def query_epilog() -> str:
    width = max(map(len, FIELDS))
    fields = (f"    {field.name:<{width}}  {field.description}" for field in FIELDS.values())
    return QUERY_HELP.format(fields="\n".join(fields))


def add_query_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", nargs="*", help="which episodes, see below (default: all)")


def protect_negations(argv: Sequence[str]) -> list[str]:
    """Return the arguments with ``-term`` as ``NOT term``, which argparse does not take for an option."""
    return [argument if argument == "-h" else _NEGATED.sub("NOT ", argument, count=1) for argument in argv]


def query_condition(query: str, data_dir: Path, now: datetime) -> Condition:
    """Return the condition of a query of the command line.

    ``data_dir`` has the tags, notes and texts; ages such as ``2h`` refer to ``now``. Raises ``ConfigError`` for an
    invalid query; the message has the query with a mark under the place of the error.
    """
    try:
        return episode_condition(query, now=now, lookups=episode_lookups(data_dir))
    except QueryError as exc:
        raise ConfigError(f"the query is invalid: {exc}\n{mark_error(query, exc)}") from exc


def mark_error(query: str, error: QueryError) -> str:
    """Return the query with ``^`` under the place of its error, as two lines of at most 120 characters."""
    start = max(0, error.start - 60)
    shown = one_line(query[start : start + 110], 120)
    n = max(1, min(error.end, start + 110) - error.start)
    return f"  {shown}\n  {' ' * (error.start - start)}{'^' * n}"
