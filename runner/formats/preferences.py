"""Preference pairs: the better against the worse attempt of one task, from their first different reply on.

One line of JSON per pair with ``prompt``, ``chosen`` and ``rejected``, each a list of chat messages: the conversational
preference format of TRL. Of each task, agent and data set, the episode with the highest reward is paired with that of
the lowest; of equal rewards the shorter episode is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from runner.formats.conversation import read_conversation, require_steps
from runner.formats.drafts import Draft, Transcript, add_messages
from runner.formats.export import Output
from runner.formats.foreign_values import name_of, number_of
from runner.formats.format import Format, LeftOut
from runner.formats.reading import Place
from runner.store.episode_file import EpisodeRecord
from runner.types import Message
from runner.util.json_accessors import as_dict, as_text
from runner.util.safe_values import encode

_Task: TypeAlias = tuple[object, ...]


class PreferenceWriter:
    """Pairs the attempts of a task, which come one after another; it holds two episodes at a time."""

    def __init__(self, output: Output) -> None:
        self._file = output.create()
        self._task: _Task | None = None
        self._attempts: list[EpisodeRecord] = []
        self._n_attempts = 0
        self._unpaired: dict[str, int] = {}

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
        best_to_worst = sorted([*self._attempts, episode], key=_rank, reverse=True)
        self._attempts = [best_to_worst[0], best_to_worst[-1]] if len(best_to_worst) > 1 else best_to_worst

    def finish(self) -> Mapping[str, int]:
        self._write_pair()
        return self._unpaired

    def _write_pair(self) -> None:
        if self._attempts:
            try:
                self._file.write(encode(encode_pair(self._attempts)) + b"\n")
            except LeftOut as exc:
                self._count(str(exc), self._n_attempts)
            else:
                if self._n_attempts > 2:
                    self._count("neither the best nor the worst attempt of its task", self._n_attempts - 2)
        self._attempts, self._n_attempts = [], 0

    def _count(self, reason: str, n: int) -> None:
        self._unpaired[reason] = self._unpaired.get(reason, 0) + n


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


def _rank(episode: EpisodeRecord) -> tuple[float, int, str]:
    return _reward(episode), -episode.rounds, episode.episode_id


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
    index, prompt = fields.get("task_index"), fields.get("prompt")
    task = index if type(index) is int else encode(prompt).decode() if prompt else ""
    for attempt, name in enumerate(("chosen", "rejected")):
        transcript = Transcript()
        for part, role in ((prompt, "user"), (fields.get(name), "assistant")):
            add_messages(transcript, [{"role": role, "content": part}] if isinstance(part, str) else part)
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


FORMAT = Format(
    name="preferences",
    title="Preference pairs",
    suffix=".jsonl",
    open_writer=PreferenceWriter,
    by_task=True,
    signature="objects with `chosen` and `rejected`",
    matches=lambda head: "chosen" in head.first and "rejected" in head.first,
    decode=decode_pair,
)
