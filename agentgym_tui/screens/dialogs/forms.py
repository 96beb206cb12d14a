"""Forms, whose fields are data: what to run, a model server of the user's own; and the choice of a battery."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import ScreenResultType
from textual.widget import Widget
from textual.widgets import Button, Input

from agentgym_tui.commands import bindings, keymap_of
from agentgym_tui.presenters.cells import LIST_MARGIN, Cell, FixedLines, Line, Tone, wrap_text
from agentgym_tui.presenters.live import no_environments
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.safe_text import masked_line, masked_rows, player_text
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.node import try_own_model
from agentgym_tui.sessions.run_commands import (
    FALLBACK_AGENT,
    FORM_FIELDS,
    MAX_MODELS_CHARS,
    MODELLESS_AGENTS,
    PROFILE_FIELDS,
    AgentChoice,
    EnvironmentBattery,
    FormField,
    Parsed,
    RunCommands,
    default_text,
    form_texts,
    list_batteries,
    model_problem,
    number_text,
    parse_form,
    parse_settings,
    startable_agents,
)
from agentgym_tui.sessions.session import Session
from agentgym_tui.sinks import as_label
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.textual_compat import add_bindings
from agentgym_tui.widgets.inputs import CheckList, OptionStepper, SearchInput, TextField
from agentgym_tui.widgets.lists import LineList, StaticLines
from runner.client.node_client import ControlRequestError
from runner.errors import ConfigError
from runner.events.control import StartArgs

if TYPE_CHECKING:
    from runner.config import Profile, ProfileFile
    from runner.config.own_model import OwnModel
    from runner.inference.health import EndpointHealth
    from runner.node.preflight import ModelTrial

Row: TypeAlias = tuple[str, Tone]
MOVES: Final = "{fields.previous} {fields.next} {focus.next} move"
"""What the border of a form begins with."""


class Form(DialogScreen[ScreenResultType]):
    """A dialog with fields in rows, buttons, and a report of what came of them.

    Enter in a field leads to the first button, and on a button runs it.
    """

    BUTTONS: ClassVar[Mapping[str, str]]
    """Titles by the action of each button."""
    n_report = 9
    """Most rows of the report."""
    _report: Sequence[Row] = ()

    def __init__(self) -> None:
        super().__init__()
        add_bindings(self, bindings("fields"))

    def buttons(self) -> Horizontal:
        each = [Button(as_label(title), id=action, compact=True) for action, title in self.BUTTONS.items()]
        each[0].variant = "primary"
        for button in each:
            button.active_effect_duration = 0.0  # during which it would ignore the next key
        return Horizontal(*each, id="buttons")

    @on(events.DescendantFocus)
    def _name_enter(self) -> None:
        """Show in the border what enter does: it goes to a button, or runs the one with the focus."""
        frame, at = self.query_one(DialogFrame), self.focused
        keys = re.sub("to [A-Z][a-z]+", str(at.label), frame.keys) if isinstance(at, Button) else frame.keys
        frame.show_keys(keys)

    @on(Input.Submitted)
    def action_main(self) -> None:
        self.query(Button).first().focus()

    def report(self, *rows: Row) -> None:
        self._report = rows
        self.show_lines("report")

    def report_lines(self, width: int) -> list[Line]:
        """Return the wrapped report; each text leaves a row to each of the others."""
        limit = max(self.n_report - len(self._report) + 1, 1)
        lines: list[Line] = [[Cell(row, tone)] for text, tone in self._report for row in wrap_text(text, width, limit)]
        return lines[: self.n_report]

    def text(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value.strip()

    @on(Button.Pressed)
    async def _pressed(self, pressed: Button.Pressed) -> None:
        await self.run_action(pressed.button.id or "")


def field_row(title: str, *widgets: Widget) -> Horizontal:
    return Horizontal(StaticLines(lambda _: [[Cell(title, "dim")]], classes="name"), *widgets, classes="row")


DIGITS: Final = r"[0-9.]*"
MAX_DIGITS: Final = 19


def number_field(field: FormField, text: str, placeholder: str) -> TextField:
    allowed = "|".join([DIGITS, *(field.word[: n + 1] for n in range(len(field.word)))])
    number = TextField(text, placeholder=placeholder, restrict=allowed, id=field.id, compact=True)
    number.max_length = MAX_DIGITS
    return number


# What to run.

NO_MODEL: Final = "not needed"
ANY_MODEL: Final = "the profile's"
LONGER: Final = ("the profile's", "may be exceeded")

_N_OTHER_ROWS: Final = 4
"""Rows of the frame and of the buttons."""
_DIALOG_WIDTH: Final = 72
"""Columns inside the frame before the first layout."""
_MIN_ERROR_WIDTH: Final = 75
"""Columns of the terminal at which errors have room beside the fields."""


_TEXT_FIELDS: Final = {"models": ("models", "a,b,c"), "tasks": ("task file", "FILE")}
"""Title and placeholder by the id of the field."""
_HELP: Final[Mapping[str, str]] = {
    "envs": "environments",
    "models": "one after another",
    "tasks": "in place of tasks",
    "agent": "",
    **{field.id: field.help for field in FORM_FIELDS},
}
"""What is beside a field without an error."""
_AGENT_HELP: Final = {
    "oracle": "knows the solution",
    "random": "any possible action",
    "react": "a thought, an action",
    "tools": "only calls tools",
    "agentgym": "AgentGym's dialogue",
}


class RunForm(Form[None]):
    """A form in which the user chooses what to run, at first ``envs``; it closes when the node has accepted the run."""

    SCOPE = "form"
    AUTO_FOCUS = "#envs"
    BUTTONS: ClassVar = {"start": "Start", "close": "Close"}

    def __init__(
        self,
        session: Session,
        commands: RunCommands,
        envs: Sequence[str],
        start: Callable[[StartArgs], Awaitable[object]],
    ) -> None:
        super().__init__()
        store = session.store
        self._commands, self._start = commands, start
        self._sent: StartArgs | None = None
        self._is_sending = False
        self._refusal = ""
        self._errors: Mapping[str, str] = {}
        self._defaults = store.profile_defaults
        self._env_names, self._models = list(store.envs), store.model_names
        self._agents, self._model_problem = startable_agents(store), model_problem(store)
        choice = commands.agent_choice()
        agent = FALLBACK_AGENT if choice.problem or choice.agent not in self._agents else choice.agent
        chosen = {number for number, env in enumerate(self._env_names) if env in envs}
        self._envs = CheckList(list(self._env_names), chosen, id="envs")
        self._agent = OptionStepper(list(self._agents), self._agents.index(agent), id="agent")
        self._model = OptionStepper(self._model_names(), id="model")
        last = commands.last_run
        self._longer = OptionStepper(LONGER, int(last is not None and last.allow_longer), id="longer")

    def compose(self) -> ComposeResult:
        last = self._commands.last_run
        numbers, texts = form_texts(last), {"models": ",".join(last.models) if last else ""}
        keys = MOVES + " · {checks.toggle} checks · {checks.all} all · {form.start} to Start · {form.close} closes"
        with DialogFrame("Run", keys=keys, id="form"):
            yield StaticLines(self.report_lines, id="report")
            with Horizontal(id="columns"):
                with Vertical(id="where"):
                    yield self._beside("envs")
                    yield self._envs
                with Vertical(id="how"):
                    yield field_row("agent", self._agent, self._beside("agent"))
                    yield field_row("model", self._model)
                    for field in FORM_FIELDS:
                        number = number_field(field, numbers[field.id], default_text(field, self._defaults))
                        yield field_row(field.title, number, self._beside(field.id))
                        if field.id == "max_duration_sec":
                            yield field_row("hard limits", self._longer)
                    for id, (title, hint) in _TEXT_FIELDS.items():
                        text = SearchInput(
                            texts.get(id, ""), placeholder=hint, id=id, max_length=MAX_MODELS_CHARS, compact=True
                        )
                        yield field_row(title, text, self._beside(id))
            yield self.buttons()

    def _beside(self, field: str) -> StaticLines:

        def lines(_: int) -> list[Line]:
            error, agent = self._errors.get(field), self._agents[self._agent.index]
            about = _AGENT_HELP.get(agent, "") if field == "agent" else _HELP[field]
            return [[Cell(f"✗ {error}", "bad") if error else Cell(about, "dim")]]

        return StaticLines(lines, id=f"about-{field}")

    def on_mount(self) -> None:
        self._show_errors({})

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_note)

    def action_start(self) -> None:
        parsed = self._parsed(with_tasks=True)
        self._refusal = ""
        self._show_errors(parsed.errors)
        if (args := parsed.args) is None or self._is_sending:
            return
        if self._sent is not None and replace(args, batch_id=self._sent.batch_id) == self._sent:
            args = self._sent  # the node starts a request whose reply was lost only once
        self._sent, self._is_sending = args, True
        start_worker(self, partial(self._send, args), group="start")

    async def _send(self, args: StartArgs) -> None:
        try:
            await self._start(args)
        except ControlRequestError as exc:
            self._refusal = exc.text
            self._show_note()
        else:
            self.leave()
        finally:
            self._is_sending = False

    @on(OptionStepper.Changed)
    @on(Input.Changed)
    def _edited(self) -> None:
        if self.accepts_keys:
            self._model.set_options(self._model_names())
            self._show_errors(self._parsed().errors)

    def _model_names(self) -> list[str]:
        names = [masked_line(name) for name in self._models]
        return [NO_MODEL] if self._without_model else [": ".join([ANY_MODEL, *names[:1]]), *names]

    @property
    def _without_model(self) -> bool:
        return self._agents[self._agent.index] in MODELLESS_AGENTS

    def _parsed(self, *, with_tasks: bool = False) -> Parsed:
        """Return the request; the file with tasks is read only when it is sent."""
        without_model = self._without_model
        texts: dict[str, str] = {field.id: self.query_one(f"#{field.id}", Input).value for field in FORM_FIELDS}
        return parse_form(
            texts,
            envs=[self._env_names[index] for index in sorted(self._envs.chosen)],
            agent=self._agents[self._agent.index],
            model=None if without_model or not self._model.index else self._models[self._model.index - 1],
            batch_id=self._commands.new_id(),
            models="" if without_model else self.query_one("#models", Input).value,
            tasks=self.query_one("#tasks", Input).value if with_tasks else "",
            allow_longer=bool(self._longer.index),
        )

    def _show_errors(self, errors: Mapping[str, str]) -> None:
        self._errors = errors
        self.show_lines(*(f"about-{field}" for field in _HELP))
        self._show_note()

    def _show_note(self) -> None:
        """Show the note above the fields, which get the other rows, and scroll in a low terminal."""
        size, note = self.app.size, self.query_one("#report")
        width = self.query_one("#form").size.width or min(_DIALOG_WIDTH, size.width - 8)
        self.n_report = max(3, min(6, size.height - 20))
        self.report(*self._note())
        note.styles.height = n_note = len(self.report_lines(width - LIST_MARGIN))
        note.display = n_note > 0
        n_fields = 3 + len(_TEXT_FIELDS) + len(FORM_FIELDS)
        room = int(size.height * 0.92) - _N_OTHER_ROWS - n_note
        self.query_one("#columns").styles.height = max(5, min(n_fields, room))

    def _note(self) -> list[Row]:
        """Return the first error if it does not fit beside its field, else why no model is available."""
        invalid = next((field for field in FORM_FIELDS if field.id in self._errors), None)
        if invalid is not None and self.app.size.width < _MIN_ERROR_WIDTH:
            return [(f"✗ {invalid.title}: {self._errors[invalid.id]}", "bad")]
        if error := self._errors.get("tasks", self._refusal):
            return [(f"✗ {masked_rows(error)}", "bad")]
        problem: list[Row] = [(f"! {masked_rows(self._model_problem)}", "warn")] if self._model_problem else []
        hint: Row = ("  → choose the oracle agent: no model needed", "accent")
        return problem if self._without_model or not problem else [*problem, hint]


class BatteryPicker(DialogScreen[list[str]]):
    """A dialog to choose a tier; its result has the tier's available environments."""

    SCOPE = "dialog"

    def __init__(self, store: RunStore, agent: AgentChoice) -> None:
        super().__init__()
        self._tiers, self._no_tiers = list_batteries(store), no_environments(store)
        self._agent = agent

    def compose(self) -> ComposeResult:
        with DialogFrame("Battery", keys="{list.choose} runs · {dialog.close} closes"):
            yield StaticLines(self._about, id="about")
            yield LineList(FixedLines([*map(_tier_line, self._tiers)]), id="tiers")
            yield StaticLines(self._left_out, id="left-out")

    @on(LineList.Selected)
    def _chosen(self, chosen: LineList.Selected) -> None:
        if self._tiers and (envs := self._tiers[chosen.index].envs):
            self.leave(envs)

    @on(LineList.CursorMoved)
    def _moved(self) -> None:
        self.show_lines("left-out")

    def _about(self, width: int) -> list[Line]:
        if not self._tiers:
            return [[Cell(self._no_tiers, "warn")]]
        if self._agent.problem:
            rows = wrap_text(masked_rows(self._agent.problem), width, 2)
            return [[Cell("Choose a tier, then an agent.")], *([Cell(row, "warn")] for row in rows)]
        name = Cell(player_text(self._agent.agent, self._agent.model), "head")
        other = f"{keymap_of(self.app).key('run.form')} has other agents."
        return [[name, Cell(f" runs each environment once, in order; {other}")]]

    def _left_out(self, width: int) -> list[Line]:
        if not self._tiers:
            return []
        tier = self._tiers[self.query_one("#tiers", LineList).cursor]
        envs = f"{pluralize(len(tier.envs), 'environment')}: {', '.join(tier.envs)}"
        causes = ", ".join(f"{env.name} ({env.cause or env.status})" for env in tier.excluded)
        left = f"left out: {masked_rows(causes)}" if causes else ""
        rows = [Cell(row, "dim") for row in wrap_text(envs, width, 2)]
        return [[cell] for cell in (*rows, *(Cell(row, "warn") for row in wrap_text(left, width, 3)))]


