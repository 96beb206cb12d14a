"""What the Live screen shows around an episode: environments, titles of panes, rewards, and the welcome text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from agentgym_tui.presenters.cells import (
    NO_VALUE,
    SEPARATOR,
    Cell,
    Field,
    Line,
    Listing,
    ListingRows,
    Tone,
    count_cell,
    environment_cell,
    join_parts,
    key_line,
    line_width,
    wrap_text,
)
from agentgym_tui.presenters.episode_facts import answer_parts
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_percent,
    format_reward,
    format_share,
    pluralize,
)
from agentgym_tui.presenters.status_line import LINK_STATES, OUTCOMES, episode_line
from agentgym_tui.safe_text import masked_line, masked_rows
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.query import Sorting
from agentgym_tui.state.run_store import FeedNotice, RunStore
from agentgym_tui.state.servers import EnvironmentState, RewardPoint, counted_points
from runner.types import UNKNOWN_OUTCOME

NAME_WIDTH: Final = 12
MAX_DETAIL: Final = 160  # characters shown of the cause of a problem, or of a note
MAX_AGENT: Final = 9  # largest width of the name of a baseline agent behind its success rate, in cells
_HEALTH: Final[dict[str, tuple[str, Tone]]] = {
    "up": ("● up", "good"),
    "embedded": ("● embedded", "good"),
    "slow": ("◐ slow", "warn"),
    "wrong": ("✗ wrong", "bad"),
    "down": ("✗ down", "bad"),
    "unknown": ("? unknown", "warn"),
}
_MEMORY: Final = re.compile(r"\D{0,3}(\d{1,9}(?:\.\d{1,3})?) ?([KMGT]?)i?B?", re.ASCII)


def _memory(memory: str) -> float | None:
    size = _MEMORY.match(memory)  # free text of the profile, such as "110 MiB"
    return float(size[1]) * 1024 ** " KMGT".index(size[2] or " ") if size else None


def no_environments(store: RunStore) -> str:
    """Return why there is no environment to run; a node that has answered lists at least its package's agents."""
    return "the node's profile has no environments; add them" if store.agents else "environments not loaded yet"


def health_label(status: str | None) -> tuple[str, Tone]:
    return _HEALTH.get(status or "", _HEALTH["unknown"])


def _health(env: EnvironmentState) -> Cell:
    if env.status is None:
        return Cell(f"{UNKNOWN} not checked", "dim")
    text, tone = health_label(env.status)
    detail = env.cause or env.note
    return Cell(f"{text}: {masked_line(detail, MAX_DETAIL)}" if detail else text, tone)


def _success(env: EnvironmentState) -> Cell:
    if not env.n_rated:
        return Cell("unscored", "warn") if env.unscored else NO_VALUE
    rate = format_share(env.n_success, env.n_rated)
    if env.baseline is not None:
        return Cell(f"{rate} {masked_line(env.baseline, MAX_AGENT)}", "dim")
    return Cell(f"{rate} mixed" if env.n_players > 1 else f"{rate} of {env.n_rated}")


# fmt: off
_ENVIRONMENTS: Final = Listing[EnvironmentState](lambda env: env.name, lambda env: env.name, [
    Field("environment", NAME_WIDTH, lambda env: env.name, cell=lambda env: environment_cell(env.name), most=28),
    Field("health", None, lambda env: env.status, cell=_health, min_width=24, most=60),
    Field("success", 14, lambda env: env.n_success / env.n_rated if env.n_rated else None, cell=_success,
          rank=1, most=18),
    Field("errors", 6, lambda env: env.n_errors or None, cell=lambda env: count_cell(env.n_errors, "bad"),
          right=True, rank=2),
    Field("running", 7, lambda env: env.n_running or None, cell=lambda env: count_cell(env.n_running, "accent"),
          right=True, rank=3),
    Field("reward", 8, lambda env: env.last_reward, cell=lambda env: Cell(format_reward(env.last_reward)),
          right=True, rank=4),
    Field("latency", 7, lambda env: env.latency_s, cell=lambda env: Cell(format_duration(env.latency_s)),
          right=True, rank=5),
    Field("transport", 9, lambda env: env.transport, tone="dim", rank=6),
    Field("memory", 8, lambda env: _memory(env.ram), cell=lambda env: Cell(env.ram or UNKNOWN, "dim"),
          right=True, rank=7),
    Field("tier", 11, lambda env: env.tier, tone="dim", rank=8),
])
# fmt: on
ENV_COLUMNS: Final = _ENVIRONMENTS.columns


