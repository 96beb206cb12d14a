"""Language-model agents, ``ReactAgent`` with a configurable answer format and ``ToolsAgent``, and their conversation.

The system prompt, the first observation and the latest turn are always sent. Of the other turns, the oldest are omitted
until the estimated size fits; a note at the end of the first observation gives the number of omitted turns. If the chat
is still too long, the longest messages except the system prompt are cut in the middle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

import msgspec

from runner.agents.model.dialects import THINKING
from runner.agents.model.reply_parsing import ActionStyle, action_style, parse_reply
from runner.errors import AgentFault, ContextExceeded
from runner.inference.chat_format import (
    LENGTH_REASONS,
    THINK_TAG,
    WITHHELD,
    describe_cut,
    flatten_tool_calls,
    split_thinking,
    stored_chat,
)
from runner.inference.tool_calls import tool_call
from runner.types import (
    Action,
    Chat,
    EpisodeInfo,
    Inference,
    InvalidAction,
    Message,
    Mode,
    ModelSession,
    ModelSettings,
    ModelSource,
    ToolCall,
    ToolSchema,
    Usage,
)
from runner.util.display_text import one_line, pluralize
from runner.util.json_accessors import as_dict, as_text, content_text

ReasoningTurns: TypeAlias = Literal["none", "calls", "all"]

MAX_CALL_CHARS = 8000
"""Maximum length of a reply's call arguments, in characters. A longer reply is sent as text, which can be cut."""
NO_ANSWER = "(no answer)"
"""Text that replaces an empty reply, since some endpoints reject empty messages."""
NOT_EXECUTED = "Not executed: one action per step."
CHARS_PER_TOKEN = 4
ANSWER_RESERVE_TOKENS = 2048
"""Tokens reserved for the answer if ``agent.max_tokens`` is not set; at most a quarter of the context."""
_REPLACED = frozenset({"role", "content", "tool_calls", "refusal"})
_COUNTED = frozenset({"role", "content", "tool_calls", "reasoning_content", "origin", "reasoning_field"})
_MESSAGE_OVERHEAD_CHARS = 16
_NOTE_CHARS = 60
_MIN_CUT_CHARS = 400
"""Minimum length of a cut message, in characters."""


class EnvironmentGuide(NamedTuple):
    """Rules of an environment and description of its actions, as parts of the system prompt.

    Attributes:
        unit: what a step is called, in the singular.
        own_limit: number of steps after which the environment itself ends an episode; None: no such limit.
    """

    rules: str
    actions: str
    unit: str = "action"
    own_limit: int | None = None


