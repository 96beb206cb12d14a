"""What the shop sells, and what its customers are sent to buy."""

from __future__ import annotations

import itertools
import re
import sqlite3
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from runner.util.package_data import package_resource


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


class CatalogueFile(msgspec.Struct, frozen=True):
    """The shipped file; ``kinds`` has the category of each kind, from the department down to the kind itself."""

    source: str
    kinds: dict[str, tuple[str, str, str]]
    products: tuple[Product, ...]
    goals: tuple[Goal, ...]


class Catalogue:
    """The products and the goals in task order; nothing changes once it is made."""

    def __init__(self, source: CatalogueFile) -> None:
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
    text = package_resource("data", "webshop", "catalogue.json").read_bytes()
    return Catalogue(msgspec.json.decode(text, type=CatalogueFile))


MAX_HITS = 50


MAX_WORDS = 64
"""How many words of a query count; more would only be slow."""


_WORD = re.compile(r"[a-z0-9]{1,40}")


class SearchIndex:
    """Finds products by their words; may be used by several threads."""

    def __init__(self, products: Sequence[Product]) -> None:
        """Index all texts of ``products``, options included."""
        self._products = products
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._database.close)  # a connection left to itself is a ResourceWarning
        self._database.execute("CREATE VIRTUAL TABLE shop USING fts5(words, content='', tokenize='porter ascii')")
        self._database.executemany("INSERT INTO shop(rowid, words) VALUES (?, ?)", enumerate(map(_text, products)))

    def find(self, keywords: str) -> list[Product]:
        """The best ``MAX_HITS`` products that have any of the words; equally good ones as in the catalogue."""
        words = dict.fromkeys(itertools.islice((match[0] for match in _WORD.finditer(keywords.lower())), MAX_WORDS))
        if not words:
            return []
        query = " OR ".join(f'"{word}"' for word in words)  # as strings: none of them is an operator
        with self._lock:
            rows = self._database.execute(
                "SELECT rowid FROM shop WHERE shop MATCH ? ORDER BY rank, rowid LIMIT ?", (query, MAX_HITS)
            ).fetchall()
        return [self._products[row] for (row,) in rows]


@cache
def shipped_index() -> SearchIndex:
    """The index of the shipped catalogue, made once per process."""
    return SearchIndex(shipped_catalogue().products)


def _text(product: Product) -> str:
    options = " ".join(value for values in product.options.values() for value in values)
    return f"{product.title} {product.description} {' '.join(product.features)} {options}"
