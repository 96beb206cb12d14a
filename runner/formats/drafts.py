"""Episodes from messages: what a reader takes from a foreign file, and the episode record that it becomes.

What a file lacks stays unknown: the record has a neutral value, is left unrated where its result is unknown,
and ``origin.missing`` names it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

import msgspec

from runner.formats.foreign_values import UnreadableItem, message_of, name_of, number_of
from runner.formats.reading import Place
from runner.inference.token_capture import TokenCapture
from runner.store.episode_file import EpisodeRecord, Origin, episode_record
from runner.store.journal import stored_step
from runner.store.token_file import tokenized
from runner.types import (
    IMPORTED,
    Action,
    EpisodeHeader,
    ErrorInfo,
    Message,
    Mode,
    Outcome,
    TimeStep,
    Tokens,
    ToolCall,
    ToolSchema,
    agentgym_score,
    is_unscored,
)
from runner.types.sequences import Label, Problem, TokenSequence
from runner.util.clock import digest_ulid
from runner.util.json_accessors import as_dict, as_list, as_text

_TASK_NUMBER = re.compile(r"(?:.*[_\-/])?([0-9]{1,9})", re.ASCII | re.DOTALL)
MAX_STEPS: Final = 100_000
"""Largest number of replies of an episode; each takes about 1.6 KB of memory."""
_NO_BATCH: Final = "0" * 26
_FULL_REWARDS: Final = {"sciworld": 100}
"""Reward of a success, by the environments where it is not 1."""
_LABELS: Final[dict[str, Label]] = {"auxiliary": "auxiliary", "discarded": "discarded"}
_OUTCOMES: Final = frozenset(map(str, Outcome))
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC)
_SPEAKERS: Final = {
    **{"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"},
    **{"chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "function_call": "assistant"},
    **{"tool": "tool", "observation": "tool", "function_response": "tool"},
}
"""Roles by the speakers of AgentGym, FastChat, Axolotl and LLaMA-Factory."""
OUTCOME: Final = "outcome"
"""What a file lacks whose episodes are ``interrupted`` and unscored in place of an unknown outcome."""


class Transcript:
    """Collects the messages of an episode in their order.

    Attributes:
        opening: what precedes the first reply, without system prompts.
        received: what the agent has received since its last reply.
        sequences: token ids of the model's calls, by the index of their step; those of no step under None.
    """

    def __init__(self) -> None:
        self.opening: list[Message] = []
        self.steps: list[TimeStep] = []
        self.received: list[Message] = []
        self.sequences: dict[int | None, list[TokenSequence]] = {}
        self._observation = self.opening

    def add(self, message: Message, **fields: Any) -> None:  # noqa: ANN401
        """Add a message of any role; ``fields`` are those of the step of a reply."""
        if message["role"] == "assistant":
            self.add_reply(message, **fields)
            return
        self.received.append(message)
        if message["role"] != "system" or self.steps:
            self._observation.append(message)

    def add_reply(self, reply: Message, action: Action | None = None, **fields: Any) -> TimeStep:  # noqa: ANN401
        """Add a step with an agent's reply; the action is by default the tool calls of the reply, or its text.

        Raises ``UnreadableItem`` if there are ``MAX_STEPS`` steps.
        """
        if len(self.steps) >= MAX_STEPS:
            raise UnreadableItem(f"it has more than {MAX_STEPS:,} replies")
        step = TimeStep(
            index=len(self.steps),
            chats=[[*self.received, reply]],
            action=action_of(reply) if action is None else action,
            observation=[],
            **{"reward": 0.0, "done": False, **fields},
        )
        self.steps.append(step)
        self.received, self._observation = [], step.observation
        return step

    def add_sequences(self, index: int | None, sequences: Iterable[TokenSequence]) -> None:
        """Add token ids of the step with this index, or of calls whose step did not end."""
        if found := list(sequences):
            self.sequences.setdefault(index, []).extend(found)

    def add_ids(
        self, step: TimeStep, prompt: object, completion: object, logprobs: object, n_completion: object = None
    ) -> None:
        """Add the token ids of the agent's own call in a step, if there are any; see ``sequence_of``."""
        ids = {"prompt_token_ids": prompt, "completion_token_ids": completion, "logprobs": logprobs}
        sequence = sequence_of({**ids, "endpoint": step.endpoint, "model": step.model}, n_completion)
        self.add_sequences(step.index, [] if sequence is None else [sequence])


def action_of(reply: Message) -> Action:
    calls = [
        ToolCall(as_text(call.get("id")), as_text(function.get("name")), as_text(function.get("arguments")))
        for call in reply.get("tool_calls", [])
        for function in [as_dict(call.get("function"))]
    ]
    return Action(tool_calls=calls) if calls else Action(reply["content"] or "")