_GUIDES = {
    "alfworld": EnvironmentGuide(
        "You do a household task in a room. Your task is in the first observation; it is done as soon as its goal is "
        "reached. You can carry one object at a time. Go to a receptacle to see what is on it, and open it if it is "
        "closed, to look in it, take from it or put into it. To heat, cool or clean an object, carry it to a "
        "microwave, a fridge or a sinkbasin and use that command there. To examine an object under a lamp, carry it "
        'and use the lamp. "Nothing happens." means that the action was not possible.',
        "The action is one from the list of available actions that ends each observation, exactly as it stands there, "
        "such as: go to fridge 1",
        own_limit=50,
    ),
    "babyai": EnvironmentGuide(
        "You are in a grid world of rooms and have to reach the goal that the first observation names. You see only "
        'what is ahead of you; positions are told as seen from you. "go to", "pickup", "go through" and "toggle and '
        'go through" walk to a target in view by themselves. You can carry one object. A locked door opens with the '
        "key of its colour in your hands. What is not in view may be behind you or behind a door: turn or go through "
        "doors to look for it. The task is over as soon as the goal is reached.",
        "The action is one from the list of available actions that ends each observation, exactly as it stands there, "
        "such as: pickup red ball 1",
    ),
    "maze": EnvironmentGuide(
        "You walk through a maze to its goal, in as few moves as you can. Each observation tells the goal, your "
        "position and the walls around you. A position is a row and a column: move down adds 1 to the first number, "
        "move up takes 1 off; move right adds 1 to the second, move left takes 1 off. A move into a wall leaves you "
        "where you are and still counts. The way to the goal may lead away from it, so remember where you have been "
        "and do not go back and forth.",
        "The action is one of: move up, move down, move left, move right",
        unit="move",
        own_limit=50,
    ),
    "sciworld": EnvironmentGuide(
        "You do an experiment of primary school science in a house with rooms, a workshop, a greenhouse and an outdoor "
        "area. The first observation describes the task. Progress gives points, up to 100, and a serious mistake, such "
        "as focusing on the wrong object, ends the task. You can only act on what is in your room or in your "
        "inventory: open doors, go through them and look around. Focus on an object only where the task asks for it. "
        "If a command is ambiguous, the reply numbers its meanings: answer with the number alone.",
        'The action is a command, such as "look around" or "pick up thermometer". These are the commands; OBJ stands '
        "for an object that you see or hold, LOC for a place next to yours:\n"
        "look around, look at OBJ, look in OBJ, read OBJ, inventory, task, go to LOC, open OBJ, close OBJ, "
        "activate OBJ, deactivate OBJ, use OBJ, use OBJ on OBJ, connect OBJ to OBJ, disconnect OBJ, pick up OBJ, "
        "put down OBJ, move OBJ to OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, eat OBJ, flush OBJ, "
        "focus on OBJ, wait, wait1",
    ),
    "sqlgym": EnvironmentGuide(
        "You answer a question about a database with one SQLite query. The first observation describes the tables, "
        "their columns and keys, and then asks. You have a single try: the rows of your query are compared with those "
        "that were asked for. Select exactly the columns that were asked for and nothing else, and quote names with "
        "spaces or other special characters with double quotes. The database can only be read.",
        "The action is one SQL statement.",
        own_limit=1,
    ),
    "textcraft": EnvironmentGuide(
        "You craft an item of Minecraft. The first observation lists crafting commands and names the goal; crafting "
        "that item ends the task. An item that has a crafting command cannot be got, it has to be crafted; everything "
        "else can be got from the world in any number. A crafting command needs exactly its ingredients, which you "
        "have to hold, and is one crafting with the counts as listed; repeat it for more. Where an ingredient is a "
        "kind of item that can be crafted, such as planks, name one of that kind, such as oak planks; write every "
        "other name exactly as the list does, such as oak logs. Work backwards from the goal first. The list has "
        "crafting commands that you do not need.",
        "The action is one of: get <count> <item>, craft <count> <item> using <count> <item>, <count> <item> …, or "
        "inventory. For example: craft 4 oak planks using 1 oak logs",
    ),
    "webshop": EnvironmentGuide(
        "You shop for what an instruction asks for. Parts of a page are separated by [SEP]. Search with a few "
        "keywords, click a product by its number (such as B0UJ7A40JW), click the value of every option that the "
        "instruction names (such as a colour or a size), and then click Buy Now, which ends the task. The product has "
        "to be of the right kind, with all the attributes and options asked for, below the price; Description and "
        "Features tell more. < Prev goes back. An action that is not possible shows the same page again. Buy the best "
        "match you have found rather than nothing.",
        "The action is one of: search[<keywords>] or click[<something on the page>]. For example: click[Buy Now]",
    ),
    "wordle": EnvironmentGuide(
        "You find a hidden English word of five letters in a few guesses. After each guess its letters are "
        "marked in order: g = right letter in the right place, y = in the word but in another place, b = not in the "
        'word, or not once more. A guess that is not a known word is answered with "invalid word" and uses up a '
        "guess. Each guess should fit all marks so far.",
        "The action is the word alone, five lower-case letters, such as: crane",
        unit="attempt",
        own_limit=6,
    ),
}
_ONCE = ", or not once more", ""
"""A rule of Wordle that AgentGym's server does not have, and what replaces it in compat mode."""
_FORMS: dict[ActionStyle, str] = {
    **dict.fromkeys(("once", "first", "last"), "Thought: <why, in a few words>\nAction: <action>"),
    "sql": "Thought: <why, in a few words>\nAction:\n```sql\n<query>\n```",
    "fence": "Thought: <why, in a few words>\nAction: ```<action>```",
    "raw": "<action>",
}
_AS_CALL = 'The action is a JSON object with the name and the arguments, such as: {"name": "…", "arguments": {…}}'


