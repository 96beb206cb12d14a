"""The factory of a batch's episodes: builds an agent and an environment for each and plays it."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec

from runner.episode.loop import EpisodeContext, EpisodeLoop
from runner.errors import catch_foreign
from runner.types import Agent, Environment, EpisodeHeader, Limits, SpanLevel, Trajectory
from runner.util.clock import Clock, new_ulid

__all__ = ["EpisodeContext", "EpisodeFactory"]

_TARGET = "_target_"
_CONSTANTS = (type(None), bool, int, float)

_Build: TypeAlias = Callable[[], Any]
"""Returns a new value of one node of a configuration."""


class PreparedConfig:
    """A Hydra configuration whose objects are built many times; picklable and thread-safe.

    If the configuration is plain, each object comes from the calls that Hydra would make, with copied arguments: this
    saves the import of Hydra, a third of a short run's CPU, and its 1-2 ms an object. Hydra builds the objects of any
    other configuration, e.g. of one with interpolations or with other special keys than ``_target_``, and reports a
    target that cannot be imported. Later changes of the configuration may have no effect.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._cfg = cfg
        self._call: partial[Any] | None = None
        if not _is_plain(cfg):
            # An import that fails in one worker for lack of files would leave half a module to the others.
            importlib.import_module("hydra.utils")

    def __reduce__(self) -> tuple[type[PreparedConfig], tuple[Mapping[str, Any]]]:
        return type(self), (self._cfg,)  # the configuration alone, because a target may not be picklable

    def build(self, **objects: object) -> Any:  # noqa: ANN401 - any type the target has
        """Further arguments ``objects`` are not copied."""
        if self._call is None and _is_plain(self._cfg):
            with catch_foreign(lambda _: None):  # Hydra then fails in the same way, with a better message
                self._call = _prepare_call(self._cfg)
        if self._call is not None:
            return self._call(**objects)
        from hydra.utils import instantiate

        if not objects:
            return instantiate(self._cfg, _convert_="all")
        # Pass live objects outside the config tree, because Hydra copies the tree.
        return instantiate(self._cfg, _convert_="all", _partial_=True)(**objects)


def _is_plain(cfg: object) -> bool:
    """Return whether a configuration is a dict with a target, and only has values that OmegaConf leaves unchanged."""
    return type(cfg) is dict and _TARGET in cfg and _is_plain_value(cfg)


def _is_plain_value(value: object) -> bool:
    if isinstance(value, str):
        return type(value) is str and "${" not in value and value != "???"
    if isinstance(value, dict):
        return type(value) is dict and all(map(_is_plain_key, value)) and all(map(_is_plain_value, value.values()))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(_is_plain_value, value))
    return type(value) in _CONSTANTS or isinstance(value, msgspec.Struct)


def _is_plain_key(key: object) -> bool:
    return type(key) is str and (key == _TARGET or not key.startswith("_"))


def _prepare(value: object) -> _Build:
    """Return a function that builds a plain value as Hydra does with ``_convert_="all"``."""
    if isinstance(value, dict):
        if _TARGET in value:
            return _prepare_call(value)
        arguments = _prepare_arguments(value)
        return lambda: {key: build() for key, build in arguments.items()}
    if isinstance(value, list | tuple):
        items = [_prepare(item) for item in value]
        return lambda: [build() for build in items]
    if isinstance(value, msgspec.Struct):
        return partial(copy.deepcopy, copy.deepcopy(value))
    return lambda: value


def _prepare_call(cfg: Mapping[str, Any]) -> partial[Any]:
    return partial(_call_target, _locate(cfg[_TARGET]), _prepare_arguments(cfg))


def _prepare_arguments(cfg: Mapping[str, Any]) -> dict[str, _Build]:
    return {key: _prepare(value) for key, value in cfg.items() if key != _TARGET}


def _call_target(target: Callable[..., Any], arguments: Mapping[str, _Build], **objects: object) -> Any:  # noqa: ANN401
    return target(**{key: build() for key, build in arguments.items()} | objects)


def _locate(target: str) -> Callable[..., Any]:
    """Import a target as Hydra does: an attribute takes precedence over a module of the same name."""
    first, *names = target.split(".")
    path, found = first, importlib.import_module(first)
    for name in names:
        path = f"{path}.{name}"
        try:
            found = getattr(found, name)
        except AttributeError:
            found = importlib.import_module(path)
    if not callable(found):
        raise TypeError(f"{target} is not callable")
    return found


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
        self._environments, self._agents = PreparedConfig(env_cfg), PreparedConfig(agent_cfg)

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
        environment: Environment = self._environments.build(**extra)
        return environment

    def build_agent(self) -> Agent:
        extra = {} if self.inference_mngr is None else {"inference_mngr": self.inference_mngr}
        agent: Agent = self._agents.build(**extra)
        return agent

    def _anonymous_header(self, reset_kwargs: Mapping[str, Any]) -> EpisodeHeader:
        return EpisodeHeader(
            episode_id=new_ulid(),
            batch_id=new_ulid(),
            env=str(self.env_cfg.get(_TARGET, "")).rpartition(".")[2],
            task_index=int(reset_kwargs.get("task_index", 0)),
            started_at=Clock().now(),
        )
