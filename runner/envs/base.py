"""What embedded environments share: the grammar of their commands, their base class, and the labels of their data."""

from __future__ import annotations

import contextlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from runner.errors import EnvironmentFault
from runner.types import Action, Chat, InvalidAction, Mode, Rejection, StepResult, ToolCall, ToolSchema, Trajectory
from runner.util.json_schema import allowed_values, find_mismatch, show_value

_MAX_SHOWN_CHARS = 100
"""Maximum length of arguments that are quoted, in characters."""


class CommandPattern(msgspec.Struct, frozen=True):
    """A command of an environment, as a tool and as text.

    Attributes:
        template: canonical text, with ``{parameter}`` placeholders.
        pattern: pattern of the text; its named groups are the parameters.
        parameters: parameter -> JSON schema (``string`` or ``integer``); all parameters are required.
    """

    name: str
    description: str
    template: str
    pattern: re.Pattern[str]
    parameters: dict[str, dict[str, Any]] = {}

    def schema(self) -> ToolSchema:
        parameters = {
            "type": "object",
            "properties": self.parameters,
            "required": list(self.parameters),
            "additionalProperties": False,
        }
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


def command(
    template: str,
    description: str,
    parameters: Mapping[str, tuple[str, dict[str, Any]]] = {},
    *,
    name: str = "",
    accepted: str = "",
    flags: re.RegexFlag = re.NOFLAG,
) -> CommandPattern:
    """Return a command whose text is the template with its parameters.

    Args:
        parameters: parameter -> pattern of its text, and JSON schema.
        name: name of the tool; by default the words before the first parameter.
        accepted: template of the pattern, in which all but the parameters is a pattern, too; by default the template.
    """
    holes = {key: f"(?P<{key}>{pattern})" for key, (pattern, _) in parameters.items()}
    return CommandPattern(
        name=name or template.partition(" {")[0].replace(" ", "_"),
        description=description,
        template=template,
        pattern=re.compile(
            re.sub(r"\\?{(\w+)\\?}", lambda hole: holes[hole[1]], accepted or re.escape(template)), flags
        ),
        parameters={key: schema for key, (_, schema) in parameters.items()},
    )


def choice(options: Collection[str]) -> tuple[str, dict[str, Any]]:
    """Return the pattern and the schema of a parameter that is one of these texts."""
    return "|".join(map(re.escape, options)), {"type": "string", "enum": list(options)}


class Grammar:
    """Commands of one environment; a text stands for the first command whose pattern matches it.

    Args:
        anchor: ``whole`` if a pattern must match the whole text without surrounding spaces, ``start`` if it must match
            the unchanged text from its beginning and may leave a rest.
    """

    def __init__(
        self, commands: Sequence[CommandPattern], expected: str, anchor: Literal["whole", "start"] = "whole"
    ) -> None:
        self.commands = tuple(commands)
        self.expected = expected
        self._anchor = anchor
        self.schemas: list[ToolSchema] = [command.schema() for command in commands]
        self._by_name = {command.name: (command, command.schema()["function"]["parameters"]) for command in commands}

    def parse(self, text: str) -> Action | InvalidAction:
        stripped = text.strip()
        for command in self.commands:
            pattern = command.pattern
            if match := pattern.match(text) if self._anchor == "start" else pattern.fullmatch(stripped):
                call = ToolCall(id="call_0", name=command.name, arguments=_arguments(command, match.groupdict()))
                return Action(text=text, tool_calls=[call])
        return InvalidAction(text, self.expected)

    def render(self, call: ToolCall) -> str | InvalidAction:
        """Return the text of a call, whose numbers may stand as texts and vice versa; else an invalid action."""
        command, parameters = self._by_name.get(call.name, (None, {}))
        if command is None:
            return InvalidAction(call.name, f"one of the tools {', '.join(self._by_name)}")
        with contextlib.suppress(msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, str | int])
            if arguments.keys() == command.parameters.keys():
                text = command.template.format(**arguments)
                if command.pattern.fullmatch(text):
                    return text
                makes = f", which makes {self.expected}; got {show_value(text)}"
                return InvalidAction(text, _expected_call(command, call.arguments, parameters, makes))
        return InvalidAction(call.arguments, _expected_call(command, call.arguments, parameters))


