"""Gymnasium environments as text environments, named ``gymnasium:<id>``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from runner.envs.base import DataLabel, EmbeddedEnvironment, Grammar, StepText, choice, command
from runner.errors import ConfigError, catch_foreign
from runner.types import CellRow, CellRun, Cells, Mode, Trajectory
from runner.types.cells import CellColor, CellFill
from runner.util.display_text import one_line

MAX_DRAWING_CHARS = 4000
"""Maximum length of a text rendering that is shown, in characters."""
MAX_ACTIONS = 100
MAX_NUMBERS = 64
"""Maximum count of numbers in an observation that is shown as text; images have more."""
_COLOR_CODE = re.compile(r"\x1b\[([0-9;]*)m")
_COLORS: tuple[CellColor, ...] = ("dim", "red", "green", "yellow", "blue", "purple", "cyan", "plain")
"""The colors of a terminal by the last digit of their codes."""

SuccessRule: TypeAlias = Literal["reward", "end", "limit"]
"""What counts as success: a positive reward, an end other than the step limit, or lasting until the step limit."""


class GymnasiumEnvironment(EmbeddedEnvironment):
    """Any Gymnasium id that has a text codec; task ``i`` is ``env.reset(seed=i)``.

    An observation lists the numbers of the observation space, with names where they are known, followed by the
    environment's text rendering if it has one. An action is one of the names or numbers that the first observation
    lists; an invalid text changes nothing. Gymnasium's step limits truncate the episode. ``mode`` has no effect, since
    AgentGym has no server for these environments.
    """

    n_tasks = 1_000_000
    data_label = DataLabel("gymnasium")
    packages: ClassVar[tuple[str, ...]] = ("gymnasium",)

    def __init__(self, *, id: str, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._codec = load_codec(id)
        self.grammar = self._codec.grammar
        self._actions = {name: self._codec.first_action + index for index, name in enumerate(self._codec.info.actions)}
        self._environment: Any = None
        self._drawing = ""

    @staticmethod
    def check(id: str) -> None:
        load_codec(id)

    @property
    def name(self) -> str:  # type: ignore[override]  # one class plays every id
        return self._codec.id

    def admissible_actions(self) -> list[str]:
        return list(self._actions)

    def success(self, trajectory: Trajectory) -> bool:
        if self._codec.info.goal == "reward":
            return super().success(trajectory)
        ended = bool(trajectory.timesteps) and trajectory.timesteps[-1].done
        return ended and self.truncated == (self._codec.info.goal == "limit")

    def cleanup(self) -> None:
        super().cleanup()
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def render_cells(self) -> Cells | None:
        return draw_text(self._drawing) if self._drawing else None

    def _reset(self, task_index: int) -> str:
        if self._environment is None:
            self._environment = self._codec.make()
        observation, _ = self._environment.reset(seed=task_index)
        info = self._codec.info
        return f"{info.task}\nActions: {', '.join(info.actions)}.\n{self._describe(observation)}"

    def _step(self, text: str) -> StepText:
        action = self._actions.get(text.strip())
        if action is None:
            return f"Invalid action. Expected {self.grammar.expected}.", 0.0, False
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        self.truncated = bool(truncated) and not terminated
        return self._describe(observation), float(reward), bool(terminated or truncated)

    def _describe(self, observation: object) -> str:
        text = self._codec.describe(observation)
        if not self._codec.has_text_rendering:
            return text
        self._drawing = str(self._environment.render())
        return f"{text}\n{_COLOR_CODE.sub('', self._drawing).strip()[:MAX_DRAWING_CHARS]}"


class EnvironmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Meaning of an environment's numbers, which Gymnasium explains only in its documentation.

    Attributes:
        bases: number of values of each digit, if the observation is one mixed-radix number; else empty.
    """

    task: str
    actions: tuple[str, ...]
    fields: tuple[str, ...] = ()
    bases: tuple[int, ...] = ()
    goal: SuccessRule = "reward"


