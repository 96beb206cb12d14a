"""Reads the list row of an episode file; skips the messages, which is several times faster than decoding them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from runner.errors import StoreError
from runner.store.episode_file import Origin, check_header, decode, known_reward
from runner.store.failures import row_findings
from runner.store.flags import StepOutline
from runner.store.index_schema import EpisodeRow, time_values
from runner.types import (
    AgentGymScore,
    EpisodeHeader,
    ErrorInfo,
    Outcome,
    Phases,
    Tokens,
    agentgym_score,
    count_models,
    fallback_endpoints,
    join_models,
    join_shapes,
)
from runner.util.safe_values import finite

MAX_SHARED: Final = 10_000
"""Largest number of distinct texts that are shared between rows."""


class _StepSummary(StepOutline, kw_only=True):
    model_s: float
    shape: str = ""
    phases: Phases | None = None


class _Evaluation(msgspec.Struct):
    rated: object = None


class _EpisodeSummary(EpisodeHeader, kw_only=True):
    ended_at: datetime
    duration_s: float
    outcome: Outcome
    success: bool
    reward: float | None
    agentgym: AgentGymScore | None = None
    rounds: int
    tokens: Tokens
    cost: float | None = None
    energy_j: float | None = None
    energy_shared: bool = False
    gpu_s: float | None = None
    timesteps: list[_StepSummary]
    error: ErrorInfo | None = None
    evaluation: _Evaluation | None = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        """See ``EpisodeRecord``."""
        self.reward = known_reward(self.reward, self.origin)

    @property
    def unscored(self) -> bool:
        """See ``EpisodeRecord``."""
        return self.evaluation is not None and self.evaluation.rated is False


class SummaryReader:
    """Reads the list rows of episode files; equal texts and common numbers of different rows share one object."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def row(self, data: bytes, path: Path) -> EpisodeRow:
        """Return the list row of an episode file.

        Most defects in the steps of the episode are noticed only when the episode is opened.

        Args:
            data: content of the file.
            path: path of the file; only named in errors.

        Raises:
            StoreError: the content is not an episode of the current schema.
        """
        summary = decode(data, _DECODER, path)
        try:
            check_header(summary, Path(summary.batch_id, f"{summary.episode_id}.json"))
        except StoreError as exc:
            raise StoreError(f"{path} is not an episode of this version: {exc}") from exc
        model_times_s = [step.model_s for step in summary.timesteps if step.endpoint is not None]
        rewards = [step.reward for step in summary.timesteps]
        agentgym = summary.agentgym or agentgym_score(summary.env, rewards, summary.reward)
        row = EpisodeRow(
            **{name: getattr(summary, name) for name in _COMMON},
            agentgym_score=None if agentgym is None else agentgym.score,
            tokens_prompt=summary.tokens.prompt,
            tokens_completion=summary.tokens.completion,
            tokens_reasoning=summary.tokens.reasoning,
            tokens_cached=summary.tokens.cached,
            model_s=finite(sum(model_times_s)) if model_times_s else None,
            models=join_models(summary.model, count_models((each.endpoint, each.model) for each in summary.timesteps)),
            fallback=fallback_endpoints((step.endpoint, step.warnings) for step in summary.timesteps),
            shape=join_shapes(step.shape for step in summary.timesteps),
            error_type=summary.error.type if summary.error else None,
            unscored=summary.unscored,
            **time_values(summary.timesteps),
            **row_findings(summary, summary.timesteps),
        )
        return self.share_values(row)

    def share_values(self, row: EpisodeRow) -> EpisodeRow:
        """Return ``row`` with the objects of equal texts in other rows, and of common numbers."""
        for name in _SHARED_NUMBERS:
            if (number := _NUMBERS.get(getattr(row, name))) is not None:
                force_setattr(row, name, number)
        texts = self._texts
        for name in _SHARED_TEXTS:
            if (text := getattr(row, name)) is None:
                continue
            if (known := texts.get(text)) is not None:
                force_setattr(row, name, known)
            elif len(texts) < MAX_SHARED:
                texts[text] = text
        return row


_COMMON: Final = tuple(name for name in EpisodeRow.__struct_fields__ if name in _EpisodeSummary.__struct_fields__)
_SHARED_NUMBERS: Final = ("reward", "agentgym_score", "queue_s", "prefill_s", "decode_s", "unsplit_s", "endpoint_s")
_NUMBERS: Final[dict[float | None, float]] = {0.0: 0.0, 1.0: 1.0}
_SHARED_TEXTS: Final = (
    *("batch_id", "battery_id", "node", "profile", "env", "transport", "data_label", "agent", "model"),
    *("error_type", "models", "fallback", "shape", "limits", "flags", "failure", "currency"),
)
_DECODER: Final = msgspec.json.Decoder(_EpisodeSummary)
