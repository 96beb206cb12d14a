"""The spans and flows of an episode: what they are called, and what is noted on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from runner.tracing import SpanHandle, Tracer, create_flow_id
from runner.types import EpisodeHeader, Trajectory

_NO_SPAN = SpanHandle(0)


class EpisodeTrace:
    """Records the spans of one episode under the names that its file has; a subclass may have other names.

    ``task`` and ``task_unique_id`` of the reset's arguments identify the task.
    """

    semantic: ClassVar[str] = "episode"
    """Attribute of that name of the episode's span."""
    spans: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
        "env.reset": ("environment", {"semantic": "environment"}),
        "agent.init_after_reset": ("agent", {"semantic": "agent"}),
        "timestep": ("timestep", {"semantic": "timestep"}),
        "get_tool_schemas": ("environment", {}),
        "agent.act": ("agent", {}),
        "env.step": ("environment", {}),
        "render_cells": ("environment", {}),
        "cleanup": ("environment", {}),
    }
    """Category and attributes of each span inside that of the episode; others are not recorded."""
    step_numbers: ClassVar[Mapping[str, str]] = {"timestep": "index"}
    """The attribute with the number of the step, by the span that has it."""
    result_span: ClassVar[str] = "timestep"
    """The span of a step that has its reward and whether the episode is done."""

    def __init__(self, tracer: Tracer, header: EpisodeHeader, reset_kwargs: Mapping[str, Any]) -> None:
        self._tracer = tracer
        self._header = header
        self._reset_kwargs = reset_kwargs

    def episode(self) -> SpanHandle:
        ids = {"trace_id": self._header.episode_id, "task_id": self._task_id()}
        return self._tracer.span("episode", "episode", **ids, semantic=self.semantic)

    def span(self, name: str, step: int = 0) -> SpanHandle:
        """Return a span inside that of the episode; ``name`` is one of ``spans``."""
        if (known := self.spans.get(name)) is None:
            return _NO_SPAN
        category, attributes = known
        if (attribute := self.step_numbers.get(name)) is not None:
            attributes = {attribute: step, **attributes}
        return self._tracer.span(name, category, **attributes)

    def add_result(self, name: str, span: SpanHandle, reward: float | None, done: bool) -> None:
        if name == self.result_span:
            span.set_attribute("reward", reward)
            span.set_attribute("done", done)

    def start(self, span: SpanHandle) -> None:
        span.end_flow(create_flow_id("task", str(self._reset_kwargs.get("task_unique_id", self._task_id()))))
        span.start_flow(create_flow_id("episode_return", self._header.episode_id))

    def end(self, span: SpanHandle, trajectory: Trajectory) -> None:
        span.set_attribute("num_timesteps", len(trajectory.timesteps))
        span.set_attribute("final_reward", trajectory.reward)
        if trajectory.error_info is not None:
            span.set_attribute("error", trajectory.error_info.type)

    def _task_id(self) -> str:
        task, header = self._reset_kwargs.get("task"), self._header
        task_id = task.get("task_id") if isinstance(task, Mapping) else getattr(task, "task_id", None)
        return str(task_id) if task_id is not None else f"{header.env}:{header.task_index}"
