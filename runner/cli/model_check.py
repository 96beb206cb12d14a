"""What a person is told of the models of a run: before it that none answers, afterwards who did."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

import msgspec

from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec
from runner.cli.session import Session
from runner.cli.terminal import err
from runner.errors import ConfigError
from runner.inference.models import NOBODY, Models, NoModel, answers, described

_CHOOSING = ("--agent", "--model")


def require_model(session: Session, specs: Sequence[BatchSpec], models: Models) -> None:
    """Look whether anybody answers, where the batches are to be played with a model.

    Raises:
        ConfigError: when nobody does, with each cause, and the command that plays without a model.
    """
    try:
        states = models.require(specs[0].model)
    except NoModel as exc:
        causes = [f"  {described(state)}: {state.cause}\n    {state.hint}" for state in exc.states]
        told = ["No model answers, so nothing was played.", *(causes or [f"  {NOBODY}"])]
        command = without_model(session.options.argv, specs)
        raise ConfigError("\n".join([*told, f"Without a model: {command}"])) from exc
    for state in states:
        if not answers(state):
            err(f"{described(state)} does not answer, the next one has to: {state.cause}; {state.hint}")


def without_model(argv: Sequence[str], specs: Iterable[BatchSpec]) -> str:
    """The same command with an agent that asks no model: the oracle, where the environments have one."""
    agent = "oracle" if all(map(_has_oracle, specs)) else "random"
    kept: list[str] = []
    given = iter(argv)
    for word in given:
        if word in _CHOOSING:
            next(given, None)
        elif not word.startswith(tuple(f"{option}=" for option in _CHOOSING)):
            kept.append(word)
    return shlex.join(["agentgym-runner", *kept, "--agent", agent])


def tell_answers(results: Iterable[BatchResult]) -> None:
    """Say which models have played, where it was not one alone."""
    for result in results:
        if len(result.answers) > 1:
            told = ", ".join(f"{count} by {who}" for who, count in result.answers.items())
            err(f"{result.env}: answers came from more than one model: {told}")


def _has_oracle(spec: BatchSpec) -> bool:
    try:
        msgspec.structs.replace(spec, agent="oracle", model=None).checked()
    except ConfigError:
        return False
    return True
