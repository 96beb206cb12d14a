"""Products and goals of the shop, and its full-text search: SQLite's FTS5 in memory, ranked by BM25 on word stems."""

from __future__ import annotations

import itertools
import re
import sqlite3
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from runner.util.files import package_resource

MAX_HITS = 50
MAX_WORDS = 64
"""Maximum number of query words that are used, to bound the search time."""
_WORD = re.compile(r"[a-z0-9]{1,40}")


class Product(msgspec.Struct, frozen=True, array_like=True):
    """A product of the shop.

    Attributes:
        asin: product number of ten letters and digits.
        nouns: nouns of the title; WebShop extracts them with a language model.
        options: option name, such as ``color`` -> its values; each value occurs once per product.
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
        return f"${self.cents // 100}.{self.cents % 100:02}"

    @property
    def description(self) -> str:
        return f"{self.title}. This {self.kind} is {', '.join(self.attributes)}."

    @property
    def features(self) -> list[str]:
        return [feature.capitalize() for feature in (*self.attributes, *self.extras)]


class Goal(msgspec.Struct, frozen=True, array_like=True):
    """Goal of a task; the product ``asin`` meets all requirements and costs at most ``cap_cents``."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: dict[str, str]
    cap_cents: int


class CatalogueFile(msgspec.Struct, frozen=True):
    """Content of the shipped ``catalogue.json``; ``kinds`` maps a kind to its category levels, department first."""

    source: str
    kinds: dict[str, tuple[str, str, str]]
    products: tuple[Product, ...]
    goals: tuple[Goal, ...]


class Catalogue:
    def __init__(self, source: CatalogueFile) -> None:
        self.products: Sequence[Product] = source.products
        self.goals: Sequence[Goal] = source.goals
        self.by_asin: Mapping[str, Product] = {product.asin: product for product in source.products}
        self._categories = {kind: frozenset(levels) for kind, levels in source.kinds.items()}

    def shared_levels(self, one: Product, other: Product) -> int:
        """Return how many category levels two products share, regardless of the order of levels."""
        return len(self._categories[one.kind] & self._categories[other.kind])


_DECODER = msgspec.json.Decoder(CatalogueFile)


@cache
def shipped_catalogue() -> Catalogue:
    text = package_resource("data", "webshop", "catalogue.json").read_bytes()
    return Catalogue(_DECODER.decode(text))


class SearchIndex:
    """Thread-safe search for products by their words."""

    def __init__(self, products: Sequence[Product]) -> None:
        self._products = products
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._database.close)  # an unclosed connection causes a ResourceWarning
        self._database.execute("CREATE VIRTUAL TABLE shop USING fts5(words, content='', tokenize='porter ascii')")
        self._database.executemany("INSERT INTO shop(rowid, words) VALUES (?, ?)", enumerate(map(_text, products)))

    def find(self, keywords: str) -> list[Product]:
        """Return at most ``MAX_HITS`` products that contain a keyword, best first; ties are in catalogue order."""
        words = dict.fromkeys(itertools.islice((match[0] for match in _WORD.finditer(keywords.lower())), MAX_WORDS))
        if not words:
            return []
        query = " OR ".join(f'"{word}"' for word in words)  # quoted, so that no word is an FTS5 operator
        with self._lock:
            rows = self._database.execute(
                "SELECT rowid FROM shop WHERE shop MATCH ? ORDER BY rank, rowid LIMIT ?", (query, MAX_HITS)
            ).fetchall()
        return [self._products[row] for (row,) in rows]


@cache
def shipped_index() -> SearchIndex:
    return SearchIndex(shipped_catalogue().products)


def _text(product: Product) -> str:
    options = " ".join(value for values in product.options.values() for value in values)
    return f"{product.title} {product.description} {' '.join(product.features)} {options}"
