"""Agents whose answers come from a language model."""

from runner.agents.model.react import ReactAgent
from runner.agents.model.tools import ToolsAgent

__all__ = ["ReactAgent", "ToolsAgent"]