def _arguments(command: CommandPattern, groups: dict[str, str]) -> str:
    if not groups:
        return "{}"
    values: dict[str, str | int] = {
        name: int(value) if command.parameters[name]["type"] == "integer" else value for name, value in groups.items()
    }
    return json.dumps(values)  # unlike msgspec, json accepts lone surrogates, which hostile text may contain


def _expected_call(command: CommandPattern, arguments: str, parameters: dict[str, Any], makes: str = "") -> str:
    """``makes`` is the end of the sentence where only the text that the call makes does not match."""
    described = (f"{name} ({_described(schema)})" for name, schema in command.parameters.items())
    expected = f"{command.name} with exactly {', '.join(described) or 'no arguments'}"
    try:
        decoded = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return f"{expected}; got no JSON object"
    reason = find_mismatch(decoded, parameters)
    if reason is not None and decoded.keys() == command.parameters.keys():
        return f"{command.name} with {reason}"
    return f"{expected}; {reason}" if reason else expected + (makes or f"; got {arguments[:_MAX_SHOWN_CHARS]}")


def _described(schema: dict[str, Any]) -> str:
    pattern = schema.get("pattern")
    return f"{allowed_values(schema)} matching {pattern}" if pattern else allowed_values(schema)


_REFUSALS: Final[Mapping[str, re.Pattern[str]]] = {
    "BabyAI": re.compile(
        r"The action is not recognized\. |You cannot |There is a barrier in front of you, you can't move forward\."
    ),
    "TextCraft": re.compile("Could not |Wrong item format: "),
    "Wordle": re.compile("invalid word"),
    "ALFWorld": re.compile(r"Nothing happens\."),
    "SQLGym": re.compile(r"(?!\[)"),  # rows are shown as a list in Python; anything else is the error of the query
    "SciWorld": re.compile(r"No known action matches that input\."),
}
"""Environment -> beginning of the observations that refuse an action. A maze refuses no move."""

StepText = tuple[str, float, bool]
"""``(observation, reward, done)`` of one step."""

_SEPARATOR: Final = " [SEP] "
_CLICK: Final = "click["


def is_refusal(env: str, observation: str) -> bool:
    """Return whether an observation refuses the action before it, in an environment whose texts show that."""
    pattern = _REFUSALS.get(env)
    return pattern is not None and pattern.match(observation) is not None


def is_lost_click(command: str, page: str, next_page: str) -> bool:
    """Return whether a click in WebShop hit nothing, by the texts of the page that was clicked and of the next one.

    Of other clicks, only one on a value of an option shows the same page again. Values and names of options look alike
    in the text, so a click on a name counts as one on a value, except on the first name and those in the instruction.
    """
    start = command.find(_CLICK)
    if start < 0 or page != next_page:
        return False
    label = command[start + len(_CLICK) :].rpartition("]")[0].lower()
    pieces = page.lower().split(_SEPARATOR.lower())
    if "< prev" not in pieces:
        return True
    shown = pieces[pieces.index("< prev") + 2 :]
    prices = [index for index, piece in enumerate(shown) if piece.startswith("price: ")]
    instruction = pieces[1] if len(pieces) > 1 else ""
    return not prices or label not in shown[: max(prices[0] - 1, 0)] or f" {label}: " in instruction


