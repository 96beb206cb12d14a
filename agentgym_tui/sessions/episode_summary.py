"""An episode file as far as a list shows it: what was said at each step is passed over, which takes a fraction."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from runner.errors import StoreError
from runner.store.episode_file import check_header, decode
from runner.store.index_schema import EpisodeRow
from runner.store.safe_json import finite
from runner.types import EpisodeHeader, Outcome, Tokens, fallback_endpoints

MAX_INTERNED: Final = 10_000
"""Different texts that are kept once, however many episodes have them."""


class _StepSummary(msgspec.Struct):
    model_s: float
    endpoint: str | None = None
    warnings: tuple[str, ...] = ()


class _ErrorType(msgspec.Struct):
    type: str


class _EpisodeSummary(EpisodeHeader, kw_only=True):
    ended_at: datetime
    duration_s: float
    outcome: Outcome
    success: bool
    reward: float
    rounds: int
    tokens: Tokens
    cost: float | None = None
    timesteps: list[_StepSummary]
    error: _ErrorType | None = None


class SummaryReader:
    """Reads files one after the other."""

    def __init__(self) -> None:
        """None was read."""
        self._known: dict[str, str] = {}

    def row(self, data: bytes, path: Path) -> EpisodeRow:
        """What a list shows of an episode; ``path`` names it in errors. What is wrong with its steps opening it tells.

        Raises:
            StoreError: when it is no episode, or one of another schema.
        """
        brief = decode(data, _DECODER, path)
        try:
            check_header(brief, Path(brief.batch_id, f"{brief.episode_id}.json"))
        except StoreError as exc:
            raise StoreError(f"{path} is no episode of this version: {exc}") from exc
        answered = [step.model_s for step in brief.timesteps if step.endpoint is not None]
        return EpisodeRow(
            **{name: self._intern(getattr(brief, name)) for name in _COMMON},
            tokens_prompt=brief.tokens.prompt,
            tokens_completion=brief.tokens.completion,
            tokens_reasoning=brief.tokens.reasoning,
            tokens_cached=brief.tokens.cached,
            model_s=finite(sum(answered)) if answered else None,
            fallback=self._intern(fallback_endpoints((step.endpoint, step.warnings) for step in brief.timesteps)),
            error_type=brief.error.type if brief.error else None,
        )

    def _intern(self, value: Any) -> Any:  # noqa: ANN401 - a field of whatever type
        """The same object for equal texts."""
        if not isinstance(value, str) or len(self._known) >= MAX_INTERNED:
            return value
        return self._known.setdefault(value, value)


_COMMON: Final = tuple(name for name in EpisodeRow.__struct_fields__ if name in _EpisodeSummary.__struct_fields__)
_DECODER: Final = msgspec.json.Decoder(_EpisodeSummary)
