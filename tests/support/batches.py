"""Batches resolved as those of a run, without a profile of their own."""

from __future__ import annotations

from typing import Any

from runner import plugins
from runner.batch.spec import NODE_FILES, RUN_FILES, BatchSpec, ResolvedBatch, place_batch, resolve_spec
from runner.config import AgentSettings, ARESettings, EpisodeSettings, Profile
from runner.envs.availability import DEFAULT_ARE
from runner.envs.placement import Placement, find_environment
from runner.inference.profile_models import Models
from runner.worker.runner_setup import RunnerSetup


def resolved_batch(
    placement: Placement | None = None,
    *,
    models: Models | None = None,
    are: ARESettings = DEFAULT_ARE,
    world: bool | None = None,
    **fields: Any,  # noqa: ANN401 - of the spec
) -> ResolvedBatch:
    """Return a batch with these fields of its spec, by default embedded and with episodes in this process."""
    agent, episode = AgentSettings() if models is None else models.settings, EpisodeSettings(world=world)
    profile = Profile(id="p", agent=agent, episode=episode, are=are)
    batch = resolve_spec(profile, BatchSpec(**{"workers": 0, **fields}))
    return place_batch(batch, RUN_FILES) if placement is None else batch.placed(placement)


def place_spec(spec: BatchSpec) -> ResolvedBatch:
    """Return a batch of a queue, embedded."""
    return place_batch(resolve_spec(Profile(id="p"), spec), NODE_FILES)


def make_setup(env: str, agent: str, **settings: Any) -> RunnerSetup:  # noqa: ANN401
    """Return the settings that the episodes of an environment and an agent share."""
    return RunnerSetup(env=find_environment(env), agent=plugins.find(plugins.AGENTS, agent), **settings)
