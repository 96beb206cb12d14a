"""Archiving, deleting and exporting of episodes: a confirmation with number and size, and what was done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_tui.commands.keymap import keymap_of
from agentgym_tui.commands.registry import CURATION, EXPORT
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import format_size, pluralize
from agentgym_tui.safe_text import SafeText, fill_in, join, sanitize_message, trusted
from agentgym_tui.screens.base import ConsoleScreen
from agentgym_tui.screens.dialogs.confirm import ConfirmDialog
from agentgym_tui.services.timers import start_worker
from agentgym_tui.sessions.protocols import Session
from runner.errors import StoreError

if TYPE_CHECKING:
    from agentgym_tui.sessions.curation import Curation
    from agentgym_tui.sessions.file_export import FileExporter
    from runner.node.curation import CurationAction, CurationPlan, CurationReport


class CurateDialog(ConfirmDialog):
    """A dialog before episodes are archived or deleted.

    Args:
        plan: what would be done.
        undo_key: label of the key that brings the episodes back.
    """

    def __init__(self, plan: CurationPlan, undo_key: str) -> None:
        self._plan, self._undo_key = plan, undo_key
        super().__init__(trusted(f"{plan.action.capitalize()} {_episodes(plan.n_episodes)}?"), default="nothing")

    def question(self) -> Sequence[Line]:
        """Return the number and size of the episodes, what stays and why, and how long it can be undone."""
        plan = self._plan
        about = trusted("about " if plan.action == "archive" else "")
        size = join([about, format_size(plan.n_bytes), _when(plan.action)])
        undo = fill_in("{} brings them back until the console ends", sanitize_message(self._undo_key, 20))
        head: Line = [Cell(_episodes(plan.n_episodes), "head"), Cell(fill_in(", frees {}", size))]
        return [head, *([Cell(text, "warn")] for text in kept_texts(plan.kept)), [Cell(undo, "dim")]]


class ArchiveDialog(CurateDialog):
    """The dialog before episodes are archived."""

    SCOPE = "archive"


class DeleteDialog(CurateDialog):
    """The dialog before episodes are deleted."""

    SCOPE = "delete"


def kept_texts(kept: Mapping[str, int]) -> list[SafeText]:
    """Return a line for each reason for which episodes stay as they are."""
    return [trusted(f"{n:,} {'stays' if n == 1 else 'stay'}: {reason}") for reason, n in kept.items()]


def report_text(report: CurationReport, undo_key: str) -> SafeText:
    """Return what was done, what was left as it is, and the key that undoes it."""
    done = {"archive": "archived", "delete": "deleted"}[report.action]
    if report.is_undone:
        verb = "was" if report.n_episodes == 1 else "were"
        parts = [trusted(f"{_episodes(report.n_episodes)} brought back, which {verb} {done}")]
    else:
        parts = [trusted(f"{_episodes(report.n_episodes)} {done}")]
        if report.n_episodes:
            parts[0] = fill_in("{}, {} freed{}", parts[0], format_size(max(report.n_bytes, 0)), _when(report.action))
            parts.append(fill_in("{} undoes it", sanitize_message(undo_key, 20)))
        parts += kept_texts(report.kept)
    parts += [sanitize_message(f"✗ {problem}", 300) for problem in report.problems[:3]]
    return join(parts, "\n")


def curate(
    screen: ConsoleScreen[Any],
    session: Session,
    action: CurationAction,
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
    if (curation := _curation(screen, session)) is None:
        return
    if not episode_ids:
        screen.toast(trusted(f"no episode is selected to {action}"), failed=True)
        return

    async def plan() -> None:
        with _failure_shown(screen):
            planned = await curation.plan(action, episode_ids)
            if not planned.batches:
                screen.toast(join([trusted(f"nothing to {action}"), *kept_texts(planned.kept)], "\n"), failed=True)
            elif screen.is_current:
                dialog = ArchiveDialog if action == "archive" else DeleteDialog
                screen.app.push_screen(dialog(planned, _undo_key(screen)), lambda answer: answered(answer, planned))

    def answered(answer: str | None, planned: CurationPlan) -> None:
        if answer == action:
            screen.toast(trusted(f"{action}: {_episodes(planned.n_episodes)} …"))
            start_worker(screen, partial(_run, screen, partial(curation.apply, planned), on_done), group="curation")

    start_worker(screen, plan, group="curation")


def undo(screen: ConsoleScreen[Any], session: Session, on_done: Callable[[], None]) -> None:
    """Bring back the episodes that this console has archived or deleted last, and show which."""
    if (curation := _curation(screen, session)) is not None:
        start_worker(screen, partial(_run, screen, curation.undo, on_done), group="curation")


def export(screen: ConsoleScreen[Any], session: Session, episode_ids: Sequence[str], query: str) -> None:
    """Open the form that writes episodes in a format; ``query``: that of the list, for the manifest."""
    from agentgym_tui.screens.episodes.export_form import ExportForm
    from runner.formats.format import writable_formats  # slow to import

    if (exporter := session.exporter) is None:
        screen.toast(EXPORT.reason(session), failed=True)
        return
    if not episode_ids:
        screen.toast(trusted("no stored episode is selected to export"), failed=True)
        return

    async def open_form() -> None:
        formats = await asyncio.to_thread(writable_formats)
        if screen.is_current:
            screen.app.push_screen(ExportForm(exporter, episode_ids, [*formats.values()], query))

    start_worker(screen, open_form, group="curation")


async def _copy_to_archive(screen: ConsoleScreen[Any], archiver: FileExporter, episode_ids: Sequence[str]) -> None:
    """Copy episodes of opened files, which stay, into a new archive in the working directory."""
    path = Path.cwd() / f"episodes-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip"
    screen.toast(trusted(f"archive: {_episodes(len(episode_ids))} …"))
    with _failure_shown(screen):
        n_copied, unreadable = await archiver.archive(episode_ids, path)
        shown = sanitize_message(str(path), 300)
        copied = fill_in("{} copied into {}; the opened files stay", _episodes(n_copied), shown)
        left_out = [sanitize_message(f"✗ {n:,} left out: {reason}", 300) for reason, n in unreadable.most_common(3)]
        screen.toast(join([copied, *left_out], "\n"), failed=bool(left_out))


async def _run(
    screen: ConsoleScreen[Any], work: Callable[[], Awaitable[CurationReport | None]], on_done: Callable[[], None]
) -> None:
    with _failure_shown(screen):
        if (report := await work()) is None:
            screen.toast(trusted("nothing to undo: this console has archived and deleted nothing"), failed=True)
        else:
            screen.toast(report_text(report, _undo_key(screen)), failed=bool(report.problems))
            on_done()


@contextmanager
def _failure_shown(screen: ConsoleScreen[Any]) -> Iterator[None]:
    try:
        yield
    except StoreError as exc:
        screen.toast(sanitize_message(f"✗ {exc}", 400), failed=True)


def _curation(screen: ConsoleScreen[Any], session: Session) -> Curation | None:
    if session.curation is None:
        screen.toast(CURATION.reason(session), failed=True)
    return session.curation


def _undo_key(screen: ConsoleScreen[Any]) -> str:
    return keymap_of(screen.app).key("episodes.undo")


def _when(action: CurationAction) -> SafeText:
    return trusted(" when the console ends" if action == "delete" else "")


def _episodes(n: int) -> SafeText:
    return pluralize(n, "episode")