class EnvironmentRows(ListingRows[EnvironmentState]):
    """Environments as rows of ``ENV_COLUMNS``; the key of a row is the environment's name."""

    def __init__(self, store: RunStore, sorting: Sorting | None = None) -> None:
        super().__init__(_ENVIRONMENTS, _ENVIRONMENTS.rows())
        self.rows.set_rows(list(store.envs.values()))
        self.rows.sort(sorting)


# In the titles of the panes, ``key`` is the key that goes to the end of a pane's list, "" while it follows it.


def environments_title(store: RunStore, selected: str, width: int) -> Line:
    """Return the number of environments, and the problem or note of the selected one, else the profile."""
    env = store.envs.get(selected)
    name = _title("Environments", format_count(len(store.envs)) if store.envs else "")
    note = [Cell(node.profile, "dim") for node in store.nodes.values() if node.profile][:1]
    if env is not None and (detail := env.cause or env.note):
        text = f"{env.name}: {masked_line(detail)}"
        note = [Cell(text, "warn" if env.cause else "dim").cut(max(width - line_width(name) - 2, 0))]
    return justify(name, note, width)


def steps_title(store: RunStore, episode: Episode | None, key: str, width: int, open_key: str = "") -> Line:
    """Describe the episode and whether its steps are followed; ``open_key`` opens the last one of an idle node."""
    following = [Cell(f"{open_key} here opens it" if open_key else "following", "dim")]
    note = (_not_following(key) or following) if episode else []
    last = [Cell("last episode", "accent"), SEPARATOR] if open_key else []
    room = max(width - line_width([*last, *note]) - 2 * bool(note), 0)
    return justify([*last, *episode_line(store, episode, room)], note, width)


def is_idle(store: RunStore, episode: Episode | None) -> bool:
    """Return whether ``episode`` has ended and no batch runs or waits."""
    batches = store.batch_registry
    return episode is not None and not episode.running and batches.active() is None and not batches.n_waiting


def transcript_title(episode: Episode, index: int, key: str, width: int, waiting_s: float | None = None) -> Line:
    """Return the index of the shown step and a description of its answer; ``waiting_s`` as in ``streaming_parts``."""
    note = _not_following(key)
    room = max(width - line_width(note) - 2 * bool(note), 0)
    parts = [_title("Transcript", f"step {index}"), *answer_parts(episode, index, waiting_s)]
    return justify(join_parts(parts, room), note, width)


def trace_title(n_spans: int, key: str, width: int) -> Line:
    text = f"{format_count(n_spans)} spans" if n_spans else "no finished spans yet"
    return justify(_title("Trace", text), _not_following(key), width)


def rewards_title(env: str, width: int) -> Line:
    return justify(_title("Rewards", env), [], width)


def notice_line(notice: FeedNotice | None, width: int) -> Line:
    if notice is None:
        return []
    times = f" ({format_count(notice.n)})" if notice.n > 1 else ""
    return join_parts([[Cell(masked_line(notice.text), "warn"), Cell(times, "dim")]], width)


def justify(left: Line, right: Line, width: int) -> Line:
    """Return a line of ``width`` columns with ``left``, cut if need be, at the start and ``right`` at the end."""
    return [*fit_line(left, width - line_width(right)), *right]


def fit_line(line: Line, width: int) -> Line:
    shown = join_parts([line], width)
    return [*shown, Cell(" " * max(width - line_width(shown), 0))]


def _title(name: str, text: str) -> list[Cell]:
    return [Cell(name, "head"), *([SEPARATOR, Cell(text)] if text else [])]


def _not_following(key: str) -> list[Cell]:
    return [Cell(f"not following ({key})", "warn")] if key else []


# The plot of the rewards and the moving success rate of an environment's newest episodes.

