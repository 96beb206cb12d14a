"""One visit to the shop: which page is shown and where its links lead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from runner.envs.webshop.catalogue import Catalogue, Goal, Product, SearchIndex
from runner.envs.webshop.reward import purchase_reward

PER_PAGE = 10
SEPARATOR = " [SEP] "

Link: TypeAlias = Callable[[], float | None]
"""Follows a link; a purchase gives its reward."""


class Page(NamedTuple):
    """What is shown, piece by piece, and what can be clicked: lower-case labels and what they do."""

    pieces: Sequence[str]
    links: Mapping[str, Link]
    has_search_bar: bool = False

    @property
    def text(self) -> str:
        """The page as an observation."""
        return SEPARATOR.join(self.pieces)


class Visit:
    """A customer's way through the shop, from the start page on.

    Attributes:
        page: what is shown now.
        keywords: what was searched for last, empty after a return to the start page.
        product: whose page or details are shown, None elsewhere.
        chosen: the values clicked for that product's options; forgotten when search results are shown again.
    """

    def __init__(self, catalogue: Catalogue, index: SearchIndex, goal: Goal) -> None:
        """Enter the shop with ``goal`` to buy."""
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
        """Show the first page of what is found."""
        self.keywords = keywords
        self._hits = self._index.find(keywords)
        self._results(1)

    def click(self, label: str) -> float | None:
        """Follow a link of the page; a label that is not there does nothing. A purchase gives its reward."""
        link = self.page.links.get(label)
        return link() if link else None

    def _start(self) -> None:
        self.keywords, self.product, self.chosen = "", None, {}
        self.page = Page(["WebShop", "Instruction:", self.goal.instruction, "Search"], {}, has_search_bar=True)

    def _results(self, number: int) -> None:
        self._number, self.product, self.chosen = number, None, {}
        turns: dict[str, Link] = {}
        if number > 1:
            turns["< Prev"] = partial(self._results, number - 1)
        if number * PER_PAGE < len(self._hits):
            turns["Next >"] = partial(self._results, number + 1)
        shown = self._hits[(number - 1) * PER_PAGE : number * PER_PAGE]
        items = {product.asin: partial(self._item, product) for product in shown}
        pieces = [piece for product in shown for piece in (product.asin, product.title, product.price)]
        count = f"Page {number} (Total results: {len(self._hits)})"
        self._show([count, *turns, *pieces], {**turns, **items})

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
        everywhere: dict[str, Link] = {"Back to Search": self._start}
        shown = ["Instruction:", self.goal.instruction, *everywhere, *pieces]
        self.page = Page(shown, {label.lower(): link for label, link in {**everywhere, **links}.items()})
