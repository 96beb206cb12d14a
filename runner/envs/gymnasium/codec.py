"""How an environment of Gymnasium is told in text: what its numbers and actions mean, and what counts as success."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec

from runner.envs.grammar import CommandPattern, Grammar
from runner.errors import ConfigError, catch_foreign
from runner.util.text import one_line

MAX_ACTIONS = 100

SuccessRule: TypeAlias = Literal["reward", "end", "limit"]
"""What success is: a reward above 0, the environment's own end, or to last until its step limit."""


class EnvironmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an id means, where Gymnasium has it in pictures and documents only.

    Attributes:
        task: what to do, for the agent.
        fields: names of the observation's numbers, in order.
        bases: where the observation is one number that stands for several: how many values each of those has.
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
"""By id without its version."""


class TextCodec(msgspec.Struct, frozen=True, kw_only=True):
    """An id that can be played as text.

    Attributes:
        first_action: the number of the first action.
        drawn: whether the environment draws itself in text.
    """

    id: str
    known: EnvironmentInfo
    first_action: int
    drawn: bool
    grammar: Grammar

    def make(self) -> Any:  # noqa: ANN401 - Gymnasium's type
        """A fresh instance."""
        return _make(self.id, drawn=self.drawn)

    def told(self, observation: Any) -> str:  # noqa: ANN401 - of its space
        """An observation in words."""
        if self.known.bases:
            observation = split_digits(int(observation), self.known.bases)
        shown = format_numbers(observation)
        if len(self.known.fields) == len(shown):
            shown = [f"{name} {number}" for name, number in zip(self.known.fields, shown, strict=True)]
        return ", ".join(shown)


@cache
def load_codec(env_id: str) -> TextCodec:
    """The codec of an id.

    Raises:
        ConfigError: for an id that Gymnasium does not know or cannot make, or whose values are no short text.
    """
    environment = _make(env_id, drawn=False)
    observations, actions = environment.observation_space, environment.action_space
    count = count_numbers(observations)
    if count is None or count > MAX_NUMBERS:
        raise _no_codec(env_id, f"its observations are {observations}, more than {MAX_NUMBERS} numbers")
    if type(actions).__name__ != "Discrete" or int(actions.n) > MAX_ACTIONS:
        raise _no_codec(env_id, f"its actions are {actions}, no choice of at most {MAX_ACTIONS}")
    plain = EnvironmentInfo(task=f"Play {env_id}.", actions=tuple(map(str, range(int(actions.n)))))
    known = ENVIRONMENT_INFO.get(re.sub(r"-v\d+\Z", "", env_id), plain)
    drawn = "ansi" in (environment.metadata.get("render_modes") or ())
    environment.close()
    return TextCodec(
        id=env_id, known=known, first_action=int(actions.start), drawn=drawn, grammar=_grammar(known.actions)
    )


def _make(env_id: str, *, drawn: bool) -> Any:  # noqa: ANN401
    import gymnasium

    gymnasium.logger.min_level = gymnasium.logger.ERROR  # what it warns of, in colours, is for who writes the program
    made: list[Any] = []
    problems: list[BaseException] = []
    with catch_foreign(problems.append):
        made.append(gymnasium.make(env_id, disable_env_checker=True, render_mode="ansi" if drawn else None))
    if problems:
        reason = one_line(f"{type(problems[0]).__name__}: {problems[0]}").rstrip(".?")
        hint = "" if env_id in gymnasium.registry else f" {_nearest(env_id, gymnasium.registry)}"
        raise ConfigError(f"Gymnasium cannot make {env_id!r}: {reason}.{hint}") from problems[0]
    return made[0]


def _nearest(env_id: str, registered: Any) -> str:  # noqa: ANN401 - Gymnasium's registry
    near = difflib.get_close_matches(env_id, list(map(str, registered)), n=1, cutoff=0.6)
    shown = "python -c 'import gymnasium; gymnasium.pprint_registry()'"
    return f"Did you mean gymnasium:{near[0]}?" if near else f"What is registered shows: {shown}"


def _no_codec(env_id: str, reason: str) -> ConfigError:
    return ConfigError(
        f"gymnasium:{env_id} has no text: {one_line(reason)}. "
        "Write an environment of your own around it, see docs/environments.md"
    )


def _grammar(actions: tuple[str, ...]) -> Grammar:
    command = CommandPattern(
        name="act",
        description="Take one action.",
        template="{action}",
        pattern=re.compile(f"(?P<action>{'|'.join(map(re.escape, actions))})"),
        parameters={"action": {"type": "string", "enum": list(actions)}},
    )
    return Grammar([command], expected=f"exactly one of: {', '.join(actions)}")


MAX_NUMBERS = 64
"""Numbers of a space that are still read as text; images have more."""


_FLAT = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")


def count_numbers(space: Any) -> int | None:  # noqa: ANN401 - Gymnasium's types are not installed where this is checked
    """How many numbers a value of the space has, None where it is more than numbers."""
    match type(space).__name__:
        case "Discrete":
            return 1
        case name if name in _FLAT:
            count = 1
            for length in space.shape:
                count *= int(length)
            return count
        case "Tuple":
            return _sum([count_numbers(part) for part in space.spaces])
        case "Dict":
            return _sum([count_numbers(part) for part in space.spaces.values()])
    return None


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def format_numbers(value: object) -> list[str]:
    """The numbers of a value in order, floats with three decimals, those of a mapping with their names."""
    if isinstance(value, Mapping):
        return [f"{name} {' '.join(format_numbers(part))}" for name, part in value.items()]
    if isinstance(value, tuple | list):
        return [text for part in value for text in format_numbers(part)]
    plain: Any = getattr(value, "tolist", lambda: value)()  # of an array or one of its numbers
    if isinstance(plain, list):
        return format_numbers(plain)
    return [f"{plain:.3f}" if isinstance(plain, float) else str(int(plain))]


def split_digits(value: int, bases: Sequence[int]) -> list[int]:
    """A number taken apart, as a grid's cell into its row and column; the last base counts ones."""
    found: list[int] = []
    for base in reversed(bases):
        value, digit = divmod(value, base)
        found.append(digit)
    return found[::-1]
