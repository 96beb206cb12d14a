"""Episodes of the model agent against servers with rules, and what a step asked of which server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import msgspec

from runner.config.profile import EndpointConfig, LessonKey
from runner.episode.factory import EpisodeContext, EpisodeFactory
from runner.inference.endpoints import resolve_endpoints
from runner.inference.gate import LocalGate
from runner.inference.manager import InferenceManager
from runner.tracing import SpanList, Tracer
from runner.types import EpisodeEvent, Limits, TimestepPlayed, Trajectory
from tests.support.inference import VirtualTime, agent_settings, episode_header
from tests.support.ruled_model import REASONING_FIELDS, Json, Received, RuledModel, Rules

KEYS = {"a": "sk-0123456789abcdef-first", "b": "sk-fedcba9876543210-other"}


class RuledEpisode:
    """A played episode.

    Attributes:
        lessons: what was learned, by endpoint and tools.
        stored: everything that the episode leaves behind, as JSON.
    """

    def __init__(self, *rules: Rules) -> None:
        self.servers = [RuledModel(each, name, KEYS[name]) for each, name in zip(rules, "ab", strict=False)]
        self.trajectory = Trajectory(episode_id="")
        self.lessons: dict[LessonKey, Any] = {}
        self.stored = ""
        self._marks: list[list[int]] = [[0] * len(self.servers)]

    async def play(self, *, env: str = "ToolAnswerCounter", goal: int = 4, **agent: Any) -> RuledEpisode:  # noqa: ANN401
        """Play the episode; time passes only in pauses."""
        with ExitStack() as stack:
            endpoints = [
                EndpointConfig(url=stack.enter_context(server).url, name=name, kind="openai", api_key_env=f"KEY_{name}")
                for server, name in zip(self.servers, "ab", strict=False)
            ]
            settings = agent_settings(*endpoints, model="m", **agent)
            environ = {f"KEY_{name}": key for name, key in KEYS.items()}
            time, spans = VirtualTime().timing(), SpanList()
            gate = LocalGate(resolve_endpoints(settings, environ), time.clock.monotonic)
            gate.lessons.watch(self.lessons.__setitem__)
            runner = EpisodeFactory(
                env_cfg={"_target_": f"tests.support.fakes.{env}", "goal": goal},
                agent_cfg={"_target_": "runner.agents.model.ReactAgent", "settings": settings},
                inference_mngr=InferenceManager(settings, environ, time, gate),
                limits=Limits(max_rounds=goal + 3, max_duration_s=60),
            )
            events: list[EpisodeEvent] = []

            def emit(event: EpisodeEvent) -> None:
                events.append(event)
                if isinstance(event, TimestepPlayed):
                    self._marks.append([len(server.received) for server in self.servers])

            context = EpisodeContext(header=episode_header(), tracer=Tracer("full", [spans]), emit=emit)
            self.trajectory = await runner.play_episode(context=context)
            self._marks.append([len(server.received) for server in self.servers])
        self.stored = str(msgspec.json.encode([self.trajectory, events, spans.spans]))
        return self

    def requests(self, server: RuledModel) -> list[list[Received]]:
        """Return the requests that each step, and what came after the last one, sent to a server."""
        number = self.servers.index(server)
        marks = [mark[number] for mark in self._marks]
        return [server.received[start:end] for start, end in pairwise(marks)]

    def unequal_chats(self) -> Iterator[tuple[list[Json], list[Json]]]:
        """Yield each chat of a step that is not what was sent, and what was sent."""
        by_name = dict(zip("ab", self.servers, strict=False))
        for number, step in enumerate(self.trajectory.timesteps):
            sent = self.requests(by_name[step.endpoint or ""])[number]
            (*chat, _), received = step.chats[0], [each.chat for each in sent if not each.cause]
            if [*map(plain_message, chat)] not in [[*map(plain_message, each)] for each in received]:
                yield chat, received[-1]


def plain_message(message: Mapping[str, Any]) -> Json:
    """Return a message with its reasoning under one name, whatever the server calls it, if only that has it."""
    has_details = "reasoning_details" in message
    reasoning = None if has_details else next((message[name] for name in REASONING_FIELDS if message.get(name)), None)
    plain = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
    return {**plain, "reasoning": reasoning}
