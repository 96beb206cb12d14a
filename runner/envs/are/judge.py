"""The model of a scenario's judge, as the profile names it: its answers, and what they cost."""

from __future__ import annotations

import time
from typing import Any, Protocol

from runner.config import ARESettings
from runner.envs.are.protocol import Answer, Ask
from runner.errors import InferenceFault
from runner.types import Chat, ModelSession, Tokens, Usage

NO_MODEL = "The judge of the scenario needs a model; name one of the profile's models by are: {judge_model: …}"
_GRAPH = "graph per event"
"""Judge of ARE that compares each oracle event by fixed rules, and some texts by a model where they differ."""


class JudgeModels(Protocol):
    """Opens sessions, as ``InferenceManager`` does."""

    def model_session(self, model: str) -> ModelSession:
        """Return a session of one model, without another one as a fallback."""


class EpisodeJudge:
    """Answers the chats of the judge of one episode, and counts the calls.

    ``models`` is None if the profile names no model for judges.
    """

    def __init__(self, models: JudgeModels | None, settings: ARESettings) -> None:
        model = settings.judge_model
        self._session = None if models is None or model is None else models.model_session(model)
        self._time_left_s = settings.judge_timeout_sec
        self._model = ""
        self._n_calls = 0
        self._tokens = Tokens()
        self._cost: float | None = 0.0

    async def answer(self, ask: Ask) -> Answer:
        if self._session is None:
            return Answer(problem=NO_MODEL)
        chat: Chat = [{"role": each["role"], "content": each["content"]} for each in ask.messages]
        started = time.monotonic()
        try:
            answer = await self._session.infer(chat, tools=[], time_left_s=self._time_left_s)
        except InferenceFault as exc:
            return Answer(problem=f"The model of the judge failed: {exc}")
        finally:
            self._time_left_s -= time.monotonic() - started
        self._count(answer.usage)
        if answer.finish_reason == "length":
            return Answer(problem="The answer of the judge's model was cut; raise agent.max_tokens of the profile")
        return Answer(text=answer.message["content"] or "")

    def _count(self, usage: Usage) -> None:
        self._n_calls += 1
        self._model = usage.model
        self._tokens += usage.tokens or Tokens()
        self._cost = None if self._cost is None or usage.cost is None else self._cost + usage.cost

    def describe(self, details: dict[str, Any]) -> dict[str, Any]:
        judge = str(details.get("judge", ""))
        if not self._n_calls:
            return {**details, "judge": f"{judge}, hard checks only"} if judge == _GRAPH else details
        calls = {"model": self._model, "calls": self._n_calls, "cost": self._cost}
        tokens = {"prompt": self._tokens.prompt, "completion": self._tokens.completion}
        judge = "the scenario's own validation" if judge == "scenario" else judge
        return {**details, "judge": f"{judge} with model {self._model}", "judge_calls": {**calls, "tokens": tokens}}
