"""The agent ``agentgym``: AgentGym's own conversation, and its extraction of the action from a model's answer.

The instruction of an environment is the text of AgentGym's client, read from the syntax tree of its source in the
user's checkout: nothing of it is imported, executed or shipped. What differs from ``react`` is in
``docs/run/evaluate.md``. Source of the rules: ``agentenv/agentenv/envs/*.py``, and ``parse_react`` and the loop of an
episode in ``agentenv/agentenv/controller``, at commit 3ef9235.
"""

from __future__ import annotations

import ast
import json
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from runner.errors import AgentFault, ConfigError
from runner.types import (
    Action,
    Chat,
    EpisodeInfo,
    InvalidAction,
    ModelSession,
    ModelSettings,
    ModelSource,
    ToolSchema,
    Usage,
)

AGENT: Final = "agentgym"
CHECKOUT_VARIABLE: Final = "AGENTENV_PATH"
"""Environment variable with the folder of a checkout of AgentGym."""
TWO_ACTIONS: Final = "Error: Only one 'Action' is allowed per response. Please adjust your response."
"""What AgentGym's clients of BabyAI and TextCraft answer themselves to a text with two actions."""

_MARK: Final = "Action:"
_END: Final = "</s>"
_KEPT: Final = frozenset(string.ascii_letters + string.digits + ", ")
_LISTED: Final = "Available actions: "
"""Begin of the last line of each of our observations of ALFWorld; AgentGym's client lists the actions once."""


def _one_line(text: str) -> str | None:
    """Return the line after the only mark, without characters other than letters, digits, commas and single spaces."""
    found, rest = [], text
    while _MARK in rest:
        line, _, rest = rest.partition(_MARK)[2].lstrip().partition("\n")
        found.append(line)
    if len(found) > 1:
        return None
    return " ".join("".join(letter for letter in "".join(found) if letter in _KEPT).split())


def _first_part(text: str) -> str:
    parts = _without_end(text).split(_MARK)
    return parts[min(1, len(parts) - 1)].strip()


def _last_part(text: str) -> str:
    """Return what follows the last mark; without one, a text with a command of WebShop, or nothing."""
    _, mark, after = _without_end(text).rpartition(_MARK)
    return (after if mark or "search[" in after or "click[" in after else "").strip()


def _without_end(text: str) -> str:
    return text[:-5] if text.endswith(_END) else text  # AgentGym cuts one character more than the mark has


class _Client(NamedTuple):
    """Where AgentGym's client of an environment has its texts, and how it finds the action."""

    module: str
    owner: str
    extract: Callable[[str], str | None]
    opening: str = ""


_CLIENTS: Final[Mapping[str, _Client]] = {
    "babyai": _Client("babyai", "BabyAIEnvClient", _one_line),
    "textcraft": _Client("textcraft", "TextCraftEnvClient", _one_line),
    "maze": _Client("lmrlgym", "MazeEnvClient", _first_part, "_fully_first_observation"),
    "wordle": _Client("lmrlgym", "WordleEnvClient", _first_part, "first_observation"),
    "alfworld": _Client("alfworld", "AlfWorldAdapter", _last_part),
    "webshop": _Client("webshop", "WebshopAdapter", _last_part),
    "sciworld": _Client("sciworld", "SciWorldAdapter", _last_part),
    "sqlgym": _Client("sqlgym", "SqlGymEnvClient", lambda text: text.split("```sql")[-1].split("```")[0].strip()),
}


def extract_action(env: str, text: str) -> str | None:
    """Return what AgentGym's client sends for a model's text; None where it answers with ``TWO_ACTIONS`` itself."""
    return _CLIENTS[env.lower()].extract(text)


class Instruction(msgspec.Struct, frozen=True):
    """What AgentGym's client of an environment gives the model before its first observation.

    Attributes:
        acknowledgement: the model's answer to it, which is given.
        opening: what the client puts before the first observation; "" for nothing.
        replaces: whether ``opening`` stands in place of the first observation.
    """

    prompt: str
    acknowledgement: str
    opening: str = ""
    replaces: bool = False


def read_instruction(env: str, environ: Mapping[str, str]) -> Instruction:
    """Read it from the checkout in ``AGENTENV_PATH``; raises ``ConfigError`` without a client, checkout or text."""
    if (client := _CLIENTS.get(env.lower())) is None:
        raise ConfigError(f"AgentGym has no client of {env}; choose another agent, e.g. react")
    path = _client_path(client.module, environ)
    try:
        texts = _ClientTexts(path.read_bytes(), client.owner)
        prompt, acknowledgement = texts.conversation_start()
        opening = texts.attribute(client.opening) if client.opening else ""
    except (OSError, SyntaxError, ValueError, LookupError, RecursionError) as exc:
        raise ConfigError(
            f"{path} has no instruction of {env} where AgentGym's client has it ({type(exc).__name__}: {exc}); check "
            f"{CHECKOUT_VARIABLE}, or use the commit 3ef9235"
        ) from exc
    if env.lower() == "wordle":
        from runner.envs.wordle import AGENTGYM_WORDS

        return Instruction(prompt, acknowledgement, opening.replace("{{vocab}}", "\n".join(AGENTGYM_WORDS)), True)
    return Instruction(prompt, acknowledgement, opening)