_COMPASS = ("left", "down", "right", "up")
_LAKE = "Cross the frozen lake from S to G over F (ice); H is a hole and ends it. The ice may carry you sideways."

ENVIRONMENT_INFO: dict[str, EnvironmentInfo] = {
    "FrozenLake": EnvironmentInfo(task=_LAKE, actions=_COMPASS, fields=("row", "column"), bases=(4, 4)),
    "FrozenLake8x8": EnvironmentInfo(task=_LAKE, actions=_COMPASS, fields=("row", "column"), bases=(8, 8)),
    "CliffWalking": EnvironmentInfo(
        task="Walk from row 3, column 0 to row 3, column 11. Between them is a cliff: it costs 100 and leads back.",
        actions=("up", "right", "down", "left"),
        fields=("row", "column"),
        bases=(4, 12),
        goal="end",
    ),
    "Taxi": EnvironmentInfo(
        task="Pick the passenger up and drop them off. 0 is R, 1 is G, 2 is Y, 3 is B; passenger 4 sits in the taxi.",
        actions=("south", "north", "east", "west", "pick up", "drop off"),
        fields=("taxi row", "taxi column", "passenger", "destination"),
        bases=(5, 5, 5, 4),
    ),
    "Blackjack": EnvironmentInfo(
        task="Get nearer to 21 than the dealer, never above it. An ace is 1, or 11 where that is usable.",
        actions=("stick", "hit"),
        fields=("your sum", "dealer's card", "usable ace"),
    ),
    "CartPole": EnvironmentInfo(
        task="Keep the pole on the cart upright until the end.",
        actions=("push left", "push right"),
        fields=("cart position", "cart velocity", "pole angle", "pole velocity"),
        goal="limit",
    ),
    "MountainCar": EnvironmentInfo(
        task="Bring the car up the hill on the right, to position 0.5.",
        actions=("push left", "do nothing", "push right"),
        fields=("position", "velocity"),
        goal="end",
    ),
}
"""Gymnasium id without the version -> meaning of the environment's numbers."""