def system_prompt(
    env: str, schemas: Sequence[ToolSchema], *, as_calls: bool, max_rounds: int | None = None, mode: Mode = "strict"
) -> str:
    """Return the system prompt; an unknown ``env``, which is case-insensitive, is described by its tools alone.

    With ``as_calls`` it requests tool calls, and explains the text form as a fallback. Without ``max_rounds`` only the
    environment limits the steps.
    """
    guide = _GUIDES.get(env.lower()) or EnvironmentGuide(
        f"You act in the environment {one_line(env)}.", _actions_of(schemas)
    )
    form = f"{_FORMS[action_style(env)]}\n\n{guide.actions}"
    if env.lower() == "wordle":  # only its tool description lists the valid words
        form += "".join(f"\n{_function(schema)[1]}" for schema in schemas)
    if as_calls:
        how = "Answer each observation with exactly one tool call. Only where you cannot call tools, write instead:"
    else:
        how = "Answer each observation with exactly one action and nothing after it, in this form:"
    rules = guide.rules.replace(*_ONCE) if mode == "compat" else guide.rules
    limits = [limit for limit in (guide.own_limit, max_rounds) if limit is not None]
    at_most = f" You have at most {pluralize(min(limits), guide.unit)}." if limits else ""
    return f"{rules}{at_most}\n\n{how}\n\n{form}"


def _actions_of(schemas: Sequence[ToolSchema]) -> str:
    """Describe the tools as text actions; a single tool with one string parameter is described as that string."""
    match [list(_parameters(schema).values()) for schema in schemas]:
        case []:
            return "The action is a text."
        case [[only]] if only.get("type") == "string":
            return f"The action is a text. {_function(schemas[0])[1]}"
    tools = "\n".join(_describe_tool(schema) for schema in schemas)
    return f"{_AS_CALL}\n\nThere are:\n{tools}"


def _describe_tool(schema: ToolSchema) -> str:
    name, description = _function(schema)
    parameters = ", ".join(f"{key}: {_kind(value)}" for key, value in _parameters(schema).items())
    return f"- {name}({parameters}): {description}"


def _function(schema: ToolSchema) -> tuple[str, str]:
    function = as_dict(schema.get("function"))
    return as_text(function.get("name")), as_text(function.get("description"))


def _parameters(schema: ToolSchema) -> dict[str, dict[str, Any]]:
    parameters = as_dict(as_dict(schema.get("function")).get("parameters"))
    return {str(name): as_dict(value) for name, value in as_dict(parameters.get("properties")).items()}


def _kind(parameter: dict[str, Any]) -> str:
    choices = parameter.get("enum")
    if isinstance(choices, list):
        return " or ".join(map(str, choices))
    described = as_text(parameter.get("description"))
    return (as_text(parameter.get("type")) or "any") + (f" ({described})" if described else "")


