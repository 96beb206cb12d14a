"""Two episodes side by side: aligned by step, with their first divergence and the differences within their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from runner.store.episode_file import EpisodeRecord
from runner.types import TimeStep, shape_note
from runner.types.fields import FOREIGN
from runner.util.json_accessors import as_dict, content_text

Difference: TypeAlias = Literal["action", "observation", "reward", "missing"]
"""What differs between the two sides of a step; ``missing``: one side has no such step."""

SIDES: Final = ("A", "B")
MAX_DIFF_WORDS: Final = 1_000
"""Number of words, spaces included, up to which differences within a part of a text are found."""

_MARKS = "\u0300-\u036f\u200d\u20d0-\u20ff\ufe00-\ufe0f\U0001f3fb-\U0001f3ff"
_WORDS = re.compile(rf"\s+|\w[\w{_MARKS}]*|[^\w\s][{_MARKS}]*")
"""Words; a mark belongs to the character before it, so that no difference begins inside a character."""


class StepText(msgspec.Struct, frozen=True, kw_only=True):
    """A step as it is compared; texts are as recorded, with surrounding whitespace removed.

    The ``thought`` is what the agent wrote beside its action; it is shown, but a difference in it is no divergence.
    ``time_s`` are the seconds of the agent and the environment.
    """

    index: int
    action: Annotated[str, FOREIGN]
    thought: Annotated[str, FOREIGN]
    observation: Annotated[str, FOREIGN]
    reward: float
    valid: bool
    time_s: float


class AlignedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of two episodes with the same index; a side without one is None."""

    index: int
    left: StepText | None
    right: StepText | None
    differences: tuple[Difference, ...]


class AlignedEpisodes(msgspec.Struct, frozen=True, kw_only=True):
    """Two episodes, their steps in pairs, and the position of the first pair that differs; None if none does.

    ``reset_differs`` is whether they already began with different observations.
    """

    reset_differs: bool
    shapes: tuple[str, str]
    steps: list[AlignedStep]
    divergence: int | None

    @property
    def shape_note(self) -> str:
        return shape_note(dict(zip(SIDES, ([shape] for shape in self.shapes), strict=True)))


class Segment(msgspec.Struct, frozen=True):
    """A part of two texts: the same in both if ``same``, else what the left and the right one have in this place."""

    left: str
    right: str
    same: bool


def align(left: EpisodeRecord, right: EpisodeRecord) -> AlignedEpisodes:
    pairs = zip_longest(map(step_text, left.timesteps), map(step_text, right.timesteps))
    steps = [
        AlignedStep(index=number, left=one, right=other, differences=tuple(_differences(one, other)))
        for number, (one, other) in enumerate(pairs)
    ]
    divergence = next((number for number, step in enumerate(steps) if step.differences), None)
    reset_differs = _join(left.reset_observation) != _join(right.reset_observation)
    shapes = left.shape, right.shape
    return AlignedEpisodes(reset_differs=reset_differs, shapes=shapes, steps=steps, divergence=divergence)


def step_text(step: TimeStep) -> StepText:
    action = step.action.text or ""
    calls = [f"{call.name}({call.arguments})" for call in step.action.tool_calls]
    reply = as_dict(step.chats[0][-1]) if step.chats and step.chats[0] else {}
    thoughts = (reply.get("reasoning_content"), content_text(reply.get("content")))
    return StepText(
        index=step.index,
        action=action.strip() or "\n".join(calls),
        thought="\n".join(
            text.strip() for text in thoughts if isinstance(text, str) and text.strip() != action.strip()
        ),
        observation=_join(step.observation),
        reward=step.reward,
        valid=step.action.valid,
        time_s=step.model_s + step.env_s,
    )


def word_segments(left: str, right: str) -> list[Segment]:
    """Return the parts of two texts that are the same and those that differ, word by word.

    Parts of more than ``MAX_DIFF_WORDS`` words between the first and the last difference are one difference.
    """
    words, others = _WORDS.findall(left), _WORDS.findall(right)
    start = _n_common(words, others)
    end = _n_common(words[start:][::-1], others[start:][::-1])
    segments = [
        Segment("".join(words[:start]), "".join(others[:start]), same=True),
        *_middle_segments(words[start : len(words) - end], others[start : len(others) - end]),
        Segment("".join(words[len(words) - end :]), "".join(others[len(others) - end :]), same=True),
    ]
    return [segment for segment in segments if segment.left or segment.right]


def _middle_segments(words: list[str], others: list[str]) -> Iterator[Segment]:
    if max(len(words), len(others)) > MAX_DIFF_WORDS:
        yield Segment("".join(words), "".join(others), same=False)
        return
    pending = Segment("", "", same=False)
    for tag, start, end, other_start, other_end in SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        left, right = "".join(words[start:end]), "".join(others[other_start:other_end])
        if tag == "equal" and (pending == Segment("", "", same=False) or not left.isspace()):
            yield pending
            yield Segment(left, right, same=True)
            pending = Segment("", "", same=False)
        else:  # a space between two differences is part of one
            pending = Segment(pending.left + left, pending.right + right, same=False)
    yield pending


def _n_common(words: list[str], others: list[str]) -> int:
    pairs = enumerate(zip(words, others, strict=False))
    return next((number for number, (word, other) in pairs if word != other), min(len(words), len(others)))


def _differences(left: StepText | None, right: StepText | None) -> Iterator[Difference]:
    if left is None or right is None:
        yield "missing"
        return
    if left.action != right.action:
        yield "action"
    if left.observation != right.observation:
        yield "observation"
    if left.reward != right.reward:
        yield "reward"


def _join(messages: list[Any]) -> str:
    texts = (content_text(as_dict(message).get("content")).strip() for message in messages)
    return "\n".join(text for text in texts if text)
