"""Headless runner: runs agents in AgentGym environments and stores the episodes.

``Runner`` and what a program around it needs is imported from here; see ``docs/build/library.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.library import Runner
    from runner.tracing import Tracer, create_error_info, create_flow_id, get_protobuf_collector, traced_method
    from runner.types import (
        Action,
        Agent,
        AREEvaluatedTrajectory,
        Chat,
        Environment,
        TimeStep,
        ToolCall,
        TracingLevel,
        Trajectory,
    )

__version__ = "0.1.0"

__all__ = [
    "AREEvaluatedTrajectory",
    "Action",
    "Agent",
    "Chat",
    "Environment",
    "Runner",
    "TimeStep",
    "ToolCall",
    "Tracer",
    "TracingLevel",
    "Trajectory",
    "create_error_info",
    "create_flow_id",
    "get_protobuf_collector",
    "traced_method",
]

_TRACING = {"Tracer", "create_error_info", "create_flow_id", "get_protobuf_collector", "traced_method"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a command that needs none of them starts faster."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "library" if name == "Runner" else "tracing" if name in _TRACING else "types"
    value: object = getattr(importlib.import_module(f"runner.{module}"), name)
    globals()[name] = value
    return value
