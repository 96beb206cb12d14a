"""Full-text search of the shop: SQLite's FTS5 in memory, ranked by BM25 on word stems."""

from __future__ import annotations

import itertools
import re
import sqlite3
import threading
import weakref
from collections.abc import Sequence
from functools import cache

from runner.envs.webshop.catalogue import Product, shipped_catalogue

MAX_HITS = 50
MAX_WORDS = 64
"""How many words of a query count; more would only be slow."""

_WORD = re.compile(r"[a-z0-9]{1,40}")


class Index:
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
def shipped_index() -> Index:
    """The index of the shipped catalogue, made once per process."""
    return Index(shipped_catalogue().products)


def _text(product: Product) -> str:
    options = " ".join(value for values in product.options.values() for value in values)
    return f"{product.title} {product.description} {' '.join(product.features)} {options}"