SUCCESS_RATE_WINDOW: Final = 20  # number of episodes that the moving success rate covers
MAX_PLAYER: Final = 20  # largest width of the name of a baseline agent in the legend, in cells
MAX_REWARD_ROWS: Final = 5  # number of episodes that have a row each; more have a column each
_LABEL_WIDTH: Final = 8
_SUCCESS: Final[dict[bool | None, tuple[str, Tone]]] = {
    True: OUTCOMES["success"],
    False: ("✗ no success", "bad"),
    None: OUTCOMES[UNKNOWN_OUTCOME],
}
_SUCCESS_WIDTH: Final = 13
_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def column_chart(values: Sequence[float], width: int, height: int, low: float, high: float) -> list[str]:
    """Draw the newest ``width`` values, the newest one on the right, as columns between ``low`` and ``high``.

    Every column is at least an eighth of a line high, so that each episode is visible. Returns ``height`` lines from
    top to bottom; no lines if ``width`` or ``height`` is less than 1.
    """
    if width < 1 or height < 1:
        return []
    span = high / 2 - low / 2  # halves: the difference of the limits may overflow
    shares = [(value / 2 - low / 2) / span if span > 0 else 0.0 for value in values[-width:]]
    levels = [max(1, min(round(share * height * 8), height * 8)) for share in shares]
    below = 8 * (height - 1)
    filled = " " * below + _EIGHTHS + _EIGHTHS[-1] * below
    return ["".join([filled[level + 8 * row] for level in levels]) for row in range(height)]


