"""Tries a model server that the user names, from the console's process: first a check, then two turns of an agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.config.own_model import OwnModel
    from runner.inference.health import EndpointHealth
    from runner.node.preflight import ModelTrial


async def try_own_model(own: OwnModel, on_health: Callable[[EndpointHealth], object]) -> ModelTrial | None:
    """Check a server, and ask its model if the server answers; return the trial, None without one.

    Args:
        own: the server and its model. Its key comes from this process's environment.
        on_health: receives the result of the check, which asks no model.

    Raises:
        ConfigError: the URL or the name of the variable is not valid, or the variable is not set.
    """
    await asyncio.to_thread(_import_trial)
    from runner.config import Profile
    from runner.inference.profile_models import Models, is_answering
    from runner.node.preflight import try_endpoints

    profile = own.used_by(Profile(id="own"), os.environ)
    with closing(Models(profile.agent, os.environ)) as models:
        (health,) = await models.manager.check(own.model)
        on_health(health)
        if not is_answering(health):
            return None
        (trial,) = await try_endpoints(own.model, models, profile.episode.max_duration_sec, lambda _: None)
        return trial


def _import_trial() -> None:
    import runner.node.preflight  # noqa: F401 - takes too long for the event loop
