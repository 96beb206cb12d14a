"""The titles of the live screen's panes, and what else it says in one line."""

from __future__ import annotations

from typing import Final

from agentgym_tui.presenters.cells import BADGE, Cell, Line
from agentgym_tui.presenters.model_answer import answer_parts
from agentgym_tui.presenters.number_format import quantity
from agentgym_tui.presenters.segments import BETWEEN, joined, told
from agentgym_tui.presenters.status_line import running_line
from agentgym_tui.presenters.step_rows import environment_text, episode_text
from agentgym_tui.presenters.text_width import cut, line_width
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.state.models import Episode
from agentgym_tui.state.run_store import Note, RunStore

_FOLLOWING: Final = Cell(own("following"), "dim")


def environments_title(store: RunStore, selected: str, width: int) -> list[Line]:
    """How many there are; what the selected one lacks, else of which profile they are."""
    env = store.envs.get(selected)
    number = quantity(len(store.envs)) if store.envs else own("")
    badge = [BETWEEN, BADGE] if any(map(environment_text, store.envs.values())) else []
    name = [*_titled("Environments", number), *badge]
    profile = next((node.profile for node in store.nodes.values() if node.profile), "")
    note = [Cell(line(profile, 40), "dim")] if profile else []
    if env is not None and env.cause:
        cause = join([line(env.name, 30), own(": "), told(env.cause)])
        note = [Cell(cut(cause, max(width - line_width(name) - 2, 0)), "warn")]
    return [spread(name, note, width)]


def steps_title(store: RunStore, episode: Episode | None, key: str, width: int) -> list[Line]:
    """What is watched; the key that goes to its newest step, "" where that is followed."""
    if episode is None:
        return [spread(running_line(store, None, width), [], width)]
    badge = [BADGE, BETWEEN] if episode_text(episode) else []
    note = [*badge, *(_left(key) or [_FOLLOWING])]
    return [spread(running_line(store, episode, max(width - line_width(note) - 2, 0)), note, width)]


def transcript_title(episode: Episode, index: int, key: str, width: int) -> list[Line]:
    """Which step is shown, who answered there and how fast; the key as above."""
    parts = answer_parts(episode, index)
    note = _left(key)
    room = max(width - line_width(note) - (2 if note else 0), 0)
    return [spread(joined([_titled("Transcript", own(f"step {index}")), *parts], room), note, width)]


def trace_title(n_spans: int, key: str, width: int) -> list[Line]:
    """How many spans there are; the key as above."""
    what = own(f"{quantity(n_spans)} spans" if n_spans else "no span is over yet")
    return [spread(_titled("Trace", what), _left(key), width)]


def rewards_title(env: str, width: int) -> list[Line]:
    """Whose rewards are shown."""
    return [spread(_titled("Rewards", line(env, 60)), [], width)]


def notice_line(note: Note | None, width: int) -> Line:
    """What happened last to the following of the bus."""
    if note is None:
        return []
    times = [Cell(own(f" ({quantity(note.n)})"), "dim")] if note.n > 1 else []
    return joined([[Cell(told(note.text), "warn"), *times]], width)


def spread(left: Line, right: Line, width: int) -> Line:
    """Two parts, the second one at the end of the line."""
    room = width - line_width(right)
    kept = joined([left], room)
    return [*kept, Cell(own(" " * max(room - line_width(kept), 0))), *right]


def _titled(name: str, what: Safe) -> list[Cell]:
    return [Cell(own(name), "head"), *([Cell(own(" · "), "dim"), Cell(what)] if what else [])]


def _left(key: str) -> list[Cell]:
    """That it is not followed, where a key would have it so."""
    return [Cell(own(f"not following ({key})"), "warn")] if key else []