def _tier_line(tier: EnvironmentBattery) -> Line:
    n_all = len(tier.envs) + len(tier.excluded)
    n_available = f"{len(tier.envs)} of {n_all}" if tier.excluded else str(n_all)
    return [Cell(f"{tier.name[:20]:<21}", "accent"), Cell(n_available)]


# A model server of the user's own, and settings of a profile.

MAX_CHARS: Final = 1_000
_MODEL_FIELDS: Final = {
    "url": ("URL", "http://127.0.0.1:8000/v1; empty: the profile's servers"),
    "name": ("model", "as the server calls it"),
    "key-env": ("key variable", "name of the variable with the key; empty: no key"),
    "profile": ("profile", "name of the new profile; empty: the model's"),
}
"""Title and placeholder by the id of the field."""
_SERVERS: Final = {"openai": "an OpenAI-compatible server", "ollama": "Ollama", "tensorzero": "TensorZero"}
_NAME_VARIABLE: Final = "type the name of the variable that holds its key"
_SET_VARIABLE: Final = "→ set it in the shell, then start the console again, which reads it at its start"


class ModelForm(Form[tuple[Path, list[str]]]):
    """A form with a server, its model and the variable of its key, and with settings of the profile in use.

    Its result is the file of a new profile, which has all else of the one in use, and what lacks its comments there.
    """

    SCOPE = "model"
    AUTO_FOCUS = "#url"
    BUTTONS: ClassVar = {"try_model": "Try", "write": "Write", "close": "Close"}
    _is_trying = False

    def __init__(self, profile: Profile, file: ProfileFile) -> None:
        from runner.config.own_model import settings_of

        super().__init__()
        self._base, self._profile_id, values = file, profile.id, settings_of(profile)
        self._texts = {key: number_text(value) for key, value in values.items()}
        largest = {key: math.ceil(value or 0) for key, value in values.items()}
        self._fields = [field._replace(maximum=max(field.maximum, largest[field.id])) for field in PROFILE_FIELDS]

    def compose(self) -> ComposeResult:
        keys = MOVES + " · {model.try} to Try · {model.close} stops or closes"
        with DialogFrame(f"A model of your own · new profile from {masked_line(self._profile_id, 40)}", keys=keys):
            for id, (title, placeholder) in _MODEL_FIELDS.items():
                field = SearchInput(id=id, placeholder=placeholder, compact=True, max_length=MAX_CHARS)
                yield field_row(title, field)
            numbers = [number_field(each, self._texts[each.id], each.empty) for each in self._fields]
            rows = [field_row(field.title, number) for field, number in zip(self._fields, numbers, strict=True)]
            yield from (Horizontal(*rows[n : n + 2], classes="row") for n in range(0, len(rows), 2))
            yield StaticLines(self.report_lines, id="report")
            yield self.buttons()

    def action_try_model(self) -> None:
        if not self.text("url"):
            self.report(("✗ there is nothing to try: type the URL of a server", "bad"))
        elif not self._is_trying:
            self._is_trying = True
            self.report(("looking for the server …", "accent"))
            start_worker(self, partial(self._try, self._own_model()), group="trial")

    def action_write(self) -> None:
        try:
            settings = parse_settings(self._fields, {field.id: self.text(field.id) for field in self._fields})
            own, name = self._own_model(), self.text("profile")
            written = own.write_profile(self._base, settings, os.environ, Path.cwd(), name)
        except ConfigError as exc:
            self.report((f"✗ {masked_rows(str(exc))}", "bad"))
        else:
            self.leave(written)

    def action_close(self) -> None:
        if self._is_trying:
            self.workers.cancel_group(self, "trial")
        else:
            self.leave()

    def _own_model(self) -> OwnModel:
        from runner.config.own_model import OwnModel

        return OwnModel(self.text("url"), self.text("name"), self.text("key-env") or None)

    async def _try(self, own: OwnModel) -> None:
        rows: list[Row] = []

        def on_health(health: EndpointHealth) -> None:
            rows.extend(health_rows(health, own.key_env))
            self.report(*rows, ("asking the model …", "accent"))

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
            self.report(*rows)