def _client_path(module: str, environ: Mapping[str, str]) -> Path:
    checkout = environ.get(CHECKOUT_VARIABLE, "")
    for folder in ("agentenv/agentenv/envs", "agentenv/envs", "envs") if checkout else ():
        if (path := Path(checkout, folder, f"{module}.py").expanduser()).is_file():
            return path
    found = f"{checkout!r} has no agentenv/agentenv/envs/{module}.py" if checkout else "it is not set"
    raise ConfigError(
        f"The agent {AGENT} reads its instructions from a checkout of AgentGym, which {CHECKOUT_VARIABLE} names; "
        f"{found}"
    )


class _ClientTexts:
    """The literal texts of a class; a source that is no Python raises ``SyntaxError`` or ``ValueError``."""

    def __init__(self, source: bytes, owner: str) -> None:
        tree = ast.parse(source)
        classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
        self._body = next(classes, ast.ClassDef(name=owner, bases=[], keywords=[], body=[], decorator_list=[])).body

    def conversation_start(self) -> tuple[str, str]:
        try:
            messages = self._assigned("conversation_start")
        except LookupError:
            messages = self._react(self._assigned("conversation_start_dict"))
        prompt, acknowledgement, *_ = self._values(messages)
        return prompt, acknowledgement

    def attribute(self, name: str) -> str:
        node = self._assigned(name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "strip":
            return self._text(node.func.value).strip()
        return self._text(node)

    def _assigned(self, name: str) -> ast.expr:
        for node in self._body:
            if isinstance(node, ast.Assign) and any(isinstance(at, ast.Name) and at.id == name for at in node.targets):
                return node.value
        raise LookupError(f"no attribute {name}")

    def _react(self, node: ast.expr) -> ast.expr:
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Attribute) and key.attr == "REACT":
                return value
        raise LookupError("no conversation in the ReAct format")

    def _values(self, messages: ast.expr) -> Iterator[str]:
        for message in messages.elts if isinstance(messages, ast.Tuple) else ():
            fields = message.args[0] if isinstance(message, ast.Call) and message.args else None
            for key, value in zip(fields.keys, fields.values, strict=True) if isinstance(fields, ast.Dict) else ():
                if isinstance(key, ast.Constant) and key.value == "value":
                    yield self._text(value)

    def _text(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        raise LookupError("its text is computed")


class AgentGymAgent:
    """AgentGym's conversation, as text alone; the agent uses none of the profile's agent settings."""

    uses_model: ClassVar[bool] = True
    tracer: Any = None

    def __init__(self, *, inference_mngr: ModelSource, settings: ModelSettings, instruction: Instruction) -> None:
        self.last_usage: Usage | None = None
        self.last_response_flow_id: int | None = None
        self._manager, self._instruction = inference_mngr, instruction
        self._chat: Chat = []
        self._episode: tuple[EpisodeInfo, ModelSession] | None = None

    def enter(self, episode: EpisodeInfo) -> None:
        self._episode = episode, self._manager.session(episode.header)

    def init_after_reset(self) -> None:
        self.last_usage = self.last_response_flow_id = None
        self._chat = []

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action | InvalidAction]:
        if self._episode is None:
            raise AgentFault("the agent's act was called outside an episode; call enter first")
        episode, session = self._episode
        self.last_usage, env = None, episode.header.env
        self._chat = [*(self._chat or self._start()), {"role": "user", "content": self._shown(observation, env)}]
        inference = await session.infer(
            self._chat,
            tools=[],
            time_left_s=episode.time_left_s(),
            on_delta=episode.stream,
            tracer=self.tracer,
            on_tokens=episode.record_tokens,
        )
        self.last_usage, self.last_response_flow_id = inference.usage, inference.flow_id
        self._chat = [*self._chat, {"role": "assistant", "content": inference.text}]
        sent = extract_action(env, inference.text)
        answer = InvalidAction(inference.text, "a single action", TWO_ACTIONS) if sent is None else Action(text=sent)
        return [[*inference.sent, inference.message]], answer

    def _start(self) -> Chat:
        given = self._instruction
        return [{"role": "user", "content": given.prompt}, {"role": "assistant", "content": given.acknowledgement}]

    def _shown(self, observation: Chat, env: str) -> str:
        text, given, is_first = observation[-1]["content"] or "", self._instruction, not self._chat
        if env.lower() == "alfworld":
            body, _, listed = text.rpartition(f"\n{_LISTED}")
            if body:
                actions = ",".join(json.loads(listed))
                return f"{body}\nAVAILABLE ACTIONS: {actions}" if is_first else body
        if not is_first or not given.opening:
            return text
        return given.opening if given.replaces else f"{given.opening}\n{text}"
