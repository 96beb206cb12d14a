"""Archiving, deleting and exporting of episodes: a confirmation with number and size, and what was done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_tui.commands.registry import CURATION, EXPORT
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import format_size, pluralize
from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.screens.dialogs.confirm import ConfirmDialog
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.session import Session
from runner.errors import StoreError

if TYPE_CHECKING:
    from agentgym_tui.sessions.curation import FileExporter
    from runner.node.retention import CleanUpAction, PruneReport


class CleanUpDialog(ConfirmDialog):
    """A dialog before episodes are archived or deleted.

    Args:
        plan: what would be done.
    """

    ACTION: CleanUpAction

    def __init__(self, plan: PruneReport) -> None:
        self._plan = plan
        super().__init__(f"{self.ACTION.capitalize()} {_episodes(_n_done(plan))}?", default="nothing")

    def question(self) -> Sequence[Line]:
        plan, is_final = self._plan, self.ACTION == "delete"
        size = f"{('' if is_final else 'about ')}{format_size(plan.n_freed)}"
        head: Line = [Cell(_episodes(_n_done(plan)), "head"), Cell(f", frees {size}")]
        final = [[Cell("this is final: they cannot be brought back", "warn")]] if is_final else []
        return [head, *([Cell(text, "warn")] for text in kept_texts(plan.kept)), *final]


class ArchiveDialog(CleanUpDialog):
    """The dialog before episodes are archived."""

    SCOPE = ACTION = "archive"


class DeleteDialog(CleanUpDialog):
    """The dialog before episodes are deleted."""

    SCOPE = ACTION = "delete"


def kept_texts(kept: Mapping[str, int]) -> list[str]:
    """Return a line for each reason for which episodes stay as they are."""
    return [f"{n:,} {'stays' if n == 1 else 'stay'}: {reason}" for reason, n in kept.items()]


def report_text(report: PruneReport, action: CleanUpAction) -> str:
    """Return what was done, and what was left as it is."""
    parts = [f"{_episodes(_n_done(report))} {action.removesuffix('e')}ed"]
    if _n_done(report):
        parts[0] = f"{parts[0]}, {format_size(max(report.n_freed, 0))} freed"
    parts += kept_texts(report.kept)
    parts += [sanitize_message(f"✗ {problem}", 300) for problem in report.problems[:3]]
    return "\n".join(parts)


def _n_done(report: PruneReport) -> int:
    return report.n_archived + report.n_deleted


def clean_up(
    screen: ConsoleScreen[Any],
    session: Session,
    action: CleanUpAction,
    episode_ids: Sequence[str],
    on_done: Callable[[], None],
) -> None:
    """Archive or delete episodes after a confirmation, and show what was done.

    Args:
        screen: the screen that shows dialog and toast.
        session: the session with the episodes.
        action: what to do.
        episode_ids: the chosen episodes.
        on_done: called when episodes have gone.
    """
    if action == "archive" and session.archiver is not None and episode_ids:
        start_worker(screen, partial(_copy_to_archive, screen, session.archiver, episode_ids), group="curation")
        return
    if (curation := session.curation) is None:
        screen.toast(CURATION.reason(session), failed=True)
        return
    if not episode_ids:
        screen.toast(f"no episode is selected to {action}", failed=True)
        return

    async def plan() -> None:
        with _failure_shown(screen):
            planned = await curation.clean_up(action, episode_ids, dry_run=True)
            if not _n_done(planned):
                screen.toast("\n".join([f"nothing to {action}", *kept_texts(planned.kept)]), failed=True)
            elif screen.is_current:
                dialog = ArchiveDialog if action == "archive" else DeleteDialog
                screen.app.push_screen(dialog(planned), answered)

    def answered(answer: str | None) -> None:
        if answer == action:
            screen.toast(f"{action}: {_episodes(len(episode_ids))} …")
            start_worker(screen, apply, group="curation")

    async def apply() -> None:
        with _failure_shown(screen):
            report = await curation.clean_up(action, episode_ids)
            screen.toast(report_text(report, action), failed=bool(report.problems))
            on_done()

    start_worker(screen, plan, group="curation")


def export(screen: ConsoleScreen[Any], session: Session, episode_ids: Sequence[str], query: str) -> None:
    """Open the form that writes episodes in a format; ``query``: that of the list, for the manifest."""
    from agentgym_tui.screens.episodes.export_form import ExportForm
    from runner.formats.format import writable_formats  # slow to import

    if (exporter := session.exporter) is None:
        screen.toast(EXPORT.reason(session), failed=True)
        return
    if not episode_ids:
        screen.toast("no stored episode is selected to export", failed=True)
        return

    async def open_form() -> None:
        formats = await asyncio.to_thread(writable_formats)
        if screen.is_current:
            screen.app.push_screen(ExportForm(exporter, episode_ids, [*formats.values()], query))

    start_worker(screen, open_form, group="curation")


async def _copy_to_archive(screen: ConsoleScreen[Any], archiver: FileExporter, episode_ids: Sequence[str]) -> None:
    """Copy episodes of opened files, which stay, into a new archive in the working directory."""
    path = Path.cwd() / f"episodes-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip"
    screen.toast(f"archive: {_episodes(len(episode_ids))} …")
    with _failure_shown(screen):
        n_copied, unreadable = await archiver.archive(episode_ids, path)
        shown = sanitize_message(str(path), 300)
        copied = f"{_episodes(n_copied)} copied into {shown}; the opened files stay"
        left_out = [sanitize_message(f"✗ {n:,} left out: {reason}", 300) for reason, n in unreadable.most_common(3)]
        screen.toast("\n".join([copied, *left_out]), failed=bool(left_out))


@contextmanager
def _failure_shown(screen: ConsoleScreen[Any]) -> Iterator[None]:
    try:
        yield
    except StoreError as exc:
        screen.toast(sanitize_message(f"✗ {exc}", 400), failed=True)


def _episodes(n: int) -> str:
    return pluralize(n, "episode")
