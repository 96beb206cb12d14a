"""Token ids in exports, and the audit of an export: what a trainer could use of it.

The completion of a step is trained if all its ids are known, see ``TokenSequence.is_trained``; every other sequence is
exported with its label and a loss mask of 0, so none is left out.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from runner.errors import StoreError
from runner.formats.selection import Candidate, group_of
from runner.store.episode_file import EpisodeRecord
from runner.store.episode_store import EpisodeStore
from runner.store.token_file import TokenizedEpisode
from runner.types import Outcome
from runner.types.sequences import TokenSequence
from runner.types.time_shares import percent_text
from runner.util.display_text import pluralize


class StepTokens(NamedTuple):
    """The tokens of a step; ``others`` are data for JSON, with labels and loss masks."""

    trained: TokenSequence | None = None
    others: list[dict[str, Any]] = []  # noqa: RUF012 - the default is never changed


def step_tokens(episode: EpisodeRecord, number: int) -> StepTokens:
    """The number is that of the step's position in the episode."""
    if not isinstance(episode, TokenizedEpisode):
        return StepTokens()
    trained = trained_sequence(episode, number)
    return StepTokens(trained, [described(each) for each in episode.sequences[number] if each is not trained])


def trained_sequence(episode: EpisodeRecord, number: int) -> TokenSequence | None:
    """Return the sequence whose completion is trained of the step with this position; None if there is none."""
    sequences = episode.sequences[number] if isinstance(episode, TokenizedEpisode) else []
    return next((each for each in reversed(sequences) if each.is_trained), None)


def unfinished_tokens(episode: EpisodeRecord) -> list[dict[str, Any]]:
    return list(map(described, episode.unfinished)) if isinstance(episode, TokenizedEpisode) else []


def usable_logprobs(sequence: TokenSequence) -> list[float]:
    """Empty if their number differs from that of the ids."""
    return sequence.logprobs if len(sequence.logprobs) == len(sequence.completion_ids) else []


def described(sequence: TokenSequence) -> dict[str, Any]:
    fields = {
        "label": sequence.label,
        "endpoint": sequence.endpoint,
        "model": sequence.model,
        "prompt_token_ids": sequence.prompt_ids,
        "completion_token_ids": sequence.completion_ids,
        "logprobs": sequence.logprobs,
        "loss_mask": sequence.loss_mask,
        "n_completion": sequence.n_completion,
        "problems": list(sequence.problems),
        "cause": sequence.cause,
    }
    return {name: value for name, value in fields.items() if value}


class Audit(msgspec.Struct, kw_only=True):
    """What a trainer could use of an export; all counts are exact.

    A group has the attempts of one agent at one task. It is trainable if the rewards of its rated attempts differ, not
    all of them were truncated, and one of them has a trained step.

    Attributes:
        n_lost_files: episodes whose token file, or a part of it, is missing or damaged.
        n_steps_with_ids: steps with a sequence of the agent that has prompt and completion ids.
        n_trained_ids: ids with the loss mask 1.
        n_drifted: sequences of the agent with completion ids whose log-probabilities are missing or of another number.
        n_incomplete: sequences whose ids are not as many as the endpoint counted.
        n_zero_variance: groups whose rated attempts all have the same reward, or that have fewer than two.
        n_all_truncated: groups with rated attempts that were all truncated.
        n_without_tokens: groups in which no rated attempt has a trained step.
    """

    n_episodes: int = 0
    n_unreadable: int = 0
    n_lost_files: int = 0
    n_steps: int = 0
    n_steps_with_ids: int = 0
    n_trained_steps: int = 0
    sequences: dict[str, int] = {}
    problems: dict[str, int] = {}
    n_prompt_ids: int = 0
    n_completion_ids: int = 0
    n_trained_ids: int = 0
    n_drifted: int = 0
    n_incomplete: int = 0
    n_groups: int = 0
    n_zero_variance: int = 0
    n_all_truncated: int = 0
    n_without_tokens: int = 0
    n_trainable: int = 0
    left_out: dict[str, int] = {}
    summary: str = ""

    def lines(self) -> list[str]:
        left_out = [f"left out                {pluralize(n, 'episode')}: {each}" for each, n in self.left_out.items()]
        lost = {"token files lost        ": self.n_lost_files, "not readable            ": self.n_unreadable}
        return [
            f"{pluralize(self.n_episodes, 'episode')}, {pluralize(self.n_groups, 'group')}",
            *self._step_lines(),
            f"sequences               {_counts(self.sequences)}",
            f"problems                {_counts(self.problems)}",
            f"drift                   {pluralize(self.n_drifted, 'sequence')} without usable log-probabilities",
            f"incomplete              {pluralize(self.n_incomplete, 'sequence')}",
            *self._group_lines(),
            *left_out,
            *(f"{name}{pluralize(n, 'episode')}" for name, n in lost.items() if n),
            self.summary,
        ]

    def brief_lines(self) -> list[str]:
        return [self.summary, *self._step_lines(), *self._group_lines()]

    def _step_lines(self) -> list[str]:
        ids = self.n_prompt_ids + self.n_completion_ids
        return [
            f"steps with token ids    {_share(self.n_steps_with_ids, self.n_steps)}",
            f"trained steps           {_share(self.n_trained_steps, self.n_steps)}",
            f"ids with loss mask 1    {_share(self.n_trained_ids, ids)}",
        ]

    def _group_lines(self) -> list[str]:
        return [
            f"zero-variance groups    {_share(self.n_zero_variance, self.n_groups)}",
            f"all-truncated groups    {_share(self.n_all_truncated, self.n_groups)}",
            f"groups without tokens   {_share(self.n_without_tokens, self.n_groups)}",
        ]


