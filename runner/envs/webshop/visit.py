"""One visit to the shop: the current page and its links.

The page texts are those of AgentGym's ``agentenv-webshop`` in its text mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from runner.envs.webshop.catalogue import Catalogue, Goal, Product, SearchIndex
from runner.envs.webshop.reward import purchase_reward

PER_PAGE = 10
SEPARATOR = " [SEP] "

Link: TypeAlias = Callable[[], float | None]
"""Action that follows a link; returns the reward if the link makes a purchase, else None."""


class Page(NamedTuple):
    """A page of the shop: the pieces of its text, and a mapping from lower-case labels to links."""

    pieces: Sequence[str]
    links: Mapping[str, Link]
    has_search_bar: bool = False

    @property
    def text(self) -> str:
        """Observation text of the page."""
        return SEPARATOR.join(self.pieces)


class Visit:
    """State of one task in the shop: current page, latest search and chosen options.

    Attributes:
        goal: the task.
        page: current page.
        keywords: keywords of the last search, empty after a return to the start page.
        product: product whose item or detail page is shown; None on other pages.
        chosen: option name -> value clicked for ``product``; cleared when search results are shown.
    """

    def __init__(self, catalogue: Catalogue, index: SearchIndex, goal: Goal) -> None:
        """Open the start page of the task ``goal``."""
        self.goal = goal
        self.page: Page
        self.keywords = ""
        self.product: Product | None = None
        self.chosen: dict[str, str] = {}
        self._catalogue = catalogue
        self._index = index
        self._hits: Sequence[Product] = ()
        self._number = 1
        self._start()

    def search(self, keywords: str) -> None:
        """Show the first page of search results."""
        self.keywords = keywords
        self._hits = self._index.find(keywords)
        self._results(1)

    def click(self, label: str) -> float | None:
        """Follow the link with a label; return the reward of a purchase, else None. An unknown label does nothing."""
        link = self.page.links.get(label)
        return link() if link else None

    def _start(self) -> None:
        self.keywords, self.product, self.chosen = "", None, {}
        self.page = Page(["WebShop", "Instruction:", self.goal.instruction, "Search"], {}, has_search_bar=True)

    def _results(self, number: int) -> None:
        self._number, self.product, self.chosen = number, None, {}
        paging: dict[str, Link] = {}
        if number > 1:
            paging["< Prev"] = partial(self._results, number - 1)
        if number * PER_PAGE < len(self._hits):
            paging["Next >"] = partial(self._results, number + 1)
        shown = self._hits[(number - 1) * PER_PAGE : number * PER_PAGE]
        items = {product.asin: partial(self._item, product) for product in shown}
        pieces = [piece for product in shown for piece in (product.asin, product.title, product.price)]
        count = f"Page {number} (Total results: {len(self._hits)})"
        self._show([count, *paging, *pieces], {**paging, **items})

    def _item(self, product: Product) -> None:
        self.product = product
        options = {
            value: partial(self._choose, name, value) for name, values in product.options.items() for value in values
        }
        details = {
            "Description": partial(self._detail, product, [product.description]),
            "Features": partial(self._detail, product, product.features),
            "Reviews": partial(self._detail, product, []),
        }
        choices = [piece for name, values in product.options.items() for piece in (name, *values)]
        about = [product.title, f"Price: {product.price}", "Rating: N.A."]
        back = {"< Prev": partial(self._results, self._number)}
        self._show(
            [*back, *choices, *about, *details, "Buy Now"],
            {**back, **options, **details, "Buy Now": partial(self._buy, product)},
        )

    def _detail(self, product: Product, texts: Sequence[str]) -> None:
        back = {"< Prev": partial(self._item, product)}
        self._show([*back, *texts], back)

    def _choose(self, name: str, value: str) -> None:
        self.chosen[name] = value

    def _buy(self, product: Product) -> float:
        score = purchase_reward(self._catalogue, self.goal, product, self.chosen)
        self.page = Page(["Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", str(score)], {})
        return score

    def _show(self, pieces: Sequence[str], links: Mapping[str, Link]) -> None:
        common: dict[str, Link] = {"Back to Search": self._start}
        shown = ["Instruction:", self.goal.instruction, *common, *pieces]
        self.page = Page(shown, {label.lower(): link for label, link in {**common, **links}.items()})