class Conversation:
    """One turn per model reply; in each, either every tool call has an answer or all messages are plain text."""

    def __init__(self) -> None:
        self.opening: Chat = []
        self.turns: list[Chat] = []

    def add_observation(self, observation: Chat) -> None:
        messages = [_normalize(message) for message in observation]
        if not self.turns:
            self.opening += flatten_tool_calls(messages)
            return
        reply, *_ = turn = self.turns[-1]
        calls = reply.get("tool_calls")
        turn += _answer_calls(calls, messages) if calls else flatten_tool_calls(messages)

    def add_reply(self, reply: Message, action: Action | InvalidAction) -> None:
        """Append the model's reply; ``action`` is the result of parsing the reply.

        All that the server sent with the reply stays, because some servers refuse a chat without it. Calls with invalid
        arguments are stored as text, because an endpoint would reject a chat that contains them.
        """
        kept = {name: value for name, value in reply.items() if name not in _REPLACED}
        if isinstance(action, Action) and reply.get("tool_calls"):
            calls = _executable_calls(reply["tool_calls"], action.tool_calls)
            if sum(len(call.arguments) for call in action.tool_calls) <= MAX_CALL_CHARS:
                turn = {"role": "assistant", "content": reply["content"] or "", **kept, "tool_calls": calls}
                self.turns.append([cast("Message", turn)])
                return
        if reply.get("tool_calls"):
            kept.pop("content_parts", None)  # they lack the calls
        text = flatten_tool_calls([reply])[0]["content"]
        self.turns.append([cast("Message", {"role": "assistant", "content": text or NO_ANSWER, **kept})])


def strip_thinking(message: Message, mode: Mode = "strict") -> Message:
    """Move a reply's inline reasoning to ``reasoning_content``; in compat mode only ``<think>`` marks reasoning."""
    thought, answer = split_thinking(message["content"] or "", THINKING if mode == "strict" else (THINK_TAG,))
    reasoning = "\n".join(filter(None, [message.get("reasoning_content"), thought]))
    calls = message.get("tool_calls")
    kept = {name: value for name, value in message.items() if name not in _REPLACED}
    reply = {"role": "assistant", "content": answer, **kept}
    if reasoning:
        reply["reasoning_content"] = reasoning
        if not message.get("reasoning_content"):
            reply["reasoning_field"] = ""  # the server sent it in the text and takes it in no other place
    if calls:
        reply["tool_calls"] = calls
    return cast("Message", reply)


def _executable_calls(received: list[dict[str, Any]], kept: list[ToolCall]) -> list[dict[str, Any]]:
    """Return the calls of an action as they were received, with the names and arguments that were understood."""
    by_id = {call["id"]: call for call in received}
    calls = []
    for number, call in enumerate(kept):
        own = tool_call(number, call.id, call.name, call.arguments)
        raw = by_id.get(call.id, {})
        calls.append({**raw, **own, "function": {**as_dict(raw.get("function")), **own["function"]}})
    return calls


def _normalize(message: Message) -> Message:
    # an environment's message is only guaranteed to have a role
    text, call = content_text(message.get("content")), as_text(message.get("tool_call_id"))
    if message["role"] == "tool" and call:
        return {"role": "tool", "content": text, "tool_call_id": call}
    return {"role": "user", "content": text}


def _answer_calls(calls: list[dict[str, Any]], messages: Chat) -> Chat:
    """Return one answer per call: ``messages`` if their ids match, else the joined text as answer to the first call."""
    ids = [call["id"] for call in calls]
    if [message.get("tool_call_id") for message in messages] == ids:
        return messages
    observation = "\n".join(message["content"] or "" for message in messages)
    texts = [observation] + [NOT_EXECUTED] * (len(ids) - 1)
    return [{"role": "tool", "content": text, "tool_call_id": id} for id, text in zip(ids, texts, strict=True)]


def tools_size(schemas: Sequence[ToolSchema]) -> int:
    return len(json.dumps(schemas, default=str)) if schemas else 0


def chat_budget(settings: ModelSettings, tools_chars: int, context_tokens: int) -> int:
    """Return the maximum size of a chat in characters: the context without tools and answer, but at least a quarter."""
    quarter = context_tokens // 4
    answer = settings.max_tokens or min(ANSWER_RESERVE_TOKENS, quarter)
    budget = CHARS_PER_TOKEN * max(context_tokens - answer, quarter)
    return max(budget - tools_chars, CHARS_PER_TOKEN * quarter)