class Draft(msgspec.Struct, kw_only=True):
    """An episode as a foreign file has it; a field that is None or empty is unknown.

    Attributes:
        id: what identifies it there.
        task: number or name of the task; equal names become equal numbers.
        attempt: number of the attempt; None: counted within the import.
        reward: the reward of the whole episode; that of each step is in its ``reward`` if ``has_step_rewards`` is set.
        agentgym_score: AgentGym's score; None: it follows from the rewards.
        rated: whether the result counts; False for a further branch of a message graph.
        tokens: tokens of the whole episode; None: the sum over its steps. ``cost`` likewise.
        missing: what the file lacks, in addition to what the other fields show.
    """

    transcript: Transcript
    id: str = ""
    env: str = ""
    data_label: str = ""
    mode: Mode = "strict"
    agent: str = ""
    model: str | None = None
    task: int | str | None = None
    seed: int | None = None
    attempt: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration_s: float | None = None
    paused_s: float = 0.0
    outcome: Outcome | None = None
    success: bool | None = None
    reward: float | None = None
    has_step_rewards: bool = False
    agentgym_score: float | None = None
    rated: bool = True
    tokens: Tokens | None = None
    cost: float | None = None
    error: ErrorInfo | None = None
    evaluation: dict[str, Any] | None = None
    tools: list[ToolSchema] = []
    versions: dict[str, str] = {}
    missing: list[str] = []


def build_record(draft: Draft, title: str, place: Place, digest: bytes, modified_at: datetime) -> EpisodeRecord:
    """Return the record of a draft, with an empty batch id; raises ``UnreadableItem`` if it has no messages.

    ``modified_at``, when the file was written, is the start of an episode whose time is unknown.
    """
    missing = [*draft.missing]
    started_at, duration_s = _times(draft, modified_at, missing)
    steps = draft.transcript.steps
    opening = draft.transcript.opening if steps else draft.transcript.received
    if not steps and not opening and draft.reward is None and draft.error is None:
        raise UnreadableItem("it has no messages")
    outcome, success, rated = _result(draft, missing)
    if draft.reward is not None and not draft.has_step_rewards and steps:
        steps[-1].reward = draft.reward
    header = _header(draft, title, place, digest, started_at, missing)
    evaluation = draft.evaluation if rated else {**(draft.evaluation or {}), "rated": False}
    record = episode_record(
        header,
        [stored_step(step, 0) for step in steps],
        paused_s=draft.paused_s,
        ended_at=max(draft.ended_at or started_at + timedelta(seconds=duration_s), started_at),
        duration_s=duration_s,
        outcome=outcome,
        success=success,
        reset_observation=opening,
        tool_schemas=[draft.tools],
        spans=[],
        flows=[],
        error=draft.error,
        evaluation=evaluation,
        origin=Origin(format=title, id=name_of(draft.id), missing=tuple(dict.fromkeys(missing))),
    )
    record.reward = draft.reward
    known_score = draft.agentgym_score
    rewards = [step.reward for step in steps] if known_score is None else [known_score]
    record.agentgym = agentgym_score(record.env, rewards, draft.reward)
    record.tokens = draft.tokens or record.tokens
    record.cost = record.cost if draft.cost is None else draft.cost
    if found := draft.transcript.sequences:
        return tokenized(record, [found.get(number, []) for number in range(len(steps))], found.get(None, []))
    return record


def _header(
    draft: Draft, title: str, place: Place, digest: bytes, started_at: datetime, missing: list[str]
) -> EpisodeHeader:
    milliseconds = 0 if draft.started_at is None else max(0, round(draft.started_at.timestamp() * 1000))
    return EpisodeHeader(
        episode_id=digest_ulid(milliseconds, digest),
        batch_id=_NO_BATCH,
        node="",
        transport=IMPORTED,
        env=name_of(draft.env or place.path.stem) or title,
        data_label=name_of(draft.data_label),
        mode=draft.mode,
        task_index=_task_index(draft, missing),
        seed=draft.seed,
        attempt=draft.attempt or 0,
        agent=name_of(draft.agent),
        model=name_of(draft.model) if draft.model else None,
        started_at=started_at,
        versions=draft.versions,
    )


def sequence_of(fields: dict[str, Any], n_completion: object) -> TokenSequence | None:
    """Return the token ids in fields named as ATIF and our exports name them; None without any.

    ``n_completion`` is the number of completion tokens by the endpoint's count, if it is known.
    """
    capture = TokenCapture(name_of(fields.get("endpoint")), name_of(fields.get("model")))
    capture.add_values(*(fields.get(name) for name in ("prompt_token_ids", "completion_token_ids", "logprobs")))
    known, label = as_list(fields.get("problems")), _LABELS.get(as_text(fields.get("label")), "agent")
    if capture.is_empty and not known:
        return None
    count = n_completion if type(n_completion) is int and 0 <= n_completion < 2**53 else None
    sequence = capture.sequence(label, count, as_text(fields.get("cause"))[:300])
    problems = {*sequence.problems, *(each for each in get_args(Problem) if each in known)}
    return msgspec.structs.replace(sequence, problems=tuple(sorted(problems)))


def sequences_of(values: object) -> Iterator[TokenSequence]:
    for fields in map(as_dict, as_list(values)):
        if (sequence := sequence_of(fields, fields.get("n_completion"))) is not None:
            yield sequence


