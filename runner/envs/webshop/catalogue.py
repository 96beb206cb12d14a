"""What the shop sells, and what its customers are sent to buy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from runner.util.package_data import shipped


class Product(msgspec.Struct, frozen=True, array_like=True):
    """An item of the shop.

    Attributes:
        asin: its number, ten letters and digits.
        kind: what one would search for to find such a thing.
        nouns: the nouns of its title; WebShop finds them with a language model.
        attributes: what is known to be true of it.
        extras: what its list of features says besides.
        options: per choice, such as ``color``, the values there are; no value is there twice.
        cents: its price.
    """

    asin: str
    title: str
    kind: str
    nouns: frozenset[str]
    attributes: tuple[str, ...]
    extras: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    cents: int

    @property
    def price(self) -> str:
        """As it is shown, e.g. ``$19.89``."""
        return f"${self.cents // 100}.{self.cents % 100:02}"

    @property
    def description(self) -> str:
        """The text of its description page."""
        return f"{self.title}. This {self.kind} is {', '.join(self.attributes)}."

    @property
    def features(self) -> list[str]:
        """The pieces of its features page."""
        return [said.capitalize() for said in (*self.attributes, *self.extras)]


class Goal(msgspec.Struct, frozen=True, array_like=True):
    """A task: ``asin`` is one product that has all that is asked for, at ``cap_cents`` or less."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: dict[str, str]
    cap_cents: int


class Source(msgspec.Struct, frozen=True):
    """The shipped file; ``kinds`` has the category of each kind, from the department down to the kind itself."""

    source: str
    kinds: dict[str, tuple[str, str, str]]
    products: tuple[Product, ...]
    goals: tuple[Goal, ...]


class Catalogue:
    """The products and the goals in task order; nothing changes once it is made."""

    def __init__(self, source: Source) -> None:
        """Arrange ``source``."""
        self.products: Sequence[Product] = source.products
        self.goals: Sequence[Goal] = source.goals
        self.by_asin: Mapping[str, Product] = {product.asin: product for product in source.products}
        self._categories = {kind: frozenset(levels) for kind, levels in source.kinds.items()}

    def shared_levels(self, one: Product, other: Product) -> int:
        """How many levels of their categories two products have in common, in any order."""
        return len(self._categories[one.kind] & self._categories[other.kind])


@cache
def shipped_catalogue() -> Catalogue:
    """The catalogue of ``data/webshop/catalogue.json``, read once per process."""
    text = shipped("data", "webshop", "catalogue.json").read_bytes()
    return Catalogue(msgspec.json.decode(text, type=Source))
