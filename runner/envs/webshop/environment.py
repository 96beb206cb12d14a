"""The WebShop environment, ``WebShop``, and its oracle, ``WebShopOracle``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from textwrap import wrap
from typing import ClassVar

from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.command_grammar import CommandPattern, Grammar
from runner.envs.data_labels import DataLabel
from runner.envs.webshop.catalogue import Product, shipped_catalogue, shipped_index
from runner.envs.webshop.visit import Visit
from runner.types import Action, CellRow, CellRun, Cells, InvalidAction, Mode, Trajectory
from runner.types.cells import CellColor

_WIDTH = 76


def draw_page(visit: Visit) -> Cells:
    page, rows = visit.page, [(CellRun("WebShop", "cyan"), CellRun(f"   search: {visit.keywords or '-'}", "dim"))]
    rows += [(CellRun("Wanted: ", "dim"), CellRun(line)) for line in _lines(visit.goal.instruction)[:1]]
    rows += [(CellRun(" " * 8), CellRun(line)) for line in _lines(visit.goal.instruction)[1:4]]
    if page.has_search_bar:
        return Cells([*rows, (), (CellRun("[ type keywords …            ] [Search]", "cyan"),)])
    if visit.product is not None and "buy now" in page.links:
        return Cells([*rows, (), *_product_rows(visit, visit.product)])
    return Cells([*rows, (), *_piece_rows(visit)])


def _product_rows(visit: Visit, product: Product) -> Iterator[CellRow]:
    for line in _lines(product.title)[:3]:
        yield (CellRun(line, "yellow"),)
    yield (CellRun("Price: ", "dim"), CellRun(product.price, "green"))
    yield ()
    for name, values in product.options.items():
        yield (CellRun(f"{name}:", "dim"),)
        for value in values[:20]:
            is_chosen = visit.chosen.get(name) == value
            yield (CellRun(f"  (•) {value}", "green", "shade") if is_chosen else CellRun(f"  ( ) {value}"),)
    yield ()
    yield _buttons("Description", "Features", "Reviews", "Buy Now")
    yield _buttons("< Prev", "Back to Search")


def _piece_rows(visit: Visit) -> Iterator[CellRow]:
    links = visit.page.links
    buttons = [piece for piece in ("< Prev", "Next >", "Back to Search") if piece.lower() in links]
    skipped = {"Instruction:", visit.goal.instruction, *buttons}
    for piece in visit.page.pieces:
        if piece in skipped:
            continue
        if piece.lower() in links:
            yield (CellRun(f"[{piece}]", "cyan"),)
        else:
            color: CellColor = "green" if piece.startswith("$") else "plain"
            for line in _lines(piece)[:4]:
                yield (CellRun("  "), CellRun(line, color))
    if buttons:
        yield ()
        yield _buttons(*buttons)


def _buttons(*labels: str) -> CellRow:
    return tuple(run for label in labels for run in (CellRun(f"[{label}]", "cyan"), CellRun(" ")))


def _lines(text: str) -> list[str]:
    return wrap(text[:4096], _WIDTH) or [""]


_GRAMMAR = Grammar(
    [
        CommandPattern(
            name="search",
            description="Search the shop. Shows up to 50 products that have any of the words, ten a page, best first.",
            template="search[{keywords}]",
            pattern=re.compile(r"search\[(?P<keywords>.+)\]"),
            parameters={"keywords": {"type": "string", "description": 'As in "vegan shampoo".'}},
        ),
        CommandPattern(
            name="click",
            description=(
                "Click something on the page: a product by its number, a value of an option, or a button such as "
                "Next >, < Prev, Back to Search, Description, Features or Reviews. Buy Now buys the product with the "
                "options clicked so far and ends the episode. A click on anything else does nothing."
            ),
            template="click[{element}]",
            pattern=re.compile(r"click\[(?P<element>.+)\]"),
            parameters={"element": {"type": "string", "description": "Its text on the page, in any case."}},
        ),
    ],
    expected="search[<keywords>] or click[<something on the page>]",
)


class WebShop(EmbeddedEnvironment):
    """Buy the product that an instruction describes; the purchase gives the reward and ends the episode.

    The reward, 0 to 1, is the share of requirements that the purchase meets (see ``runner.envs.webshop.visit``); only
    a reward of 1 is a success. After an invalid text or a click on something that is not on the page, the same page is
    shown again. There is no step limit. The products are invented, so results are not WebShop scores.

    ``compat`` keeps quirks of AgentGym's server (``agentenv-webshop/agentenv_webshop/environment.py``): an action may
    have trailing text but no leading white space, steps after the end of the episode are executed, ``Next >`` is always
    shown, ``search[<r>]`` finds any products, and similar sizes count as equal.
    """

    name: ClassVar[str] = "WebShop"
    blocks_briefly = True
    data_label = DataLabel("webshop")
    grammar = _GRAMMAR
    steps_after_end = True

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._catalogue = shipped_catalogue()
        self.n_tasks = len(self._catalogue.goals)
        self._visit: Visit
        self._is_lost = False
        """Whether the latest click was on something that is not on the page."""

    @property
    def instruction(self) -> str:
        return self._visit.goal.instruction

    @property
    def has_search_bar(self) -> bool:
        """Whether the page shows a search bar; ``search`` works on any page."""
        return self._visit.page.has_search_bar

    @property
    def clickables(self) -> list[str]:
        """In lower case; in compat mode options come last, and the useless button of the search bar is listed."""
        links = [*self._visit.page.links]
        if self.mode == "strict":
            return links
        product = self._visit.product
        options = {value.lower() for values in product.options.values() for value in values} if product else set()
        return [*(["search"] if self.has_search_bar else []), *sorted(links, key=lambda link: link in options)]

    def parse(self, text: str) -> Action | InvalidAction:
        """A clicked element need not be on the page."""
        if self.mode == "strict":
            return super().parse(text)
        command = _command_prefix(text)
        parsed = super().parse(command) if command else InvalidAction(text, self.grammar.expected)
        return Action(text=text, tool_calls=parsed.tool_calls) if isinstance(parsed, Action) else parsed

    def admissible_actions(self) -> list[str]:
        """Return a click per element of the page, after a search for the instruction if the page has a search bar."""
        searches = [f"search[{self.instruction}]"] if self.has_search_bar else []
        return searches + [f"click[{element}]" for element in self._visit.page.links]

    def success(self, trajectory: Trajectory) -> bool:
        return any(step.reward >= 1 for step in trajectory.timesteps)

    def oracle(self, seed: int | None) -> WebShopOracle:
        return WebShopOracle(self._visit, self._catalogue.by_asin[self._visit.goal.asin].kind)

    def render_cells(self) -> Cells:
        return draw_page(self._visit)

    def _reset(self, task_index: int) -> str:
        goal = self._catalogue.goals[task_index]
        self._visit = Visit(self._catalogue, shipped_index(), goal, compat=self.mode == "compat")
        return self._visit.page.text

    def _step(self, text: str) -> StepText:
        parsed = self.parse(text)
        reward, self._is_lost = None, False
        if isinstance(parsed, Action):
            (call,) = parsed.tool_calls
            (argument,) = json.loads(call.arguments).values()
            target = argument.lower()
            self._is_lost = call.name == "click" and target not in self._visit.page.links
            reward = (self._visit.search if call.name == "search" else self._visit.click)(target)
        return self._visit.page.text, reward or 0.0, reward is not None

    def _has_refused(self, observation: str) -> bool:
        return self._is_lost


def _command_prefix(text: str) -> str:
    # AgentGym's server parses the first line up to its last "]", and looks for the last "[" before it
    # (agentenv-webshop/agentenv_webshop/environment.py)
    line = text.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 0, max(end - 1, 0))
    return line[: end + 1] if line[: max(start, 0)] in ("search", "click") else ""


class WebShopOracle:
    """Planner that searches for the product by kind and attributes, opens its page, chooses its options and buys it.

    Each action is derived from the current page alone, so the oracle can continue from any page of the shop.
    """

    def __init__(self, visit: Visit, kind: str) -> None:
        """``kind`` is the kind of product to buy; the caller executes the actions."""
        self._visit = visit
        self._keywords = " ".join([*visit.goal.attributes, kind])

    def next_action(self) -> str:
        goal, product = self._visit.goal, self._visit.product
        return self._to_product() if product is None or product.asin != goal.asin else self._to_purchase()

    def _to_product(self) -> str:
        links, asin = self._visit.page.links, self._visit.goal.asin.lower()
        if asin in links:
            return f"click[{asin}]"
        searched = self._visit.keywords == self._keywords and self._visit.product is None
        return "click[next >]" if searched and self._visit.has_next_page else f"search[{self._keywords}]"

    def _to_purchase(self) -> str:
        if "buy now" not in self._visit.page.links:
            return "click[< prev]" if "< prev" in self._visit.page.links else f"search[{self._keywords}]"
        chosen, options = self._visit.chosen, self._visit.goal.options
        missing = (value for name, value in options.items() if chosen.get(name) != value)
        return f"click[{next(missing, 'buy now')}]"