def add_messages(transcript: Transcript, messages: object, role: str) -> None:
    """Add a list of OpenAI's messages, or one text of a role; raises an ``UnreadableItem`` if it has something else."""
    listed = [{"role": role, "content": messages}] if isinstance(messages, str) else as_list(messages)
    for message in map(message_of, listed):
        transcript.add(message)


def add_spoken(transcript: Transcript, items: Iterable[object], speaker: str, content: str) -> None:
    """Add texts by the fields that name their speaker and content; replies without a loss are no valid actions."""
    for item in map(as_dict, items):
        role, text = _SPEAKERS.get(as_text(item.get(speaker))), as_text(item.get(content))
        if role is None:
            raise UnreadableItem("a message has no known speaker")
        transcript.add({"role": role, "content": text}, action=Action(text, valid=item.get("loss") is not False))


def labelled_draft(fields: dict[str, Any], transcript: Transcript) -> Draft:
    success, outcome = fields.get("success"), as_text(fields.get("outcome"))
    task, attempt = fields.get("task_index"), fields.get("attempt")
    return Draft(
        transcript=transcript,
        id=name_of(fields.get("episode_id") or fields.get("id")),
        env=as_text(fields.get("env")),
        task=task if type(task) is int else None,
        attempt=attempt if type(attempt) is int else None,
        agent=as_text(fields.get("agent")),
        model=as_text(fields.get("model")) or None,
        reward=number_of(fields.get("reward")),
        agentgym_score=number_of(as_dict(fields.get("agentgym")).get("score")),
        success=bool(success) if isinstance(success, int) else None,
        outcome=Outcome(outcome) if outcome in _OUTCOMES else None,
        rated=fields.get("rated") is not False,
        tools=[each for each in as_list(fields.get("tools")) if isinstance(each, dict)],
    )


def result_fields(episode: EpisodeRecord) -> dict[str, Any]:
    """Return the result of an episode as ``labelled_draft`` reads it: only what is known of it."""
    fields: dict[str, Any] = {}
    if episode.origin is None or OUTCOME not in episode.origin.missing:
        fields = {"outcome": episode.outcome, "success": episode.success}
    if episode.reward is not None:
        fields["reward"] = episode.reward
    if episode.agentgym is not None:
        fields["agentgym"] = episode.agentgym
    return fields | ({"rated": False} if episode.unscored else {})


def _times(draft: Draft, modified_at: datetime, missing: list[str]) -> tuple[datetime, float]:
    started_at = draft.started_at or modified_at
    if draft.started_at is None:
        missing.append("times")
    if draft.duration_s is not None:
        duration_s = draft.duration_s
    elif draft.started_at is not None and draft.ended_at is not None:
        duration_s = (draft.ended_at - draft.started_at).total_seconds()
    else:
        duration_s = 0.0
        if draft.started_at is not None:
            missing.append("duration")
    latest_s = (_LATEST - started_at).total_seconds()
    return started_at, max(0.0, min(duration_s, latest_s))


def _result(draft: Draft, missing: list[str]) -> tuple[Outcome, bool, bool]:
    rated = draft.rated and not is_unscored(draft.evaluation)
    if draft.reward is None:
        missing.append("reward")
    if draft.outcome is not None:
        success = draft.outcome == Outcome.SUCCESS if draft.success is None else draft.success
        return draft.outcome, success, rated
    if draft.error is not None:
        return Outcome.ERROR, False, rated
    if draft.success is None and (draft.reward is None or not rated):
        missing.append(OUTCOME)
        return Outcome.INTERRUPTED, False, False
    if draft.success is None:
        full = _FULL_REWARDS.get(draft.env.lower(), 1)
        missing.append(f"success, which is taken from a reward of {full} or more")
        success = (draft.reward or 0.0) >= full
    else:
        success = draft.success
    return Outcome.SUCCESS if success else Outcome.FAILURE, success, rated


def _task_index(draft: Draft, missing: list[str]) -> int:
    """Return the number of the task: its own or at its end, else one that follows from its name or first messages."""
    task = draft.task
    if type(task) is int and 0 <= task < 2**53:
        return task
    if isinstance(task, str) and (match := _TASK_NUMBER.fullmatch(task)):
        return int(match[1])
    if task is None or task == "":
        missing.append("task")
        chats = [step.chats[0] for step in draft.transcript.steps[:1]] or [draft.transcript.opening]
        return named_task(*(as_text(each.get("content")) for each in chats[0] if each.get("role") != "assistant"))
    return named_task(str(task))


def named_task(*names: str) -> int:
    digest = hashlib.sha256()
    for number, name in enumerate(names):
        digest.update(b"\0" * bool(number) + name.encode("utf-8", "replace"))
    return int.from_bytes(digest.digest()[:4], "big") >> 1


class Attempts:
    def __init__(self) -> None:
        self._known: Counter[tuple[str, int, str, str | None]] = Counter()

    def number(self, record: EpisodeRecord, draft: Draft) -> None:
        """An attempt that the file numbers keeps its number."""
        key = (record.env, record.task_index, record.agent, record.model)
        if draft.attempt is None:
            record.attempt = self._known[key]
        self._known[key] += 1