class EmbeddedEnvironment(ABC):
    """A text environment that runs in this process.

    ``mode`` is ``strict`` (the published rules) or ``compat`` (the rules of AgentGym's servers, quirks included). A
    subclass defines ``name``, ``n_tasks``, ``grammar`` and the hooks ``_reset`` and ``_step``, which return plain text.
    """

    name: ClassVar[str]
    n_tasks: int
    grammar: Grammar
    data_label: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions that the environment needs in addition to the runner's own; each episode records their versions."""
    rejection: Rejection | None = None
    """How the latest step rejected its action; None if it executed the action."""
    steps_after_end: ClassVar[bool] = False
    """Whether steps after the end of an episode are executed in compat mode, as on some of AgentGym's servers."""

    def __init__(self, *, mode: Mode = "strict") -> None:
        self.mode = mode
        self.task_index = 0
        self._running = False
        self.truncated = False
        """Whether the episode ended at the environment's own step limit."""

    @abstractmethod
    def _reset(self, task_index: int) -> str:
        """Start task ``task_index`` (0 <= index < n_tasks) and return the first observation."""

    @abstractmethod
    def _step(self, text: str) -> StepText:
        """Execute a command text, which may be malformed."""

    def _has_refused(self, observation: str) -> bool:
        return is_refusal(self.name, observation)

    def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: Any) -> Chat:  # noqa: ANN401
        """Start task ``task_index`` modulo ``n_tasks``; ``seed`` and ``extra`` are ignored."""
        self.task_index = task_index % self.n_tasks
        self.truncated = False
        observation = self._reset(self.task_index)
        self._running = True
        return [{"role": "user", "content": observation}]

    def step(self, action: Action) -> StepResult:
        """Take one action; a text is passed to ``_step`` unchanged, even if it is invalid.

        A tool call that does not match the tool's schema leaves the task unchanged, and the observation describes a
        valid action.
        """
        if not self._running:
            raise EnvironmentFault(f"{self.name}: step called outside an episode; call reset first")
        command = self.grammar.render(action.tool_calls[0]) if action.tool_calls else action.text or ""
        if isinstance(command, InvalidAction):
            observation, reward, done = f"Invalid action. Expected {command.expected}.", 0.0, False
            self.rejection = "invalid"
        else:
            observation, reward, done = self._step(command)
            self.rejection = "refused" if self._has_refused(observation) else None
        self._running = not done or (self.steps_after_end and self.mode == "compat")
        return as_reply_messages(action, observation), reward, done

    def get_tool_schemas(self) -> list[ToolSchema]:
        return self.grammar.schemas

    def get_episode_id(self) -> str:
        return f"{self.name}-{self.task_index}"

    def admissible_actions(self) -> list[str] | None:
        return None

    def parse(self, text: str) -> Action | InvalidAction:
        return self.grammar.parse(text)

    def success(self, trajectory: Trajectory) -> bool:
        return any(step.reward > 0 for step in trajectory.timesteps)

    def cleanup(self) -> None:
        self._running = False


def as_reply_messages(action: Action, observation: str) -> Chat:
    """Return an observation as the messages that answer ``action``: one per tool call, or a user message for a text."""
    if not action.tool_calls:
        return [{"role": "user", "content": observation}]
    not_executed = "Not executed: one action per step."
    texts = [observation] + [not_executed] * (len(action.tool_calls) - 1)
    answers = zip(action.tool_calls, texts, strict=True)
    return [{"role": "tool", "content": text, "tool_call_id": call.id} for call, text in answers]


AS_PUBLISHED = "as published"
"""Display text for the published data, whose label is empty."""
ALFWORLD_VARIABLE = "ALFWORLD_DATA"
BIRD_VARIABLE = "AGENTENV_SQLGYM_BIRD_PATH"
TEXTCRAFT_VARIABLE = "AGENTENV_TEXTCRAFT_PATH"
"""Environment variables for folders of published data, which AgentGym's servers read, too."""
ALFWORLD_MAPPINGS = ("mappings_train.json", "mappings_test.json")
"""AgentGym's lists of ALFWorld's games; the places in both together are the numbers of its tasks."""
NUMBERED_AS_AGENTGYM = "ALFWorld data, AgentGym's numbers"
"""Label of ALFWorld's games in the order of these lists."""


