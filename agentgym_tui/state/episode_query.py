"""The fields of episodes in the filter of their list, and filters that select exact values."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.normalize import as_aware
from agentgym_tui.state.query import MAX_CHARS, FieldSet, quoted
from runner.types import MIX, UNKNOWN_OUTCOME, is_result_unknown, split_models

if TYPE_CHECKING:
    from agentgym_tui.state.episode_list import ListEntry
    from runner.query.fields import Field, GetValue, Value

MAX_MODELS: Final = 8
"""Number of models of an episode that ``model:`` finds."""

RUNNING: Final = "running"
"""Stands for the outcome of an episode that has not ended."""


class EpisodeFields(FieldSet["ListEntry"]):
    """The fields of ``runner.query.episodes``; a field is the attribute of that name unless ``_GETTERS`` has it."""

    def load(self) -> Mapping[str, Field]:
        from msgspec.structs import replace

        from runner.query.episodes import FIELDS

        outcome = FIELDS["outcome"]
        return {**FIELDS, "outcome": replace(outcome, values=(*outcome.values, RUNNING))}

    def getter(self, name: str) -> GetValue[ListEntry]:
        return _GETTERS.get(name) or attrgetter(name)


def _outcome(episode: Any) -> Value:  # noqa: ANN401 - a stored or live episode
    is_unknown = is_result_unknown(episode.transport, episode.outcome, unscored=episode.unscored)
    return UNKNOWN_OUTCOME if is_unknown else str(episode.outcome or RUNNING)


def _n_tokens(episode: Any) -> Value:  # noqa: ANN401 - a stored or live episode
    if (tokens := getattr(episode, "tokens", None)) is not None:
        return float(tokens.prompt + tokens.completion)
    return float(episode.tokens_prompt + episode.tokens_completion)


def _time(episode: Any) -> Value:  # noqa: ANN401 - a stored or live episode
    """Return the end of an episode; of a live one, which has none, the start."""
    return as_aware(getattr(episode, "ended_at", None) or episode.started_at)


def _flags(episode: Any) -> Value | tuple[Value, ...]:  # noqa: ANN401 - a stored or live episode
    """Return the flags of an episode; None if it has none, an empty tuple if they are not known."""
    flags: str | None = getattr(episode, "flags", None)
    return () if flags is None else tuple(flags.split(",")) if flags else None


def model_runs(models: str | None) -> tuple[str, ...] | None:
    """Return what ``model:`` finds in a text of ``join_models``, as in the index: each name, and names in a row."""
    names = split_models(models)[:MAX_MODELS]
    starts = range(len(names))
    return tuple(MIX.join(names[start : end + 1]) for start in starts for end in starts[start:]) or None


def _models(episode: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - a stored or live episode
    found = model_runs(episode.models)
    return (*found, episode.model) if found and episode.model else found


_GETTERS: Final[Mapping[str, GetValue[Any]]] = {
    "outcome": _outcome,
    "tokens": _n_tokens,
    "time": attrgetter("duration_s"),
    "since": _time,
    "until": _time,
    "task": attrgetter("task_index"),
    "batch": attrgetter("batch_id"),
    "battery": attrgetter("battery_id"),
    "id": attrgetter("episode_id"),
    "error": attrgetter("error_type"),
    "data": attrgetter("data_label"),
    "flag": _flags,
    "model": _models,
    "failure": lambda episode: getattr(episode, "failure", None),
}

EPISODE_FIELDS: Final = EpisodeFields()


def exact_terms(**values: object) -> str:
    """Return a filter for exact values; a tuple has alternatives, and an empty value stands for a missing one.

    A value with unsafe characters, and a term past ``MAX_CHARS``, is left out, so that more is shown.
    """
    terms = ""
    for name, value in values.items():
        texts = [str(each) for each in (value if isinstance(value, tuple) else (value,))]
        shown = ",".join(quoted(text) if text else "none" for text in texts)
        longer = f"{terms} {name}:{shown}".strip()
        if len(longer) <= MAX_CHARS and not has_unsafe_chars(longer):
            terms = longer
    return terms
