"""Agents whose answers come from a language model."""

from runner.agents.model.react import ReactAgent, ToolsAgent

__all__ = ["ReactAgent", "ToolsAgent"]
