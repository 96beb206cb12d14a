"""Titles of the panes of the live screen, and the screen's notice line."""

from __future__ import annotations

from typing import Final

from agentgym_tui.presenters.answering_endpoint import answer_parts
from agentgym_tui.presenters.cells import Cell, Line, join_parts, line_width
from agentgym_tui.presenters.number_format import format_count
from agentgym_tui.presenters.status_line import episode_line
from agentgym_tui.presenters.text_width import cut
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import FeedNotice, RunStore

_FOLLOWING: Final = Cell("following", "dim")


def environments_title(store: RunStore, selected: str, width: int) -> list[Line]:
    """Return the title of the environments pane: the number of environments, and a note on the right.

    The note is the problem or the scenarios of the selected environment, or the profile if it has neither.
    """
    env = store.envs.get(selected)
    number = format_count(len(store.envs)) if store.envs else ""
    name = _title("Environments", number)
    profile = next((node.profile for node in store.nodes.values() if node.profile), "")
    note = [Cell(profile, "dim")] if profile else []
    if env is not None and (detail := env.cause or env.note):
        text = f"{env.name}: {masked_line(detail)}"
        note = [Cell(cut(text, max(width - line_width(name) - 2, 0)), "warn" if env.cause else "dim")]
    return [justify(name, note, width)]


def steps_title(store: RunStore, episode: Episode | None, key: str, width: int) -> list[Line]:
    """Return the title of the steps pane: a description of the watched episode.

    Args:
        store: the run state.
        episode: the watched episode; None if no episode is shown.
        key: label of the key that goes to the newest step; "" while the pane follows the newest step.
        width: columns of the pane.
    """
    if episode is None:
        return [justify(episode_line(store, None, width), [], width)]
    note = _not_following(key) or [_FOLLOWING]
    return [justify(episode_line(store, episode, max(width - line_width(note) - 2, 0)), note, width)]


def transcript_title(episode: Episode, index: int, key: str, width: int, waiting_s: float | None = None) -> list[Line]:
    """Return the title of the transcript pane: the shown step and a description of its answer.

    Args:
        episode: the watched episode.
        index: index of the shown step.
        key: label of the key that goes to the end of the transcript; "" while the pane follows the end.
        width: columns of the pane.
        waiting_s: for how many seconds the endpoint of the streaming answer has sent nothing; None if not known.
    """
    parts = answer_parts(episode, index, waiting_s)
    note = _not_following(key)
    room = max(width - line_width(note) - (2 if note else 0), 0)
    return [justify(join_parts([_title("Transcript", f"step {index}"), *parts], room), note, width)]


def trace_title(n_spans: int, key: str, width: int) -> list[Line]:
    """Return the title of the trace pane: the number of spans.

    Args:
        n_spans: the number of finished spans.
        key: label of the key that goes to the last span; "" while the pane follows the last span.
        width: columns of the pane.
    """
    text = f"{format_count(n_spans)} spans" if n_spans else "no finished spans yet"
    return [justify(_title("Trace", text), _not_following(key), width)]


def rewards_title(env: str, width: int) -> list[Line]:
    """Return the title of the rewards pane: the environment whose rewards are shown."""
    return [justify(_title("Rewards", env), [], width)]


def notice_line(notice: FeedNotice | None, width: int) -> Line:
    """Return the latest notice about the bus subscription; an empty line if there is none."""
    if notice is None:
        return []
    times = [Cell(f" ({format_count(notice.n)})", "dim")] if notice.n > 1 else []
    return join_parts([[Cell(masked_line(notice.text), "warn"), *times]], width)


def justify(left: Line, right: Line, width: int) -> Line:
    """Return a line of ``width`` columns with ``left`` at the start and ``right`` at the end.

    ``left`` is cut if there is not enough space.
    """
    room = width - line_width(right)
    shown = join_parts([left], room)
    return [*shown, Cell(" " * max(room - line_width(shown), 0)), *right]


def _title(name: str, text: str) -> list[Cell]:
    return [Cell(name, "head"), *([Cell(" · ", "dim"), Cell(text)] if text else [])]


def _not_following(key: str) -> list[Cell]:
    return [Cell(f"not following ({key})", "warn")] if key else []
