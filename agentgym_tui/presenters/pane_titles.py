"""The titles of the live screen's panes, and what else it says in one line."""

from __future__ import annotations

from typing import Final

from agentgym_tui.presenters.cells import SEPARATOR, UNSAFE_BADGE, Cell, Line, join_parts, line_width, masked_line
from agentgym_tui.presenters.environment_rows import unsafe_environment_text
from agentgym_tui.presenters.model_answer import answer_parts
from agentgym_tui.presenters.number_format import format_count
from agentgym_tui.presenters.status_line import episode_line
from agentgym_tui.presenters.step_rows import unsafe_episode_text
from agentgym_tui.presenters.text_width import cut
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted
from agentgym_tui.state.models import Episode
from agentgym_tui.state.notices import FeedNotice
from agentgym_tui.state.run_store import RunStore

_FOLLOWING: Final = Cell(trusted("following"), "dim")


def environments_title(store: RunStore, selected: str, width: int) -> list[Line]:
    """How many there are; what the selected one lacks, else of which profile they are."""
    env = store.envs.get(selected)
    number = format_count(len(store.envs)) if store.envs else trusted("")
    badge = [SEPARATOR, UNSAFE_BADGE] if any(map(unsafe_environment_text, store.envs.values())) else []
    name = [*_title("Environments", number), *badge]
    profile = next((node.profile for node in store.nodes.values() if node.profile), "")
    note = [Cell(sanitize_line(profile, 40), "dim")] if profile else []
    if env is not None and env.cause:
        cause = join([sanitize_line(env.name, 30), trusted(": "), masked_line(env.cause)])
        note = [Cell(cut(cause, max(width - line_width(name) - 2, 0)), "warn")]
    return [justify(name, note, width)]


def steps_title(store: RunStore, episode: Episode | None, key: str, width: int) -> list[Line]:
    """What is watched; the key that goes to its newest step, "" where that is followed."""
    if episode is None:
        return [justify(episode_line(store, None, width), [], width)]
    badge = [UNSAFE_BADGE, SEPARATOR] if unsafe_episode_text(episode) else []
    note = [*badge, *(_not_following(key) or [_FOLLOWING])]
    return [justify(episode_line(store, episode, max(width - line_width(note) - 2, 0)), note, width)]


def transcript_title(episode: Episode, index: int, key: str, width: int) -> list[Line]:
    """Which step is shown, who answered there and how fast; the key as above."""
    parts = answer_parts(episode, index)
    note = _not_following(key)
    room = max(width - line_width(note) - (2 if note else 0), 0)
    return [justify(join_parts([_title("Transcript", trusted(f"step {index}")), *parts], room), note, width)]


def trace_title(n_spans: int, key: str, width: int) -> list[Line]:
    """How many spans there are; the key as above."""
    what = trusted(f"{format_count(n_spans)} spans" if n_spans else "no span is over yet")
    return [justify(_title("Trace", what), _not_following(key), width)]


def rewards_title(env: str, width: int) -> list[Line]:
    """Whose rewards are shown."""
    return [justify(_title("Rewards", sanitize_line(env, 60)), [], width)]


def notice_line(note: FeedNotice | None, width: int) -> Line:
    """What happened last to the following of the bus."""
    if note is None:
        return []
    times = [Cell(trusted(f" ({format_count(note.n)})"), "dim")] if note.n > 1 else []
    return join_parts([[Cell(masked_line(note.text), "warn"), *times]], width)


def justify(left: Line, right: Line, width: int) -> Line:
    """Two parts, the second one at the end of the line."""
    room = width - line_width(right)
    kept = join_parts([left], room)
    return [*kept, Cell(trusted(" " * max(room - line_width(kept), 0))), *right]


def _title(name: str, what: SafeText) -> list[Cell]:
    return [Cell(trusted(name), "head"), *([Cell(trusted(" · "), "dim"), Cell(what)] if what else [])]


def _not_following(key: str) -> list[Cell]:
    """That it is not followed, where a key would have it so."""
    return [Cell(trusted(f"not following ({key})"), "warn")] if key else []
