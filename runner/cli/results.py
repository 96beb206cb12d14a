"""``--results``: what was played so far, models first and baselines apart."""

from __future__ import annotations

from collections.abc import Callable

from runner.cli.report import interval, number, percent
from runner.cli.session import Session
from runner.cli.terminal import console, err, print_json, safe
from runner.store import EpisodeStore, ResultRow, open_index, summarise
