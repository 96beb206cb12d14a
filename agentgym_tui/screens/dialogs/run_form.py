"""The run form: what to play, who plays, how often and how long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Input

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.segments import told_rows
from agentgym_tui.presenters.text_width import wrapped
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.screens.base import DialogScreen
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.sessions.run_commands import BASELINES, FALLBACK, Orders, model_trouble, startable_agents
from agentgym_tui.sessions.start_form import BY_PROFILE, FIELDS, Field, FieldId, Parsed, parse, texts_of
from agentgym_tui.widgets.dialog import Dialog
from agentgym_tui.widgets.form_controls import CheckList, OneOf
from agentgym_tui.widgets.inputs import TextField
from agentgym_tui.widgets.line_list import LineView
from agentgym_tui.widgets.static_lines import Heading
from runner.events.control import StartArgs

DIGITS: Final = r"[0-9.]*"
MAX_DIGITS: Final = 19
NO_MODEL: Final = own("none is needed")
ANY_MODEL: Final = own("the profile's")

_LEAST: Final = 66
"""Columns from which on what is wrong has room beside the fields."""
KEYS: Final = "{form.start} starts · tab next · {checks.toggle} chooses · {form.close} closes"


class RunForm(DialogScreen[StartArgs]):
    """Asks what to play; the result is what to start.

    Args:
        session: what can be played.
        orders: knows what was played last.
        envs: the environments that are chosen at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("form")]
    AUTO_FOCUS = "#envs"

    def __init__(self, session: Session, orders: Orders, envs: Sequence[str]) -> None:
        super().__init__()
        store = session.store
        self._orders = orders
        self._known = list(store.envs)
        self._agents = startable_agents(store)
        self._models = store.model_names
        self._trouble = model_trouble(store)
        player = orders.player()
        chosen = {number for number, env in enumerate(self._known) if env in envs}
        self._envs = CheckList([line(env) for env in self._known], chosen, id="envs")
        agent = FALLBACK if player.trouble or player.agent not in self._agents else player.agent
        self._agent = OneOf([line(each) for each in self._agents], self._agents.index(agent), id="agent")
        self._model = OneOf(self._model_names(), id="model")
        self._texts = texts_of(orders.last)
        self._errors: Mapping[str, Safe] = {}

    def compose(self) -> ComposeResult:
        """The environments at the left, the rest at the right."""
        with Dialog(
            own("Run"), keys="{form.start} starts · tab next · {checks.toggle} chooses · {form.close} closes", id="form"
        ):
            note = Heading(self._note, id="note")
            note.styles.height = self._n_note
            yield note
            with Horizontal(id="columns"):
                with Vertical(id="where"):
                    yield Heading(self._envs_title, id="envs-title")
                    yield self._envs
                with Vertical(id="how"):
                    yield from self._row(own("agent"), self._agent)
                    yield from self._row(own("model"), self._model)
                    for field in FIELDS:
                        yield from self._row(field.title, self._input(field), field)
            with Horizontal(id="buttons"):
                yield Button(Content("Start"), id="start", compact=True, variant="primary")
                yield Button(Content("Close"), id="close", compact=True)

    def action_start(self) -> None:
        """Start, unless something is wrong."""
        parsed = self._parsed()
        self._say(parsed.errors)
        if parsed.args is not None:
            self.leave(parsed.args)

    def action_close(self) -> None:
        """Start nothing."""
        self.leave()

    @on(Button.Pressed, "#start")
    @on(Input.Submitted)
    @on(LineView.Chosen)
    def _start_pressed(self) -> None:
        if self.whole:
            self.action_start()

    @on(Button.Pressed, "#close")
    def _close_pressed(self) -> None:
        self.action_close()

    @on(OneOf.Changed)
    @on(Input.Changed)
    def _edited(self) -> None:
        if not self.whole:
            return
        self._model.offer(self._model_names())
        self._say(self._parsed().errors)

    def _model_names(self) -> list[Safe]:
        if self._agents[self._agent.index] in BASELINES:
            return [NO_MODEL]
        return [ANY_MODEL, *(line(each) for each in self._models)]

    def _row(self, title: Safe, widget: OneOf | Input, field: Field | None = None) -> Iterator[Horizontal]:
        about = Heading(lambda _: [_about(field)], id=f"about-{field.id}") if field else None
        name = Heading(lambda _: [[Cell(title, "dim")]], classes="name")
        yield Horizontal(name, widget, *([about] if about else []), classes="row")

    def _input(self, field: Field) -> Input:
        return TextField(
            self._texts[field.id],
            id=field.id,
            restrict=DIGITS,
            max_length=MAX_DIGITS,
            placeholder=BY_PROFILE if field.optional else "",
            compact=True,
            select_on_focus=True,
        )

    def _parsed(self) -> Parsed:
        agent = self._agents[self._agent.index]
        model = None if agent in BASELINES or not self._model.index else self._models[self._model.index - 1]
        texts: dict[FieldId, str] = {field.id: self.query_one(f"#{field.id}", Input).value for field in FIELDS}
        envs = [self._known[index] for index in sorted(self._envs.chosen)]
        return parse(texts, envs=envs, agent=agent, model=model, batch_id=self._orders.new_id())

    def _say(self, errors: Mapping[str, Safe]) -> None:
        """Say what is wrong beside each field."""
        self._errors = errors
        self.query_one("#envs-title", Heading).show(self._envs_title)
        self.query_one("#note", Heading).show(self._note)
        for field in FIELDS:
            error = errors.get(field.id)
            cells = [Cell(join([own("✗ "), error]), "bad")] if error else _about(field)
            self.query_one(f"#about-{field.id}", Heading).show(lambda _, cells=cells: [cells])  # type: ignore[misc]

    def on_resize(self) -> None:
        """The note takes the room that the fields leave."""
        self.query_one("#note").styles.height = self._n_note

    @property
    def _n_note(self) -> int:
        return max(3, min(6, self.app.size.height - 19))

    def _note(self, width: int) -> list[Line]:
        """Why no model plays; what is wrong first where there is no room for it beside the fields."""
        wrong = next((field for field in FIELDS if field.id in self._errors), None)
        if wrong is not None and width < _LEAST:
            return [[Cell(join([own("✗ "), wrong.title, own(": "), self._errors[wrong.id]]), "bad")]]
        if not self._trouble:
            return []
        offer = own("agent oracle plays without a model")
        rows = wrapped(join([own("! "), told_rows(self._trouble)]), width, self._n_note - 1)
        return [*([Cell(row, "warn")] for row in rows), [Cell(own("  → "), "dim"), Cell(offer, "accent")]]

    def _envs_title(self, width: int) -> list[Line]:
        if error := self._errors.get("envs"):
            return [[Cell(join([own("✗ "), error]), "bad")]]
        return [[Cell(own("environments"), "dim")]]


def _about(field: Field) -> Line:
    return [Cell(field.about, "dim")]
