"""The form that tries a model server of the user's own, and writes a new profile for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input

from agentgym_tui.presenters.cells import Cell, Line, Tone
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import masked_line, masked_rows
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.control_client import try_own_model
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.static_lines import StaticLines
from runner.errors import ConfigError

if TYPE_CHECKING:
    from runner.config.own_model import OwnModel
    from runner.inference.health import EndpointHealth
    from runner.node.preflight import ModelTrial


class _Field(NamedTuple):
    id: str
    title: str
    placeholder: str


FIELDS: Final = (
    _Field("url", "URL", "such as http://127.0.0.1:8000/v1"),
    _Field("name", "model", "as the server calls it"),
    _Field("key-env", "key variable", "name of the variable with the key; empty: no key"),
    _Field("profile", "profile", "name of the new profile; empty: the model's"),
)
N_REPORT: Final = 9
"""Rows for what a trial found."""
MAX_CHARS: Final = 1_000
_SERVERS: Final = {"openai": "an OpenAI-compatible server", "ollama": "Ollama", "tensorzero": "TensorZero"}
_NAME_VARIABLE: Final = "type the name of the variable that holds its key"
_SET_VARIABLE: Final = "→ set it in the shell, then start the console again, which reads it at its start"
Row = tuple[str, Tone]


class ModelForm(DialogScreen[Path]):
    """A form with a server, its model and the name of the variable with its key; its result is a new profile's file."""

    SCOPE = "model"
    AUTO_FOCUS = "#url"

    def __init__(self) -> None:
        super().__init__()
        self._is_trying = False
        self._rows: Sequence[Row] = ()

    def compose(self) -> ComposeResult:
        keys = "{model.try} tries it · {model.write} writes its profile · {model.close} stops or closes"
        with DialogFrame("A model of your own", keys=keys):
            for field in FIELDS:
                with Horizontal(classes="row"):
                    yield StaticLines(lambda _, title=field.title: [[Cell(title, "dim")]], classes="name")  # type: ignore[misc]
                    yield SearchInput(id=field.id, placeholder=field.placeholder, compact=True, max_length=MAX_CHARS)
            yield StaticLines(self._report, id="report")

    def action_try_model(self) -> None:
        """Try the server in the background, as the fields name it now."""
        if not self._is_trying:
            self._is_trying = True
            self._show(("looking for the server …", "accent"))
            start_worker(self, partial(self._try, self._own_model()), group="trial")

    def action_write(self) -> None:
        """Write the profile, and close with its file; where that fails, show why."""
        own, name = self._own_model(), self._text("profile")
        try:
            path = own.write_profile(os.environ, Path.cwd(), name)
        except ConfigError as exc:
            self._show((f"✗ {masked_rows(str(exc))}", "bad"))
        else:
            self.leave(path)

    def action_close(self) -> None:
        if not self._is_trying:
            self.leave()
        else:
            self.workers.cancel_group(self, "trial")

    @on(Input.Submitted)
    def _submitted(self) -> None:
        if self.accepts_keys:
            self.action_try_model()

    def _text(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value.strip()

    def _own_model(self) -> OwnModel:
        from runner.config.own_model import OwnModel

        return OwnModel(self._text("url"), self._text("name"), self._text("key-env") or None)

    async def _try(self, own: OwnModel) -> None:
        rows: list[Row] = []

        def on_health(health: EndpointHealth) -> None:
            rows.extend(health_rows(health, own.key_env))
            self._show(*rows, ("asking the model …", "accent"))

        try:
            trial = await try_own_model(own, on_health)
            rows += [] if trial is None else trial_rows(trial, own.key_env)
        except ConfigError as exc:
            rows += _failure_rows(str(exc), None, own.key_env)
        except asyncio.CancelledError:
            rows.append(("stopped", "warn"))
            raise
        finally:
            self._is_trying = False
            self._show(*rows)

    def _show(self, *rows: Row) -> None:
        self._rows = rows
        self.show_lines("report")

    def _report(self, width: int) -> list[Line]:
        return [[Cell(row, tone)] for text, tone in self._rows for row in wrap_text(text, width, N_REPORT)]


def health_rows(health: EndpointHealth, key_env: str | None) -> list[Row]:
    """Return which server answers, or why none does and what to do."""
    if health.status not in ("up", "slow"):
        hint = _NAME_VARIABLE if health.hint == health.key_hint and not key_env else health.hint
        return _failure_rows(health.cause or health.status, hint, key_env)
    server, model = _SERVERS.get(health.kind, "a server"), masked_line(health.model, 100)
    return [(f"✓ {server} answers at {masked_line(health.url)} and takes {model}", "good")]


def trial_rows(trial: ModelTrial, key_env: str | None) -> list[Row]:
    """Return what the endpoint takes and how its model acted, or why it gave no answer and what to do."""
    if trial.failure is not None:
        return _failure_rows(trial.failure, trial.hint, key_env)
    acted = any(act != "none" for act in trial.acts)
    found = "{} requests: {}".format("✓" if acted else "!", masked_line(trial.describe(""), 500))
    warnings: list[Row] = [(f"! {masked_line(each, 300)}", "warn") for each in trial.warnings[:3]]
    return [(found, "good" if acted else "warn"), *warnings]


def _failure_rows(cause: str, hint: str | None, key_env: str | None) -> list[Row]:
    rows: list[Row] = [(f"✗ {masked_rows(cause)}", "bad")]
    rows += [(f"→ {masked_rows(hint)}", "accent")] if hint else []
    if key_env and key_env in f"{cause}{hint}":
        rows.append((_SET_VARIABLE, "dim"))
    return rows
