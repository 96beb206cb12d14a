"""The run form, with fields for environments, agent, model, number of episodes and limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import masked_rows
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.services import start_worker
from agentgym_tui.sessions.control_client import ControlRequestError
from agentgym_tui.sessions.run_commands import (
    FALLBACK_AGENT,
    FORM_FIELDS,
    MAX_MODELS_CHARS,
    MODELLESS_AGENTS,
    FormField,
    Parsed,
    RunCommands,
    default_text,
    form_texts,
    model_problem,
    parse_form,
    startable_agents,
)
from agentgym_tui.sessions.session import Session
from agentgym_tui.sinks import as_label
from agentgym_tui.widgets.form_controls import CheckList, OptionStepper
from agentgym_tui.widgets.inputs import SearchInput, TextField
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines
from runner.events.control import StartArgs

DIGITS: Final = r"[0-9.]*"
MAX_DIGITS: Final = 19
NO_MODEL: Final = "not needed"
ANY_MODEL: Final = "the profile's"

_N_OTHER_ROWS: Final = 4
"""Rows of the frame and of the buttons."""
_MIN_ERROR_WIDTH: Final = 66
"""Columns at which errors have room beside the fields."""
KEYS: Final = "{form.start} starts · {focus.next} next · {checks.toggle} chooses · {form.close} closes"


class RunForm(DialogScreen[None]):
    """A form in which the user chooses what to run; it closes when the node has accepted the run.

    Args:
        session: provides environments, agents and models.
        commands: the run commands, which remember the last run.
        envs: names of the environments that are checked at first.
        start: sends the start request; raises ``ControlRequestError`` where it is refused.
    """

    SCOPE = "form"
    AUTO_FOCUS = "#envs"

    def __init__(
        self,
        session: Session,
        commands: RunCommands,
        envs: Sequence[str],
        start: Callable[[StartArgs], Awaitable[object]],
    ) -> None:
        super().__init__()
        self._start = start
        self._sent: StartArgs | None = None
        self._is_sending = False
        self._refusal = ""
        self._defaults = session.store.profile_defaults
        store = session.store
        self._commands = commands
        self._env_names = list(store.envs)
        self._agents = startable_agents(store)
        self._models = store.model_names
        self._model_problem = model_problem(store)
        choice = commands.agent_choice()
        chosen = {number for number, env in enumerate(self._env_names) if env in envs}
        self._envs = CheckList(list(self._env_names), chosen, id="envs")
        agent = FALLBACK_AGENT if choice.problem or choice.agent not in self._agents else choice.agent
        self._agent = OptionStepper(list(self._agents), self._agents.index(agent), id="agent")
        self._model = OptionStepper(self._model_names(), id="model")
        self._texts = form_texts(commands.last_run)
        self._errors: Mapping[str, str] = {}

    def compose(self) -> ComposeResult:
        with DialogFrame(
            "Run",
            keys=KEYS,
            id="form",
        ):
            note = StaticLines(self._note, id="note")
            note.styles.height = self._n_note
            yield note
            with Horizontal(id="columns") as columns:
                columns.styles.height = self._n_columns
                with Vertical(id="where"):
                    yield StaticLines(self._envs_title, id="envs-title")
                    yield self._envs
                with Vertical(id="how"):
                    yield from self._row("agent", self._agent)
                    yield from self._row("model", self._model)
                    for field in FORM_FIELDS:
                        yield from self._row(field.title, self._input(field), field)
                    last = self._commands.last_run
                    yield self._text_row("models", ",".join(last.models) if last else "", "a,b,c")
                    yield self._text_row("tasks", "", "FILE")
            with Horizontal(id="buttons"):
                yield Button(as_label("Start"), id="start", compact=True, variant="primary")
                yield Button(as_label("Close"), id="close", compact=True)

    def action_start(self) -> None:
        """Send the start request and close the form; keep it open if it has errors or the request is refused."""
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
            self.show_lines("note")
        else:
            self.leave()
        finally:
            self._is_sending = False

    @on(Button.Pressed, "#start")
    @on(Input.Submitted)
    @on(LineList.Selected)
    def _start_pressed(self) -> None:
        if self.accepts_keys:
            self.action_start()

    @on(Button.Pressed, "#close")
    def _close_pressed(self) -> None:
        self.action_close()

    @on(OptionStepper.Changed)
    @on(Input.Changed)
    def _edited(self) -> None:
        if not self.accepts_keys:
            return
        self._model.set_options(self._model_names())
        self._show_errors(self._parsed().errors)

    def _model_names(self) -> list[str]:
        if self._agents[self._agent.index] in MODELLESS_AGENTS:
            return [NO_MODEL]
        return [ANY_MODEL, *(each for each in self._models)]

    def _row(self, title: str, widget: OptionStepper | Input, field: FormField | None = None) -> Iterator[Horizontal]:
        about = StaticLines(lambda _: [_about(field)], id=f"about-{field.id}") if field else None
        name = StaticLines(lambda _: [[Cell(title, "dim")]], classes="name")
        yield Horizontal(name, widget, *([about] if about else []), classes="row")

    def _input(self, field: FormField) -> Input:
        return TextField(
            self._texts[field.id],
            id=field.id,
            restrict="|".join([DIGITS, *(field.word[: n + 1] for n in range(len(field.word)))]),
            max_length=MAX_DIGITS,
            placeholder=default_text(field, self._defaults),
            compact=True,
            select_on_focus=True,
        )

    def _text_row(self, id: str, text: str, placeholder: str) -> Horizontal:
        """Return the row for the names of several models, or for a file with tasks."""
        field = SearchInput(
            text,
            id=id,
            max_length=MAX_MODELS_CHARS,
            placeholder=placeholder,
            compact=True,
            select_on_focus=True,
        )
        name = StaticLines(lambda _: [[Cell(_TEXT_ROWS[id][0], "dim")]], classes="name")
        return Horizontal(name, field, StaticLines(lambda _: self._about_text(id), id=f"about-{id}"), classes="row")

    def _about_text(self, id: str) -> list[Line]:
        if error := self._errors.get(id):
            return [[Cell(f"✗ {error}", "bad")]]
        return [[Cell(_TEXT_ROWS[id][1], "dim")]]

    def _parsed(self, *, with_tasks: bool = False) -> Parsed:
        """Return the request of the form; the file with tasks is read only when it is sent."""
        agent = self._agents[self._agent.index]
        model = None if agent in MODELLESS_AGENTS or not self._model.index else self._models[self._model.index - 1]
        texts: dict[str, str] = {field.id: self.query_one(f"#{field.id}", Input).value for field in FORM_FIELDS}
        envs = [self._env_names[index] for index in sorted(self._envs.chosen)]
        models = "" if agent in MODELLESS_AGENTS else self.query_one("#models", Input).value
        return parse_form(
            texts,
            envs=envs,
            agent=agent,
            model=model,
            batch_id=self._commands.new_id(),
            models=models,
            tasks=self.query_one("#tasks", Input).value if with_tasks else "",
        )

    def _show_errors(self, errors: Mapping[str, str]) -> None:
        """Show each error beside its field."""
        self._errors = errors
        self.show_lines("envs-title", "note", *(f"about-{id}" for id in _TEXT_ROWS))
        for field in FORM_FIELDS:
            error = errors.get(field.id)
            cells = [Cell(f"✗ {error}", "bad")] if error else _about(field)
            self.query_one(f"#about-{field.id}", StaticLines).show(lambda _, cells=cells: [cells])  # type: ignore[misc]

    def on_resize(self) -> None:
        """Set the heights of the note and of the fields, which scroll in a low terminal."""
        self.query_one("#note").styles.height = self._n_note
        self.query_one("#columns").styles.height = self._n_columns

    @property
    def _n_columns(self) -> int:
        n_rows = 2 + len(_TEXT_ROWS) + len(FORM_FIELDS)
        return max(5, min(n_rows, int(self.app.size.height * 0.92) - _N_OTHER_ROWS - self._n_note))

    @property
    def _n_note(self) -> int:
        return max(3, min(6, self.app.size.height - 20))

    def _note(self, width: int) -> list[Line]:
        """Return the first error if it does not fit beside its field, else the reason why no model is available."""
        invalid = next((field for field in FORM_FIELDS if field.id in self._errors), None)
        if invalid is not None and width < _MIN_ERROR_WIDTH:
            return [[Cell(f"✗ {invalid.title}: {self._errors[invalid.id]}", "bad")]]
        if (error := self._errors.get("tasks")) is not None:
            return [[Cell(row, "bad")] for row in wrap_text(f"✗ {error}", width, self._n_note)]
        if self._refusal:
            text = f"✗ {masked_rows(self._refusal)}"
            return [[Cell(row, "bad")] for row in wrap_text(text, width, self._n_note)]
        if not self._model_problem:
            return []
        hint = "choose the oracle agent: no model needed"
        rows = wrap_text(f"! {masked_rows(self._model_problem)}", width, self._n_note - 1)
        return [*([Cell(row, "warn")] for row in rows), [Cell("  → ", "dim"), Cell(hint, "accent")]]

    def _envs_title(self, width: int) -> list[Line]:
        if error := self._errors.get("envs"):
            return [[Cell(f"✗ {error}", "bad")]]
        return [[Cell("environments", "dim")]]


_TEXT_ROWS: Final = {
    "models": ("models", "one after another"),
    "tasks": ("task file", "in place of tasks"),
}
"""Title and help of the rows with a text, by the id of the input."""


def _about(field: FormField) -> Line:
    return [Cell(field.help, "dim")]