class TextCodec(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    info: EnvironmentInfo
    first_action: int
    has_text_rendering: bool
    grammar: Grammar

    def make(self) -> Any:  # noqa: ANN401 - Gymnasium's type
        return _make(self.id, render_text=self.has_text_rendering)

    def describe(self, observation: Any) -> str:  # noqa: ANN401 - a value of the observation space
        if self.info.bases:
            observation = split_digits(int(observation), self.info.bases)
        values = format_numbers(observation)
        if len(self.info.fields) == len(values):
            values = [f"{name} {number}" for name, number in zip(self.info.fields, values, strict=True)]
        return ", ".join(values)


@cache
def load_codec(env_id: str) -> TextCodec:
    """Raises ``ConfigError`` if Gymnasium cannot make the id, or its observations or actions have no short text."""
    environment = _make(env_id, render_text=False)
    observations, actions = environment.observation_space, environment.action_space
    count = count_numbers(observations)
    if count is None or count > MAX_NUMBERS:
        reason = f"has more than {MAX_NUMBERS} numbers, or values that are not numbers"
        raise _no_codec(env_id, f"the observation space {observations} {reason}")
    if type(actions).__name__ != "Discrete" or int(actions.n) > MAX_ACTIONS:
        raise _no_codec(env_id, f"the action space {actions} is not a choice of at most {MAX_ACTIONS} actions")
    default = EnvironmentInfo(task=f"Play {env_id}.", actions=tuple(map(str, range(int(actions.n)))))
    info = ENVIRONMENT_INFO.get(re.sub(r"-v\d+\Z", "", env_id), default)
    act = command("{action}", "Take one action.", {"action": choice(info.actions)}, name="act")
    environment.close()
    return TextCodec(
        id=env_id,
        info=info,
        first_action=int(actions.start),
        has_text_rendering="ansi" in (environment.metadata.get("render_modes") or ()),
        grammar=Grammar([act], expected=f"exactly one of: {', '.join(info.actions)}"),
    )


def _make(env_id: str, *, render_text: bool) -> Any:  # noqa: ANN401
    import gymnasium

    gymnasium.logger.min_level = gymnasium.logger.ERROR  # its colored warnings are for programmers
    errors: list[BaseException] = []
    with catch_foreign(errors.append):
        return gymnasium.make(env_id, disable_env_checker=True, render_mode="ansi" if render_text else None)
    reason = one_line(f"{type(errors[0]).__name__}: {errors[0]}").rstrip(".?")
    matches = difflib.get_close_matches(env_id, list(map(str, gymnasium.registry)), n=1, cutoff=0.6)
    command = "python -c 'import gymnasium; gymnasium.pprint_registry()'"
    hint = f" Did you mean gymnasium:{matches[0]}?" if matches else f" To list the registered ids: {command}"
    hint = "" if env_id in gymnasium.registry else hint
    raise ConfigError(f"Gymnasium cannot make {env_id!r}: {reason}.{hint}") from errors[0]


def _no_codec(env_id: str, reason: str) -> ConfigError:
    return ConfigError(
        f"gymnasium:{env_id} cannot be played as text: {one_line(reason)}. "
        "Write your own environment around it, see docs/build/environments.md"
    )


def count_numbers(space: Any) -> int | None:  # noqa: ANN401 - Gymnasium's types are an optional dependency
    """Return how many numbers a value of a Gymnasium space has; None if the value contains anything else."""
    match type(space).__name__:
        case "Discrete" | "MultiDiscrete" | "MultiBinary" | "Box":
            return math.prod(map(int, space.shape))
        case "Tuple" | "Dict" as kind:
            counts = [count_numbers(part) for part in (space.spaces if kind == "Tuple" else space.spaces.values())]
            return None if None in counts else sum(filter(None, counts))
    return None


def format_numbers(value: object) -> list[str]:
    """Return the numbers of a value as texts, in order: floats with three decimals, mapping entries with names."""
    if isinstance(value, Mapping):
        return [f"{name} {' '.join(format_numbers(part))}" for name, part in value.items()]
    if isinstance(value, tuple | list):
        return [text for part in value for text in format_numbers(part)]
    plain: Any = getattr(value, "tolist", lambda: value)()  # converts numpy arrays and scalars
    if isinstance(plain, list):
        return format_numbers(plain)
    return [f"{plain:.3f}" if isinstance(plain, float) else str(int(plain))]


def split_digits(value: int, bases: Sequence[int]) -> list[int]:
    """Split a mixed-radix number into its digits, such as a cell index into row and column; the units are last."""
    reversed_digits: list[int] = []
    for base in reversed(bases):
        value, digit = divmod(value, base)
        reversed_digits.append(digit)
    return reversed_digits[::-1]


def draw_text(drawing: str) -> Cells:
    style: tuple[CellColor, CellFill] = ("plain", "")
    rows: list[CellRow] = []
    for line in drawing[:MAX_DRAWING_CHARS].strip("\n").split("\n"):
        row: list[CellRun] = []
        for text, codes in _parts(line):
            if text:
                row.append(CellRun(text, *style))
            style = _styled(style, codes)
        rows.append(tuple(row))
    return Cells(rows)


def _parts(line: str) -> Iterator[tuple[str, str | None]]:
    start = 0
    for match in _COLOR_CODE.finditer(line):
        yield line[start : match.start()], match[1]
        start = match.end()
    yield line[start:], None


def _styled(style: tuple[CellColor, CellFill], codes: str | None) -> tuple[CellColor, CellFill]:
    for code in () if codes is None else [int(part[:3]) for part in codes.split(";") if part] or [0]:
        if code == 0:
            style = ("plain", "")
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style = (_COLORS[code % 10], style[1])
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style = (_COLORS[code % 10], "solid")
    return style
