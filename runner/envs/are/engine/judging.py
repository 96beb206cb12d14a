"""Judges of a scenario: their models answer through the runner's process, and a judge without an answer rates nothing.

ARE's own engines, for any provider, need LiteLLM, a key and the network. ``install`` replaces their modules before a
scenario can import them, so that every chat goes to the runner, which knows the model of the profile.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

MAX_CHAT_CHARS = 2_000_000
"""Maximum length of a chat; no model takes more."""
_ENGINES = {
    "are.simulation.agents.llm.litellm.litellm_engine": ("LiteLLMEngine", "LiteLLMModelConfig"),
    "are.simulation.agents.llm.hf.hf_engine": ("HuggingFaceLLMEngine", "HuggingFaceModelConfig"),
}
_ROLES = {"tool-response": "user", "tool-call": "assistant"}
_NAMES = {"GraphPerEventJudge": "graph per event", "InContextJudge": "in context"}

Chat = list[dict[str, str]]


class JudgeFailed(Exception):
    pass


class JudgeModel:
    """The model of this episode's judges; ``failure`` is the first reason why it did not rate.

    Attributes:
        send: sends a chat to the runner's process, and returns the model's answer or raises ``JudgeFailed``.
    """

    def __init__(self) -> None:
        self.send: Callable[[Chat], str] | None = None
        self.failure: str | None = None

    def answer(self, messages: list[dict[str, Any]]) -> str:
        chat = [
            {"role": str(getattr(each["role"], "value", each["role"])), "content": str(each.get("content") or "")}
            for each in messages
        ]
        chat = [{**each, "role": _ROLES.get(each["role"], each["role"])} for each in chat]
        if (length := sum(len(each["content"]) for each in chat)) > MAX_CHAT_CHARS:
            raise self.fail(f"the chat of the judge has {length} characters; at most {MAX_CHAT_CHARS} are sent")
        if self.send is None:
            raise self.fail("the judge called its model before the episode")
        try:
            return self.send(chat)
        except JudgeFailed as exc:
            raise self.fail(str(exc)) from None

    def fail(self, reason: str) -> JudgeFailed:
        """Take note of a failure, since ARE rates a judge that raises as a failure of the agent."""
        self.failure = self.failure or reason
        return JudgeFailed(reason)


MODEL = JudgeModel()


class AREEngine:
    """Stands for ARE's engines: the runner's model answers, whichever model and provider the scenario names."""

    def __init__(self, model_config: Any) -> None:  # noqa: ANN401
        self.model_name = str(model_config.model_name)

    def __call__(self, messages: Any, stop_sequences: Any = (), **options: Any) -> tuple[str, None]:  # noqa: ANN401
        """Return the answer to a chat up to the first stop sequence; ARE's other options only trace the call."""
        answer = MODEL.answer(messages)
        for stop in stop_sequences:
            answer = answer.split(stop)[0]
        return answer, None

    chat_completion = __call__


def install() -> None:
    """Replace ARE's engines, and let judges fail where their model gives no verdict."""
    for module_name, (engine, config) in _ENGINES.items():
        module = ModuleType(module_name)
        vars(module).update({engine: AREEngine, config: SimpleNamespace})
        sys.modules[module_name] = module
    from are.simulation.validation.utils import llm_utils

    # A judge formats the same prompts for each of 89 tools, which takes 3 s of CPU.
    llm_utils.jinja_format = functools.lru_cache(llm_utils.jinja_format)
    _require_verdicts()


def _require_verdicts() -> None:
    """Let a checker or judge fail whose model answers without a verdict; ARE would rate that as failed."""
    from are.simulation.validation.judge import InContextJudge
    from are.simulation.validation.utils.llm_utils import LLMChecker

    for owner, method in ((LLMChecker, "__call__"), (InContextJudge, "inner_call")):
        setattr(owner, method, _with_verdict(getattr(owner, method)))


def _with_verdict(rate: Callable[..., bool | None]) -> Callable[..., bool]:
    def rate_or_fail(*args: Any, **options: Any) -> bool:  # noqa: ANN401
        verdict = rate(*args, **options)
        if verdict is None:
            raise MODEL.fail("the judge's model answered without a verdict")
        return verdict

    return rate_or_fail


def judge_name(scenario: Any) -> str:  # noqa: ANN401 - ARE's type
    """Return what rates a scenario: ``scenario`` for its own ``validate``, else its judge."""
    judge = getattr(scenario, "judge", None)
    if judge is None:
        return "scenario"
    return _NAMES.get(type(judge).__name__, type(judge).__name__)