def fit_chat(
    instructions: str, opening: Chat, turns: Sequence[Chat], budget: int, reasoning: ReasoningTurns = "calls"
) -> Chat:
    """Trim the chat by the rule of this module; ``budget`` is in characters, and sent ``reasoning`` counts."""
    system: Message = {"role": "system", "content": instructions}
    sizes = [_chat_size(turn, reasoning) for turn in turns]
    total, n_omitted = _chat_size([system, *opening]) + sum(sizes) + _NOTE_CHARS, 0
    while total > budget and n_omitted < len(turns) - 1:
        total -= sizes[n_omitted]
        n_omitted += 1
    chat = [system, *_with_note(opening, n_omitted), *(message for turn in turns[n_omitted:] for message in turn)]
    return _cut_messages(chat, budget, reasoning) if total > budget else chat


def _chat_size(chat: Chat, reasoning: ReasoningTurns = "calls") -> int:
    return sum(len(each["content"] or "") + _MESSAGE_OVERHEAD_CHARS + _hidden_size(each, reasoning) for each in chat)


def _hidden_size(message: Message, reasoning: ReasoningTurns) -> int:
    if message["role"] != "assistant":
        return 0
    calls = message.get("tool_calls", ())
    size = sum(_value_size(value) for call in calls for name, value in call.items() if name not in ("id", "type"))
    if reasoning == "all" or (reasoning == "calls" and calls):
        size += len(message.get("reasoning_content") or "")
    return size + sum(_value_size(value) for name, value in message.items() if name not in _COUNTED)


def _value_size(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(_value_size, value.values()))
    return sum(map(_value_size, value)) if isinstance(value, list) else len(str(value))


def _with_note(opening: Chat, n_omitted: int) -> Chat:
    if not n_omitted:
        return opening
    note = f"[{n_omitted} earlier turn{'s' if n_omitted > 1 else ''} left out]"
    *others, last = opening or [Message(role="user", content="")]
    return [*others, {**last, "content": f"{last['content']}\n\n{note}".strip()}]


def _cut_messages(chat: Chat, budget: int, reasoning: ReasoningTurns) -> Chat:
    chat = chat.copy()
    excess = _chat_size(chat, reasoning) - budget
    by_length = sorted(range(1, len(chat)), key=lambda index: len(chat[index]["content"] or ""), reverse=True)
    for index in by_length:
        text = chat[index]["content"] or ""
        if excess <= 0 or len(text) <= _MIN_CUT_CHARS:
            break
        shorter = _cut_middle(text, max(_MIN_CUT_CHARS, len(text) - excess))
        shortened = {name: value for name, value in chat[index].items() if name != "content_parts"}
        chat[index] = cast("Message", {**shortened, "content": shorter})
        excess -= len(text) - len(shorter)
    return chat


