"""Chats: OpenAI messages and ShareGPT for supervised training, preference pairs, and results of an old verifiers.

Sources: OpenAI's chat completions API for messages and tools; FastChat's conversation data for ``human``, ``gpt`` and
``system``, which Axolotl and LLaMA-Factory read; the conversational preference format of TRL; ``vf-eval`` of verifiers
0.1, whose results have a column for each function of the rubric. Trainers ignore the fields that name the episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Any

from runner.formats.conversation import read_conversation, read_spoken, require_steps
from runner.formats.drafts import Draft, Transcript, add_messages, add_spoken, labelled_draft, result_fields
from runner.formats.foreign_values import int_of, name_of, number_of, task_of
from runner.formats.format import Format, LeftOut
from runner.formats.reading import Place
from runner.store.episode_file import EpisodeRecord
from runner.types import Message, Outcome, join_models
from runner.util.json_accessors import as_dict, as_list, as_text
from runner.util.safe_values import encode

_COLUMNS = frozenset(("id", "example_id", "reward", "generation_ms", "scoring_ms", "total_ms"))
"""Numbers of a line that are no results of the rubric."""


def encode_messages(episode: EpisodeRecord) -> dict[str, Any]:
    require_steps(episode)
    ref = episode.timesteps[0].tool_schemas_ref
    tools = episode.tool_schemas[ref] if isinstance(ref, int) else []
    return {
        "messages": read_conversation(episode).messages(),
        **({"tools": tools} if tools else {}),
        **_origin(episode),
    }


def encode_sharegpt(episode: EpisodeRecord) -> dict[str, Any]:
    """Speakers alternate, and tool calls are text."""
    spoken = read_spoken(episode)
    items = [] if spoken.system is None else [{"from": "system", "value": spoken.system}]
    for observation, reply, _ in spoken.turns:
        items += [{"from": "human", "value": observation}, {"from": "gpt", "value": reply}]
    return {"conversations": items, "final_observation": spoken.last, **_origin(episode)}


def _origin(episode: EpisodeRecord) -> dict[str, Any]:
    """Endpoint and model of each reply are named if not only ``model`` answered."""
    steps, answers = episode.timesteps, dict[str, Any]()
    if join_models(episode.model, episode.models) != episode.model:
        answers = {"endpoints": [step.endpoint for step in steps], "models": [step.model for step in steps]}
    return {
        "episode_id": episode.episode_id,
        "env": episode.env,
        "task_index": episode.task_index,
        "attempt": episode.attempt,
        "agent": episode.agent,
        "model": episode.model,
        **answers,
        **result_fields(episode),
    }


def _labelled_draft(fields: dict[str, Any], transcript: Transcript) -> Draft:
    answers = as_list(fields.get("endpoints")), as_list(fields.get("models"))
    for step, endpoint, model in zip(transcript.steps, *answers, strict=False):
        step.endpoint, step.model = name_of(endpoint) or None, name_of(model) or None
    return labelled_draft(fields, transcript)


def decode_messages(value: object, place: Place) -> Iterator[Draft]:
    """Yield the episode of a line; its result is known where the line has a reward or other fields of our exports.

    In results of tau-bench, the messages are ``traj``, beside ``task_id``, ``trial`` and ``reward``.
    """
    fields = as_dict(value)
    transcript = Transcript()
    add_messages(transcript, fields.get("messages") or fields.get("traj"), "user")
    draft = _labelled_draft({"attempt": fields.get("trial"), **fields}, transcript)
    if draft.task is None:
        draft.task = task_of(fields.get("task_id"))
    yield draft


def decode_sharegpt(value: object, place: Place) -> Iterator[Draft]:
    """Yield the episode of a conversation with speakers; its result is known only in our own exports."""
    fields = as_dict(value)
    transcript = Transcript()
    add_spoken(transcript, as_list(fields.get("conversations")), "from", "value")
    if final := as_text(fields.get("final_observation")):
        transcript.add({"role": "user", "content": final})
    yield _labelled_draft(fields, transcript)


class PreferenceWriter:
    """Pairs the attempts of a task, which come one after another; it holds two episodes at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._task: tuple[object, ...] = ()
        self._attempts: list[EpisodeRecord] = []
        self._n_attempts = 0
        self._unpaired = Counter[str]()

    def write(self, episode: EpisodeRecord) -> None:
        """A pair is written when the next task begins."""
        require_steps(episode)
        if episode.reward is None:
            raise LeftOut("its reward is unknown")
        task = (episode.env, episode.data_label, episode.mode, episode.agent, episode.task_index)
        if task != self._task:
            self._write_pair()
            self._task = task
        self._n_attempts += 1
        best_to_worst = sorted(
            [*self._attempts, episode], key=lambda each: (_reward(each), -each.rounds, each.episode_id), reverse=True
        )
        self._attempts = [best_to_worst[0], best_to_worst[-1]] if len(best_to_worst) > 1 else best_to_worst

    def finish(self) -> Mapping[str, int]:
        self._write_pair()
        return self._unpaired

    def _write_pair(self) -> None:
        if self._attempts:
            try:
                self._file.write(encode(encode_pair(self._attempts)) + b"\n")
            except LeftOut as exc:
                self._unpaired[str(exc)] += self._n_attempts
            else:
                if self._n_attempts > 2:
                    self._unpaired["neither the best nor the worst attempt of its task"] += self._n_attempts - 2
        self._attempts, self._n_attempts = [], 0


