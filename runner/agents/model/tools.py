"""The agent that calls tools."""

from __future__ import annotations

import msgspec

from runner.agents.model.react import ReactAgent
from runner.config.profile import AgentSettings
from runner.inference import InferenceManager


class ToolsAgent(ReactAgent):
    """Asks for tool calls, whatever format the profile names; see ``ReactAgent``."""

    def __init__(self, *, inference_mngr: InferenceManager, settings: AgentSettings) -> None:
        settings = msgspec.structs.replace(settings, format="tools")
        super().__init__(inference_mngr=inference_mngr, settings=settings)
