"""``agentgym-runner ctl`` with ``--json``, and a profile whose steps wait for the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from runner.cli import main
from tests.support.command import environ_with_environments
from tests.support.node_process import clean_environ

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parents[2] / "docs/schemas/agentgym.ctl.v1.json").read_text())
)
HELD_PROFILE = """
id: held
nats: {control: true}
environments:
  lightweight: [{name: Maze}, {name: Wordle}, {name: BabyAI}]
  moderate: [{name: EndlessSteps}, {name: HeldSteps}]
"""
"""``EndlessSteps`` and ``HeldSteps`` wait for the gate of ``held_environ``; external brokers may send requests."""


def held_environ(folder: Path, **more: str) -> dict[str, str]:
    """Return variables of a node whose environments include ``HELD_PROFILE``'s, with the agent ``up`` for them."""
    (installed := folder / "installed").mkdir()
    envs = {name: f"tests.support.held_steps:{name}" for name in ("EndlessSteps", "HeldSteps")}
    return clean_environ(**more) | environ_with_environments(
        installed, envs=envs, agents={"up": "tests.support.fakes:UpAgent"}
    )


class Ctl:
    """Runs commands in this process against a node, which the options ``where`` name.

    Attributes:
        code: exit code of the latest command.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str], *where: str) -> None:
        self._capsys, self._where = capsys, where
        self.code = 0

    def documents(self, *arguments: str) -> list[Any]:
        """Return the documents of a command with ``--json``."""
        self.code = main(["ctl", *arguments, "--json", *self._where])
        text = self._capsys.readouterr().out
        documents = [json.loads(line) for line in text.splitlines()] if text[1] != "\n" else [json.loads(text)]
        for document in (*documents[:30], *documents[-5:]):
            SCHEMA.validate(document)
        return documents

    def result(self, *arguments: str) -> Any:  # noqa: ANN401 - any JSON
        (document,) = self.documents(*arguments)
        assert (document["ok"], self.code) == (True, 0), document
        return document["result"]

    def failure(self, *arguments: str) -> str:
        """Return the code of the error of a command that fails."""
        (document,) = self.documents(*arguments)
        assert (document["ok"], document["result"], self.code) == (False, None, 1)
        assert document["error"]["message"]
        return str(document["error"]["code"])