def encode_pair(attempts: list[EpisodeRecord]) -> dict[str, Any]:
    """Return the pair of the best and the worst attempt of a task.

    Raises ``LeftOut`` for a single attempt, equal rewards, or no reply from which on they differ.
    """
    if len(attempts) < 2:
        raise LeftOut("the only attempt of its task")
    better, worse = attempts
    if _reward(better) <= _reward(worse):
        raise LeftOut("all attempts of its task have the same reward")
    chosen, rejected = (read_conversation(episode).messages() for episode in attempts)
    n = _n_equal(chosen, rejected)
    if n in (len(chosen), len(rejected)):
        raise LeftOut("the replies of one are the first replies of the other")
    if "assistant" not in (chosen[n]["role"], rejected[n]["role"]):
        raise LeftOut("the environment or the prompt differs before the replies do")
    return {
        "prompt": chosen[:n],
        "chosen": chosen[n:],
        "rejected": rejected[n:],
        "env": better.env,
        "task_index": better.task_index,
        "score_chosen": better.reward,
        "score_rejected": worse.reward,
        "episode_chosen": better.episode_id,
        "episode_rejected": worse.episode_id,
    }


def _reward(episode: EpisodeRecord) -> float:
    assert episode.reward is not None  # the writer takes no others
    return episode.reward


def _n_equal(chosen: list[Message], rejected: list[Message]) -> int:
    """Return the number of equal messages at the beginning; the ids of tool calls do not count."""
    pairs = zip(chosen, rejected, strict=False)
    return next(
        (n for n, (one, other) in enumerate(pairs) if _content(one) != _content(other)), min(len(chosen), len(rejected))
    )


def _content(message: Message) -> tuple[object, ...]:
    functions = [call.get("function") for call in message.get("tool_calls", [])]
    return message["role"], message["content"], message.get("reasoning_content"), functions


def decode_pair(value: object, place: Place) -> Iterator[Draft]:
    """Yield the two conversations of a pair as attempts at one task; neither is rated."""
    fields = as_dict(value)
    index, prompt = int_of(fields.get("task_index")), fields.get("prompt")
    task = index if index is not None else encode(prompt).decode() if prompt else ""
    for attempt, name in enumerate(("chosen", "rejected")):
        transcript = Transcript()
        add_messages(transcript, prompt, "user")
        add_messages(transcript, fields.get(name), "assistant")
        yield Draft(
            transcript=transcript,
            id=name_of(fields.get(f"episode_{name}")),
            env=as_text(fields.get("env")),
            agent=name,
            task=task,
            attempt=attempt,
            reward=number_of(fields.get(f"score_{name}")),
            evaluation={"preference": name},
            rated=False,
        )


def decode_result(value: object, place: Place) -> Iterator[Draft]:
    """The number of the example is ``example_id``, in older versions ``id``."""
    fields = as_dict(value)
    transcript, task = Transcript(), as_text(fields.get("task"))
    add_messages(transcript, fields.get("prompt"), "user")
    add_messages(transcript, fields.get("completion"), "assistant")
    total_ms = number_of(fields.get("total_ms", as_dict(fields.get("timing")).get("total_ms")))
    columns = {**as_dict(fields.get("metrics")), **fields}
    rubric = {name: value for name, value in columns.items() if name not in _COLUMNS and type(value) in (int, float)}
    answer = as_text(fields.get("answer"))[:1_000]
    yield Draft(
        transcript=transcript,
        env="" if task == "default" else task,
        task=task_of(fields.get("example_id", fields.get("id"))),
        agent="verifiers",
        duration_s=None if total_ms is None else total_ms / 1000,
        outcome=Outcome.TRUNCATED if fields.get("is_truncated") is True else None,
        reward=number_of(fields.get("reward")),
        evaluation=rubric | ({"answer": answer} if answer else {}) or None,
    )


MESSAGES = Format(
    name="messages",
    title="OpenAI messages",
    suffix=".jsonl",
    encode=encode_messages,
    signature="objects with `messages`, or `traj` as of tau-bench, which have a `role`",
    matches=lambda head: head.lists("messages", "role") or head.lists("traj", "role"),
    decode=decode_messages,
)
SHAREGPT = Format(
    name="sharegpt",
    title="ShareGPT",
    suffix=".jsonl",
    encode=encode_sharegpt,
    signature="objects with `conversations`, whose items have `from` and `value`, and without `item_id`",
    matches=lambda head: head.lists("conversations", "from") and not head.has("item_id"),
    decode=decode_sharegpt,
)
PREFERENCES = Format(
    name="preferences",
    title="Preference pairs",
    suffix=".jsonl",
    open_writer=PreferenceWriter,
    by_task=True,
    signature="objects with `chosen` and `rejected`",
    matches=lambda head: head.has("chosen", "rejected"),
    decode=decode_pair,
)
RESULTS = Format(
    name="verifiers-results",
    title="verifiers 0.1 results",
    signature="objects with `prompt`, `completion`, `reward`, and `example_id` or `id`",
    matches=lambda head: head.has("prompt", "completion", "reward") and (head.has("id") or head.has("example_id")),
    decode=decode_result,
)