def alfworld_mappings(environ: Mapping[str, str]) -> Path | None:
    """Return the folder with AgentGym's lists of games: of the checkout ``AGENTENV_PATH`` or of ALFWorld's data."""
    folders = [Path(checkout, "agentenv-alfworld", "configs")] if (checkout := environ.get("AGENTENV_PATH")) else []
    folders += [Path(data)] if (data := environ.get(ALFWORLD_VARIABLE)) else []
    found = (each for each in folders if all(map(os.path.isfile, (each / name for name in ALFWORLD_MAPPINGS))))
    return next(found, None)


class _DataSource(NamedTuple):
    label: str
    variable: str = ""
    published_label: str = ""
    markers: tuple[str, ...] = ()
    compat_label: str | None = None


_DATA_SOURCES = {
    "alfworld": _DataSource("local scenes", ALFWORLD_VARIABLE, "ALFWorld data", ("json_2.1.1",)),
    "are": _DataSource("ARE"),
    "gymnasium": _DataSource("Gymnasium"),
    "sqlgym": _DataSource(
        "local databases", BIRD_VARIABLE, "BIRD", (str(Path("train", "train.json")), str(Path("dev", "dev.json")))
    ),
    "textcraft": _DataSource("local recipes", TEXTCRAFT_VARIABLE, "AgentGym recipes", ("recipes",)),
    "webshop": _DataSource("local catalogue"),
    "wordle": _DataSource("local words", compat_label=""),
}
"""Environments whose shipped tasks are not the published ones.

Each entry has the label of the shipped tasks, the environment variable for the folder of the published data, the label
of the published data, relative paths of which a complete folder has at least one, and the label of the shipped tasks in
compat mode if that mode has other tasks.
"""


def data_label_of(env: str, environ: Mapping[str, str], mode: Mode = "strict") -> str:
    """Empty if the tasks are the published ones. ``env`` is case-insensitive, or ``family:id``."""
    source = _source_of(env)
    if _folder(source, environ):
        is_mapped = source.variable == ALFWORLD_VARIABLE and mode == "compat" and alfworld_mappings(environ) is not None
        return NUMBERED_AS_AGENTGYM if is_mapped else source.published_label
    return source.label if mode == "strict" or source.compat_label is None else source.compat_label


def data_folder(env: str) -> str | None:
    """Return the folder of the published data that an environment variable of this process names; None without one."""
    return _folder(_source_of(env), os.environ) or None


def missing_data(env: str, environ: Mapping[str, str]) -> str | None:
    """Return why the folder that a variable names cannot be used; None if it looks complete, or there is none."""
    source = _source_of(env)
    folder = _folder(source, environ)
    if not folder or any(map(os.path.exists, (Path(folder, marker) for marker in source.markers))):
        return None
    return f"{source.variable} is {folder!r}, which has no {' and no '.join(source.markers)}"


def same_data_advice(env: str, environ: Mapping[str, str]) -> str | None:
    """Return how to play the published data that a server plays; None if the environment has no data folder."""
    source = _source_of(env)
    if not source.variable:
        return None
    folder = _folder(source, environ)
    current = f"it is {folder!r}" if folder else "it is not set"
    return f"Set {source.variable} to the folder of {source.published_label} that the server plays; {current}"


class DataLabel:
    """Attribute with the label of an environment's current data, readable on the class and on its instances."""

    def __init__(self, env: str) -> None:
        self._env = env

    def __get__(self, instance: object, owner: type[object]) -> str:
        """Return the label, read from the environment variables at each access; on the class, that of strict mode."""
        return data_label_of(self._env, os.environ, getattr(instance, "mode", "strict"))


def _source_of(env: str) -> _DataSource:
    return _DATA_SOURCES.get(env.lower().partition(":")[0], _DataSource(""))


def _folder(source: _DataSource, environ: Mapping[str, str]) -> str:
    return environ.get(source.variable, "") if source.variable else ""