class _Group(msgspec.Struct):
    rewards: set[float] = msgspec.field(default_factory=set)
    n_rated: int = 0
    n_truncated: int = 0
    has_tokens: bool = False

    @property
    def is_flat(self) -> bool:
        return len(self.rewards) < 2

    @property
    def is_truncated(self) -> bool:
        return 0 < self.n_rated == self.n_truncated


def audit_episodes(store: EpisodeStore, candidates: Iterable[Candidate], left_out: Counter[str]) -> Audit:
    def load(candidate: Candidate) -> EpisodeRecord | None:
        with contextlib.suppress(StoreError):
            return store.load_with_tokens(store.path(candidate.batch_id, candidate.episode_id))
        return None

    return audited(((candidate, load(candidate)) for candidate in candidates), left_out)


def audited(episodes: Iterable[tuple[Candidate, EpisodeRecord | None]], left_out: Counter[str]) -> Audit:
    """Count episodes, of which None cannot be read, one after another, so that any number takes little memory."""
    audit, labels, problems = Audit(), Counter[str](), Counter[str]()
    by_task: defaultdict[tuple[str, ...], _Group] = defaultdict(_Group)
    for candidate, episode in episodes:
        if episode is None:
            audit.n_unreadable += 1
            continue
        audit.n_episodes += 1
        n_before = audit.n_trained_steps
        for sequence in _count_steps(audit, episode):
            labels[sequence.label] += 1
            problems.update(sequence.problems)
            _count_ids(audit, sequence)
        group = by_task[group_of(candidate)]
        if candidate.rated:
            group.n_rated += 1
            group.rewards |= set() if candidate.reward is None else {candidate.reward}
            group.n_truncated += episode.outcome is Outcome.TRUNCATED
            group.has_tokens |= audit.n_trained_steps > n_before
    groups = by_task.values()
    audit.sequences, audit.problems = dict(labels.most_common()), dict(problems.most_common())
    audit.n_groups = len(groups)
    audit.n_zero_variance = sum(group.is_flat for group in groups)
    audit.n_all_truncated = sum(group.is_truncated for group in groups)
    audit.n_without_tokens = sum(not group.has_tokens for group in groups)
    audit.n_trainable = sum(group.has_tokens and not group.is_flat and not group.is_truncated for group in groups)
    audit.left_out = dict(left_out.most_common())
    share = f"would train {_share(audit.n_trainable, audit.n_groups, ' of its groups')}" if groups else "has no group"
    audit.summary = f"this export {share}"
    return audit


def _count_steps(audit: Audit, episode: EpisodeRecord) -> list[TokenSequence]:
    """Return the sequences of the episode."""
    sequences, unfinished = list[list[TokenSequence]](), list[TokenSequence]()
    if isinstance(episode, TokenizedEpisode):
        sequences, unfinished = episode.sequences, episode.unfinished
        audit.n_lost_files += bool(episode.lost)
    for number, step in enumerate(episode.timesteps):
        found = sequences[number] if sequences else []
        agents = [each for each in found if each.label == "agent"]
        if step.endpoint is not None or agents:
            audit.n_steps += 1
            audit.n_steps_with_ids += any(each.prompt_ids and each.completion_ids for each in agents)
            audit.n_trained_steps += any(each.is_trained for each in agents)
    return [each for found in (*sequences, unfinished) for each in found]


def _count_ids(audit: Audit, sequence: TokenSequence) -> None:
    n_completion = len(sequence.completion_ids)
    audit.n_prompt_ids += len(sequence.prompt_ids)
    audit.n_completion_ids += n_completion
    audit.n_trained_ids += n_completion if sequence.is_trained else 0
    audit.n_drifted += sequence.label == "agent" and n_completion > 0 and not usable_logprobs(sequence)
    audit.n_incomplete += "incomplete" in sequence.problems


def _share(n: int, total: int, what: str = "") -> str:
    return f"{percent_text(n / total)}{what} ({n:,} of {total:,})" if total else "- (none)"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in counts.items()) or "none"