def _cut_middle(text: str, limit: int) -> str:
    mark = f"\n[{len(text) - limit} characters left out]\n"
    n_kept = limit - len(mark)
    return text[: (n_kept + 1) // 2] + mark + text[len(text) - n_kept // 2 :]


class ReactAgent:
    """Agent that requests one answer per step from a model; an answer is a thought and an action.

    ``agent.format`` of the profile selects the form of the answer: ``tools`` for tool calls, ``react`` for text,
    ``auto`` for tool calls if the next endpoint supports them. An answer in the other form is also accepted. Of the
    other agent settings only the context limits are used. The agent can be pickled until ``enter`` is called.
    """

    uses_model: ClassVar[bool] = True
    tracer: Any = None

    def __init__(self, *, inference_mngr: ModelSource, settings: ModelSettings) -> None:
        self.last_usage: Usage | None = None
        self.last_response_flow_id: int | None = None
        self._manager = inference_mngr
        self._settings = settings
        self._format = settings.format
        self._conversation = Conversation()
        self._episode: tuple[EpisodeInfo, ModelSession] | None = None
        self._fitting_tokens: int | None = None

    def enter(self, episode: EpisodeInfo) -> None:
        self._episode = episode, self._manager.session(episode.header)

    def init_after_reset(self) -> None:
        self.last_usage = self.last_response_flow_id = self._fitting_tokens = None
        self._conversation = Conversation()

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action | InvalidAction]:
        if self._episode is None:
            raise AgentFault("the model agent's act was called outside an episode; call enter first")
        episode, session = self._episode
        self.last_usage = None
        as_calls = self._calls_tools(session, tool_schemas)
        self._conversation.add_observation(observation)
        inference = await self._infer(episode, session, tool_schemas, as_calls)
        self.last_usage, self.last_response_flow_id = inference.usage, inference.flow_id
        mode = episode.header.mode
        reply = strip_thinking(inference.noted, mode)
        action = parse_reply(reply, action_style(episode.header.env), tool_schemas, as_calls=as_calls, mode=mode)
        self._conversation.add_reply(reply, action)
        return [[*inference.sent, *stored_chat([reply])]], _explain(action, inference)

    async def _infer(
        self, episode: EpisodeInfo, session: ModelSession, schemas: list[ToolSchema], as_calls: bool
    ) -> Inference:
        known = session.capabilities(with_tools=as_calls)
        limits = (known.context_tokens, self._settings.context_tokens, self._fitting_tokens)
        context_tokens = min(filter(None, limits))
        header, max_rounds = episode.header, episode.max_rounds
        text = system_prompt(header.env, schemas, as_calls=as_calls, max_rounds=max_rounds, mode=header.mode)
        tools_chars = tools_size(schemas if as_calls else [])
        opening, turns = self._conversation.opening, self._conversation.turns
        turns = turns if as_calls else [flatten_tool_calls(turn) for turn in turns]

        def chat_of(context_tokens: int) -> Chat:
            budget = chat_budget(self._settings, tools_chars, context_tokens)
            return fit_chat(text, opening, turns, budget, known.reasoning)

        chat, can_shorten = chat_of(context_tokens), True
        warnings: tuple[str, ...] = ()
        while True:
            try:
                inference = await session.infer(
                    chat,
                    tools=schemas if as_calls else [],
                    time_left_s=episode.time_left_s(),
                    on_delta=episode.stream,
                    tracer=self.tracer,
                    on_tokens=episode.record_tokens,
                    can_shorten=can_shorten,
                    tools_as_text=bool(schemas) and not as_calls and self._format != "react",
                )
                usage = msgspec.structs.replace(inference.usage, warnings=warnings + inference.usage.warnings)
                return msgspec.structs.replace(inference, usage=usage)
            except ContextExceeded as exc:
                warnings = exc.warnings
                is_figure_of_use = 0 < exc.context_tokens < context_tokens
                context_tokens = exc.context_tokens if is_figure_of_use else context_tokens // 2
                shortest = chat_of(1)
                while (shorter := chat_of(context_tokens)) == chat != shortest:  # far below the profile's limit
                    context_tokens //= 2
                chat, can_shorten = shorter, shorter != shortest
                self._fitting_tokens = context_tokens

    def _calls_tools(self, session: ModelSession, schemas: list[ToolSchema]) -> bool:
        if self._format == "react" or not schemas:
            return False
        return self._format == "tools" or session.capabilities(with_tools=True).tools == "native"


def _explain(action: Action | InvalidAction, inference: Inference) -> Action | InvalidAction:
    cause = inference.cause_of_silence
    if not cause and inference.finish_reason in LENGTH_REASONS:
        cause = describe_cut(inference.usage.tokens)
    elif not cause and inference.finish_reason == "content_filter":
        cause = WITHHELD
    if isinstance(action, InvalidAction) and cause:
        return msgspec.structs.replace(action, expected=f"{action.expected}; the answer was {cause}")
    return action


class ToolsAgent(ReactAgent):
    """A ``ReactAgent`` that always requests tool calls, regardless of ``agent.format``."""

    def __init__(self, *, inference_mngr: ModelSource, settings: ModelSettings) -> None:
        super().__init__(inference_mngr=inference_mngr, settings=settings)
        self._format = "tools"
