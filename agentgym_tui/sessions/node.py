"""What a console compares and takes over when its node, or the node's profile, changes."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_tui.state.batches import ACTIVE
from agentgym_tui.state.nodes import ProfileDifference, VariableChange
from runner.client.node_folder import StateLocation
from runner.errors import ConfigError
from runner.events.control import NodeList
from runner.node.state_lock import NodeFile, variable_digests

if TYPE_CHECKING:
    from runner.config.own_model import OwnModel
    from runner.inference.health import EndpointHealth
    from runner.node.preflight import ModelTrial


def profile_difference(
    location: StateLocation, node_file: NodeFile, environ: Mapping[str, str]
) -> ProfileDifference | None:
    """Return how the profile and the keys of the running node differ from the location's file and ``environ`` now.

    None also if that is unknown, as the file is gone. A variable that is set only for the node is no difference by
    itself: a node started from here would lack the key.
    """
    from runner.config import profile_digest

    if location.profile_file is None or not node_file.profile_digest:
        return None
    path = location.profile_file.path
    if (digest := profile_digest(path)) is None:
        return None
    is_same = digest == node_file.profile_digest
    is_changed = not is_same and node_file.profile_path == str(path)
    variables = tuple(_variable_changes(location.data_dir, node_file, environ)) if is_same or is_changed else ()
    if is_same and all(change == "missing" for _, change in variables):
        return None
    running, wanted = (node_file.profile, node_file.profile_path), (location.profile.id, str(path))
    return ProfileDifference(
        boot=node_file.boot, digest=digest, is_changed=is_changed, running=running, wanted=wanted, variables=variables
    )


def _variable_changes(
    data_dir: Path, node_file: NodeFile, environ: Mapping[str, str]
) -> Iterator[tuple[str, VariableChange]]:
    try:
        digests = variable_digests(data_dir, node_file.variables, environ)
    except ConfigError:  # without the key nothing is known
        return
    for name, there in node_file.variables.items():
        if (here := digests[name]) != there:
            yield name, "missing" if not here else "changed" if there else "set"


def running_ids(listed: NodeList) -> set[str]:
    return {batch.batch_id for batch in listed.batches if batch.status in ACTIVE}


def unfinished_ids(listed: NodeList) -> list[str]:
    """Return the ids of the batches that run or wait, in this order; none if a paused one holds up the others."""
    if any(batch.status == "paused" for batch in listed.batches):
        return []
    # those that were paused while they wait do so after a restart without being resumed
    oldest_first = [batch for batch in listed.batches[::-1] if not batch.paused]
    return [batch.batch_id for status in ("running", "queued") for batch in oldest_first if batch.status == status]


async def try_own_model(own: OwnModel, on_health: Callable[[EndpointHealth], object]) -> ModelTrial | None:
    """Check a server, which goes to ``on_health``, and ask its model in two turns of an agent if the server answers.

    Raises ``ConfigError`` if the URL or the name of the variable with the key is not valid, or that is not set here.
    """
    await asyncio.to_thread(importlib.import_module, "runner.node.preflight")  # takes too long for the event loop
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