def health_rows(health: EndpointHealth, key_env: str | None) -> list[Row]:
    if health.status not in ("up", "slow"):
        hint = _NAME_VARIABLE if health.hint == health.key_hint and not key_env else health.hint
        return _failure_rows(health.cause or health.status, hint, key_env)
    server, model = _SERVERS.get(health.kind, "a server"), masked_line(health.model, 100)
    return [(f"✓ {server} answers at {masked_line(health.url)} and takes {model}", "good")]


def trial_rows(trial: ModelTrial, key_env: str | None) -> list[Row]:
    if trial.failure is not None:
        return _failure_rows(trial.failure, trial.hint, key_env)
    acted = any(act != "none" for act in trial.acts)
    found = f"{'✓' if acted else '!'} the model answers: {masked_line(trial.describe(''), 500)}"
    warnings: list[Row] = [(f"! {masked_line(each, 300)}", "warn") for each in trial.warnings[:3]]
    return [(found, "good" if acted else "warn"), *warnings]


def _failure_rows(cause: str, hint: str | None, key_env: str | None) -> list[Row]:
    rows: list[Row] = [(f"✗ {masked_rows(cause)}", "bad")]
    rows += [(f"→ {masked_rows(hint)}", "accent")] if hint else []
    rows += [(_SET_VARIABLE, "dim")] if key_env and key_env in f"{cause}{hint}" else []
    return rows
