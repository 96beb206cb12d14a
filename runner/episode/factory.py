"""The factory of a batch's episodes: builds an agent and an environment for each and plays it."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from runner.episode.loop import EpisodeContext, EpisodeLoop
from runner.errors import catch_foreign
from runner.types import Agent, Environment, EpisodeHeader, Limits, SpanLevel, Trajectory
from runner.util.clock import Clock, new_ulid

__all__ = ["EpisodeContext", "EpisodeFactory"]

_TARGET = "_target_"
_CONSTANTS = (type(None), bool, int, float)


def build_object(cfg: Mapping[str, Any], **objects: object) -> Any:  # noqa: ANN401 - any type the target has
    """Build the object of a Hydra configuration; further arguments ``objects`` are not copied.

    A plain configuration is built by the calls that Hydra would make, with copied arguments: this saves the import of
    Hydra, a third of a short run's CPU, and its 1-2 ms an object. Hydra builds any other one, e.g. with interpolations
    or with other special keys than ``_target_``, and reports a target that cannot be imported.
    """
    if _is_plain(cfg):
        return _build(cfg, **objects)
    from hydra.utils import instantiate

    if not objects:
        return instantiate(cfg, _convert_="all")
    # Pass live objects outside the config tree, because Hydra copies the tree.
    return instantiate(cfg, _convert_="all", _partial_=True)(**objects)


def _is_plain(cfg: object) -> bool:
    """Return whether a configuration has targets that can be imported, and only values that OmegaConf leaves as is."""
    return type(cfg) is dict and _TARGET in cfg and _is_plain_value(cfg)


def _is_plain_value(value: object) -> bool:
    if isinstance(value, str):
        return type(value) is str and "${" not in value and value != "???"
    if isinstance(value, dict):
        if (
            type(value) is not dict
            or not all(map(_is_plain_key, value))
            or not all(map(_is_plain_value, value.values()))
        ):
            return False
        return _TARGET not in value or _locate(value[_TARGET]) is not None
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(_is_plain_value, value))
    return type(value) in _CONSTANTS or isinstance(value, msgspec.Struct)


def _is_plain_key(key: object) -> bool:
    return type(key) is str and (key == _TARGET or not key.startswith("_"))


def _build(value: object, **objects: object) -> Any:  # noqa: ANN401 - any value of a configuration
    """Build a plain value as Hydra does with ``_convert_="all"``."""
    if isinstance(value, dict):
        target = _locate(value[_TARGET]) if _TARGET in value else dict
        assert target is not None
        return target(**{key: _build(item) for key, item in value.items() if key != _TARGET} | objects)
    if isinstance(value, list | tuple):
        return [_build(item) for item in value]
    return copy.deepcopy(value)


def _locate(target: str) -> Callable[..., Any] | None:
    """Import a target as Hydra does: an attribute takes precedence over a module of the same name."""
    with catch_foreign(lambda _: None):  # Hydra then fails in the same way, with a better message
        path, *names = target.split(".")
        found: object = importlib.import_module(path)
        for name in names:
            path = f"{path}.{name}"
            found = getattr(found, name, None) or importlib.import_module(path)
        if callable(found):
            return found
    return None


class EpisodeFactory:
    """Plays episodes of one agent in one environment; picklable, so it can be sent to another process.

    Args:
        inference_mngr: source of model answers, passed to the agent's constructor under this name; None: not passed.
        judge_mngr: source of model answers for the environment's judge, passed to the environment's constructor as
            ``inference_mngr``; None: not passed.
        records_world: whether timesteps have pictures of an environment that can draw its state.
    """

    def __init__(
        self,
        *,
        env_cfg: Mapping[str, Any],
        agent_cfg: Mapping[str, Any],
        inference_mngr: object | None = None,
        judge_mngr: object | None = None,
        tracing_level: SpanLevel = "full",
        limits: Limits | None = None,
        records_world: bool = False,
    ) -> None:
        self.env_cfg = env_cfg
        self.agent_cfg = agent_cfg
        self.inference_mngr = inference_mngr
        self.judge_mngr = judge_mngr
        self.tracing_level: SpanLevel = tracing_level
        self.limits = limits or Limits()
        self.records_world = records_world
        if not (_is_plain(env_cfg) and _is_plain(agent_cfg)):
            # An import that fails in one worker for lack of files would leave half a module to the others.
            importlib.import_module("hydra.utils")

    async def play_episode(
        self, reset_kwargs: Mapping[str, Any] | None = None, *, context: EpisodeContext | None = None
    ) -> Trajectory:
        """Play one episode and return its trajectory.

        An error in the environment or the agent ends the episode; the trajectory then holds the error (``error_info``)
        and the timesteps before it. The only exception that this method raises is ``asyncio.CancelledError``. The
        environment's ``cleanup`` and the agent's ``close`` are called exactly once.

        Args:
            reset_kwargs: arguments of the environment's ``reset``; ``task`` (with ``task_id``) and ``task_unique_id``
                identify the task in traces.
            context: ids, control, tracer and event callbacks; None: new ids and no callbacks.
        """
        context = context or EpisodeContext(self._anonymous_header(reset_kwargs or {}))
        return await EpisodeLoop(self, dict(reset_kwargs or {}), context).run()

    def build_environment(self) -> Environment:
        extra = {} if self.judge_mngr is None else {"inference_mngr": self.judge_mngr}
        environment: Environment = build_object(self.env_cfg, **extra)
        return environment

    def build_agent(self) -> Agent:
        extra = {} if self.inference_mngr is None else {"inference_mngr": self.inference_mngr}
        agent: Agent = build_object(self.agent_cfg, **extra)
        return agent

    def _anonymous_header(self, reset_kwargs: Mapping[str, Any]) -> EpisodeHeader:
        return EpisodeHeader(
            episode_id=new_ulid(),
            batch_id=new_ulid(),
            env=str(self.env_cfg.get(_TARGET, "")).rpartition(".")[2],
            task_index=int(reset_kwargs.get("task_index", 0)),
            started_at=Clock().now(),
        )
