"""The WebShop environment."""

from __future__ import annotations

import json
import re
from typing import ClassVar

from runner.envs.base import EmbeddedEnvironment, StepText
from runner.envs.data_labels import DataLabel
from runner.envs.grammar import CommandPattern, Grammar
from runner.envs.webshop.catalogue import shipped_catalogue, shipped_index
from runner.envs.webshop.visit import Visit
from runner.types import Action, InvalidAction, Mode, StepResult, Trajectory

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
    """Buy what an instruction asks for; the reward comes with the purchase, which ends the episode.

    The reward is 0 to 1, by how much of what was asked for the purchase has (see ``runner.envs.webshop.reward``); only
    1 is a success. A text that is no action and a click on what is not there show the page again. There is no step
    limit. The products are invented ones, so no result here is a score on WebShop's own catalogue.

    ``compat`` keeps two quirks of AgentGym's server: an action may be followed by anything, but white space before it
    spoils it, and the task can be stepped on after its end.
    """

    name: ClassVar[str] = "WebShop"
    data_label = DataLabel("webshop")

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._catalogue = shipped_catalogue()
        self.n_tasks = len(self._catalogue.goals)
        self._visit: Visit

    @property
    def grammar(self) -> Grammar:
        """Two commands: search and click."""
        return _GRAMMAR

    @property
    def instruction(self) -> str:
        """What is to be bought."""
        return self._visit.goal.instruction

    @property
    def has_search_bar(self) -> bool:
        """Whether the page has one; a search is carried out on any page."""
        return self._visit.page.has_search_bar

    @property
    def clickables(self) -> list[str]:
        """What can be clicked on the page, in lower case; the search bar's own button does nothing and is left out."""
        return list(self._visit.page.links)

    def step(self, action: Action) -> StepResult:
        """Take one action; see :meth:`EmbeddedEnvironment.step`."""
        result = super().step(action)
        self._running = self._running or self.mode == "compat"
        return result

    def parse(self, text: str) -> Action | InvalidAction:
        """The search or click that ``text`` means, whether or not the page has what is clicked."""
        if self.mode == "strict":
            return super().parse(text)
        meant = _loosely_read(text)
        parsed = super().parse(meant) if meant else InvalidAction(text, self.grammar.expected)
        return Action(text=text, tool_calls=parsed.tool_calls) if isinstance(parsed, Action) else parsed

    def admissible_actions(self) -> list[str]:
        """A click on each thing of the page, and where there is a search bar a search for the instruction's words."""
        searches = [f"search[{self.instruction}]"] if self.has_search_bar else []
        return searches + [f"click[{element}]" for element in self.clickables]

    def success(self, trajectory: Trajectory) -> bool:
        """Whether the purchase was all that was asked for."""
        return any(step.reward >= 1 for step in trajectory.timesteps)

    def oracle(self, seed: int | None) -> WebShopOracle:
        """A planner for the running task; there is nothing random in it."""
        return WebShopOracle(self._visit, self._catalogue.by_asin[self._visit.goal.asin].kind)

    def _reset(self, task_index: int) -> str:
        self._visit = Visit(self._catalogue, shipped_index(), self._catalogue.goals[task_index])
        return self._visit.page.text

    def _step(self, text: str) -> StepText:
        parsed = self.parse(text)
        reward = None
        if isinstance(parsed, Action):
            (call,) = parsed.tool_calls
            (argument,) = json.loads(call.arguments).values()
            act = self._visit.search if call.name == "search" else self._visit.click
            reward = act(argument.lower())
        return self._visit.page.text, reward or 0.0, reward is not None


def _loosely_read(text: str) -> str:
    """The part of a text that AgentGym's server reads as an action, empty where there is none.

    It looks at the first line only, from its start to the last closing bracket, and for the last opening one before it.
    """
    line = text.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 0, max(end - 1, 0))
    return line[: end + 1] if line[: max(start, 0)] in ("search", "click") else ""


class WebShopOracle:
    """Searches for the kind of thing with its attributes, turns pages to the product, chooses its options and buys it.

    It only looks at the page that is shown, so it finds its way from anywhere in the shop.
    """

    def __init__(self, visit: Visit, kind: str) -> None:
        """Watch ``visit``, which the episode steps; ``kind`` is that of the product to buy."""
        self._visit = visit
        self._keywords = " ".join([*visit.goal.attributes, kind])

    def next_action(self) -> str:
        """The next search or click."""
        goal, product = self._visit.goal, self._visit.product
        return self._to_product() if product is None or product.asin != goal.asin else self._to_purchase()

    def _to_product(self) -> str:
        links, asin = self._visit.page.links, self._visit.goal.asin.lower()
        if asin in links:
            return f"click[{asin}]"
        searched = self._visit.keywords == self._keywords and self._visit.product is None
        return "click[next >]" if searched and "next >" in links else f"search[{self._keywords}]"

    def _to_purchase(self) -> str:
        if "buy now" not in self._visit.page.links:
            return "click[< prev]" if "< prev" in self._visit.page.links else f"search[{self._keywords}]"
        chosen, options = self._visit.chosen, self._visit.goal.options
        missing = (value for name, value in options.items() if chosen.get(name) != value)
        return f"click[{next(missing, 'buy now')}]"