def sparkline(values: Sequence[float | None], width: int, full: float | None = None) -> str:
    """Return the newest values as ``width`` columns, the newest at the right; a blank where a value was not known."""
    known = [max(value, 0.0) for value in values[-width:] if value is not None and math.isfinite(value)]
    if width < 1 or not known:
        return ""
    high = max(full or 0.0, *known) or 1.0
    columns = iter(column_chart(known, len(known), 1, 0.0, high)[0])
    return "".join(" " if each is None or not math.isfinite(each) else next(columns) for each in values[-width:])


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of a plot, which include 0 and 1."""
    return min(0.0, *values, 0.0), max(1.0, *values, 1.0)


def moving_success_rate(successes: Sequence[bool], window: int) -> list[float]:
    """Return for each episode the rate of the ``window`` episodes that end with it."""
    recent = [successes[max(end - window, 0) : end] for end in range(1, len(successes) + 1)]
    return [sum(each) / len(each) for each in recent]


def reward_lines(points: Sequence[RewardPoint], width: int, height: int) -> list[Line]:
    """Show the rewards of the newest episodes, in rows if they are few, else plotted, above a legend."""
    counted = [point for point in counted_points(points) if point.error or point.reward is not None]
    room = width - _LABEL_WIDTH
    shown = counted[-max(room, 1) :]
    if not shown or height < 1 or room <= 0:
        return [join_parts([[Cell("no scored episodes yet", "dim")]], width)][:height]
    successes = [point.success for point in shown if not point.error and point.success is not None]
    if len(shown) <= MAX_REWARD_ROWS:
        lines = _reward_rows(shown, room)[-max(height - 1, 1) :]
    else:
        lines = _reward_columns(shown, successes, room, height)
    player = "mixed" if len({(point.agent, point.model) for point in shown}) > 1 else ""
    if shown[-1].model is None:
        player = masked_line(shown[-1].agent, MAX_PLAYER)
    count = pluralize(len(shown), "episode") if len(shown) == len(counted) else f"newest {len(shown)}"
    newest = successes[-SUCCESS_RATE_WINDOW:]
    rate = f"success {format_share(sum(newest), len(newest))} of last {len(newest)}" if newest else "success unknown"
    n_errors = sum(point.error for point in shown)
    errors = [Cell(f"! {pluralize(n_errors, 'error')}", "bad")] if n_errors else []
    legend = [[Cell(f"{count} · {player}" if player else count, "dim")], [Cell(rate)], errors]
    return [*lines, join_parts(legend, width)][:height]


def _reward_rows(points: Sequence[RewardPoint], room: int) -> list[Line]:
    rewards = [_plotted(point) for point in points]
    low, high = value_range(rewards)
    longest = max(room - _SUCCESS_WIDTH, 0)
    lines: list[Line] = []
    for point, reward in zip(points, rewards, strict=True):
        text, tone = OUTCOMES["error"] if point.error else _SUCCESS[point.success]
        bar = "█" * round((reward / 2 - low / 2) / (high / 2 - low / 2) * longest) or "▏"[:longest]
        label, column = _labeled("" if point.error else format_reward(reward), "" if point.error else bar, "accent")
        lines.append([label, Cell(f"{text:<{_SUCCESS_WIDTH}}"[:room], tone), column])
    return lines


def _reward_columns(points: Sequence[RewardPoint], successes: Sequence[bool], room: int, height: int) -> list[Line]:
    """Plot rewards above the signs of failures and errors, if there is room for those, and the moving success rate."""
    rewards, has_signs = [_plotted(point) for point in points], height > 4
    low, high = value_range(rewards)
    columns = column_chart(rewards, room, max(height - 2 - has_signs, 1), low, high)
    labels = [format_reward(high), *[""] * (len(columns) - 2), format_reward(low)][: len(columns)]
    lines: list[Line] = [_labeled(label, column, "accent") for label, column in zip(labels, columns, strict=True)]
    if has_signs:
        signs = ("!" if point.error else "✗" if point.success is False else " " for point in points)
        lines.append(_labeled("", "".join(signs), "bad"))
    if rates := moving_success_rate(successes, SUCCESS_RATE_WINDOW):
        left = iter(rates)
        aligned = [None if point.error or point.success is None else next(left) for point in points]
        lines.append(_labeled(format_percent(100 * rates[-1]), sparkline(aligned, room, 1.0), "good"))
    return lines


def _plotted(point: RewardPoint) -> float:
    return 0.0 if point.error or point.reward is None else point.reward


def _labeled(label: str, columns: str, tone: Tone) -> list[Cell]:
    return [Cell(f"{label[: _LABEL_WIDTH - 1]:>{_LABEL_WIDTH - 1}} ", "dim"), Cell(columns, tone)]


# The text shown while there is no episode to watch: the keys to press, and what is missing to run an episode.

KEYS: Final = (
    ("run.selected", "run the selected environment once"),
    ("run.form", "choose what to run and how"),
    ("run.battery", "run all environments of a tier"),
)
"""Command ids and help texts, copied from ``commands.keymap``: importing that module would import Textual."""
READ_ONLY_KEYS: Final = (
    ("app.episodes", "stored and running episodes"),
    ("app.help", "show the keys of this screen or dialog"),
    ("app.quit", "quit; asks first if episodes are running"),
)
BUS_KEYS: Final = (READ_ONLY_KEYS[0], ("app.events", "all bus messages"), READ_ONLY_KEYS[1])
_NO_MODEL: Final = "choose the oracle agent: no model needed · your own model: "
_WATCH_STEPS: Final = (
    ("ssh -NL PORT:127.0.0.1:PORT HOST", "PORT of `agentgym-runner nats-info` there"),
    ("NATS_USER, NATS_PASSWORD", "from its credential file, or of your site's broker"),
    ("agentgym-tui watch --nats URL", "docs/run/many-machines.md has more"),
)
"""What to do where a bus cannot be reached, and the effect."""
MAX_ENVS, MAX_MODELS = 12, 4
MAX_ROWS: Final = 12  # rows of one missing item or reason


class MissingItem(NamedTuple):
    """Something that is missing to run an episode, and its remedy: the key or the command, and its effect."""

    text: str
    command: str = ""
    effect: str = ""
    tone: Tone = "warn"


def welcome_lines(
    store: RunStore, width: int, key: Callable[[str], str], read_only: str = "", *, is_brief: bool = False
) -> list[Line]:
    """Return the lines shown while nothing runs; ``read_only``: why no run can be started, or ""."""
    keys = KEYS if not read_only else READ_ONLY_KEYS if store.link.status == "none" else BUS_KEYS
    intro: list[Line] = [key_line(key(id), help_text) for id, help_text in keys]
    if read_only:
        intro += [[Cell(row, "dim")] for row in wrap_text(masked_line(read_only), width, MAX_ROWS)]
    items = [*_link_items(store, key, read_only), *_missing_items(store, key, read_only)]
    rows = [row for each in items for row in _item_lines(each, width)]
    heading, gap = ([], []) if is_brief or not items else ([[Cell("Missing", "head")]], [()])
    return [*heading, *rows, *gap, *intro] if store.link.status == "failed" else [*intro, *gap, *heading, *rows]


def beside(left: Sequence[Line], right: Sequence[Line], width: int) -> list[Line]:
    columns = [[fit_line(line, width // 2) for line in lines] for lines in (left, right)]
    blank = fit_line((), width // 2)
    return [[*first, *second] for first, second in zip_longest(*columns, fillvalue=blank)]


def screen_lines(screens: Sequence[tuple[str, str]]) -> list[Line]:
    return [[Cell("Screens", "head")], *(key_line(key, help_text) for key, help_text in screens)]


def welcome_title(store: RunStore, key: Callable[[str], str], read_only: str, width: int) -> Line:
    return justify(_title("Welcome", _headline(store, key, read_only)), [], width)


def _headline(store: RunStore, key: Callable[[str], str], read_only: str) -> str:
    if store.n_stored or store.episodes:  # the stored ones are counted only at the start
        n = pluralize(store.n_stored or 0, "stored episode")
        return f"{key('app.episodes')} lists {'all episodes' if store.episodes else n}"
    unknown = "No messages yet" if read_only else "Nothing is running yet"
    return unknown if store.n_stored is None else "Nothing has been run yet"


def _link_items(store: RunStore, key: Callable[[str], str], read_only: str) -> Iterator[MissingItem]:
    status = store.link.status
    if status in ("connected", "none"):
        return
    text, tone = LINK_STATES[status]
    problem = MissingItem(f"{text}{_cause_suffix(store.link.cause)}", tone=tone)
    is_cut = status in ("failed", "disconnected")
    if is_cut and not read_only:
        effect = "retries" if status == "failed" else "restarts the node"
        problem = problem._replace(command=key("node.start"), effect=effect)
    yield problem
    if is_cut and read_only:
        yield from (MissingItem("", step, effect) for step, effect in _WATCH_STEPS)


def _missing_items(store: RunStore, key: Callable[[str], str], read_only: str) -> Iterator[MissingItem]:
    """Yield the models that do not answer, up to the first one that does, then environments: there are more of them."""
    oracle = ("", "") if read_only else (key("run.form"), f"{_NO_MODEL}{key('model.form')}")
    for name, endpoint in [*store.endpoints.items()][:MAX_MODELS]:
        if endpoint.is_answering:
            break
        hint = endpoint.hint if endpoint.status == "wrong" else None
        causes = _cause_suffix(endpoint.cause or endpoint.failure) + _cause_suffix(hint)
        yield MissingItem(f"model {masked_line(name, 60)}{causes}", *oracle)
    if store.nodes and not store.endpoints and not read_only:
        yield MissingItem("no model checked yet", *oracle)
    by_cause: dict[str, list[str]] = {}
    for env in [env for env in store.envs.values() if env.status in ("down", "wrong")][:MAX_ENVS]:
        by_cause.setdefault(_cause_suffix(env.cause or env.status), []).append(masked_line(env.name))
    for cause, names in by_cause.items():
        yield MissingItem(f"{', '.join(names)}{cause}", "agentgym-runner --list-envs")


def _cause_suffix(cause: str | None) -> str:
    return f": {masked_rows(cause)}" if cause else ""


def _item_lines(missing: MissingItem, width: int) -> list[Line]:
    """Return the text of a missing item, with the command on the last line if it fits, else on an additional line."""
    rows: list[Line] = [[Cell("  "), Cell(row, missing.tone)] for row in wrap_text(missing.text, width - 2, MAX_ROWS)]
    if missing.command:
        command = [Cell("  → ", "dim"), Cell(missing.command, "accent"), Cell("  ")]
        indent = line_width(command) + 2
        effect, *more = wrap_text(missing.effect, max(width - indent, 10), MAX_ROWS) or [""]
        command.append(Cell(effect, "dim"))
        fits = bool(rows) and not more and line_width([*rows[-1], *command]) <= width
        rows[len(rows) - fits :] = [[*(rows[-1] if fits else [Cell("  ")]), *command]]
        rows += [[Cell(" " * indent), Cell(row, "dim")] for row in more]
    return rows
