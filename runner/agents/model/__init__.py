"""Language-model agents: ``ReactAgent`` and ``ToolsAgent``."""

from runner.agents.model.react import ReactAgent, ToolsAgent

__all__ = ["ReactAgent", "ToolsAgent"]
