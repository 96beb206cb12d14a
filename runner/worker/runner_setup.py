"""What a process needs to build a batch's ``EpisodeFactory``: names and settings, no objects of a running batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runner.agents.agentgym import Instruction
from runner.agents.baselines import Script
from runner.config import AgentSettings, ARESettings
from runner.envs.http.server import ServerAddress
from runner.envs.placement import observation_planner
from runner.episode.factory import EpisodeFactory
from runner.plugins import Plugin, build_http_target
from runner.types import Limits, Mode, SpanLevel

if TYPE_CHECKING:
    from runner.inference.manager import InferenceManager


class RunnerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a batch that its episodes share; can be sent to another process.

    Attributes:
        address: the environment's server; None for an embedded environment.
        models: the profile's ``agent`` section; None if neither the agent nor a judge uses a model.
        script, instruction: see ``BatchSpec``.
        are: the profile's ``are`` section, for environments of that family.
        world: whether timesteps have pictures of the environment.
    """

    env: Plugin
    agent: Plugin
    mode: Mode = "strict"
    limits: Limits = Limits()
    tracing: SpanLevel = "full"
    address: ServerAddress | None = None
    models: AgentSettings | None = None
    script: tuple[str, ...] | None = None
    instruction: Instruction | None = None
    are: ARESettings = ARESettings()
    world: bool = False

    def build_factory(self, manager: InferenceManager | None) -> EpisodeFactory:
        own_args = self._environment_args()
        agent_args: dict[str, Any] = {}
        if self.agent.name == "oracle":
            agent_args["twin"] = self._oracle_twin(own_args)
        if self.address is None:
            env_cfg = self.env.config(**own_args)
        else:
            env_cfg = build_http_target(env=self.env.name, address=self.address, mode=self.mode)
        if self.script is not None:
            agent_args["script"] = Script(self.script)
        if self.instruction is not None:
            agent_args["instruction"] = self.instruction
        agent_manager = manager if self.models is not None and self.agent.uses_model else None
        if agent_manager is not None:
            agent_args["settings"] = self.models
        return EpisodeFactory(
            env_cfg=env_cfg,
            agent_cfg=self.agent.config(**agent_args),
            inference_mngr=agent_manager,
            judge_mngr=manager if uses_judge(self.env, self.are) else None,
            tracing_level=self.tracing,
            limits=self.limits,
            records_world=self.world,
        )

    def _environment_args(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {} if self.mode == "strict" else {"mode": self.mode}
        if self.env.family == "are":
            arguments["settings"] = msgspec.to_builtins(self.are)
        return arguments

    def _oracle_twin(self, own_args: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration of the oracle's twin; for some servers this is a planner that reads observations."""
        planner = None if self.address is None else observation_planner(self.env.name)
        return {"_target_": planner} if planner else self.env.config(**own_args)


def uses_judge(env: Plugin, are: ARESettings) -> bool:
    return are.judge_model is not None and env.family == "are"
