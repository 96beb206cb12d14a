from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path

import pytest

from runner.envs.webshop import (
    MATCH_THRESHOLD,
    MAX_HITS,
    Product,
    SearchIndex,
    shipped_catalogue,
    shipped_index,
    token_set_ratio,
)
from runner.util.files import package_resource
from scripts.build_webshop_data import derive, main, render

BUTTONS = {"back to search", "next >", "< prev", "description", "features", "reviews", "buy now", "search"}


def values(product: Product) -> list[str]:
    return [value for values in product.options.values() for value in values]


def test_the_shipped_catalogue_equals_the_scripts_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = package_resource("data", "webshop", "catalogue.json").read_text("utf-8")
    assert render(derive()) == content
    monkeypatch.setattr(sys, "argv", ["build", "--output", str(tmp_path / "catalogue.json")])
    main()
    assert (tmp_path / "catalogue.json").read_text("utf-8") == content


def test_the_shipped_catalogue_has_the_documented_size_and_its_notice() -> None:
    catalogue = shipped_catalogue()
    assert (len(catalogue.products), len(catalogue.by_asin), len(catalogue.goals)) == (1000, 1000, 1000)
    assert len(package_resource("data", "webshop", "catalogue.json").read_bytes()) < 600_000
    assert len({catalogue.by_asin[goal.asin].kind for goal in catalogue.goals[:20]}) > 12
    assert "are invented" in package_resource("data", "webshop", "LICENSE").read_text("utf-8")


def test_every_goal_is_affordable_and_matches_its_instruction() -> None:
    catalogue = shipped_catalogue()
    assert {goal.asin for goal in catalogue.goals} == catalogue.by_asin.keys()
    assert len({goal.instruction for goal in catalogue.goals}) == 1000
    for goal in catalogue.goals:
        product = catalogue.by_asin[goal.asin]
        assert 0 < product.cents < goal.cap_cents
        assert goal.attributes
        assert {*goal.attributes} <= {*product.attributes}
        assert goal.options.keys() == product.options.keys()
        assert all(value in product.options[name] for name, value in goal.options.items())
        for phrase in (*goal.attributes, *goal.options.values(), product.kind, f"{goal.cap_cents / 100:.2f} dollars"):
            assert phrase in goal.instruction


def test_links_of_a_page_have_distinct_labels() -> None:
    for product in shipped_catalogue().products:
        names = values(product)
        assert len({*names, *BUTTONS}) == len(names) + len(BUTTONS)
        assert all(name == name.lower() for name in names)
        assert product.asin.isascii()
        assert len(product.asin) == 10
        assert not any(bracket in text for text in (product.title, *names) for bracket in "[]\n")


def test_no_option_value_matches_another_one() -> None:
    distinct = {
        (name, value)
        for product in shipped_catalogue().products
        for name, values in product.options.items()
        for value in values
    }
    named = sorted(value for name, value in distinct if name != "size")
    assert not [pair for pair in itertools.combinations(named, 2) if token_set_ratio(*pair) > MATCH_THRESHOLD]


def test_prices_and_texts_of_a_product() -> None:
    product = Product("B0", "A Cup", "cup", frozenset({"cup"}), ("light", "safe"), ("blue",), {}, 1205)
    assert product.price == "$12.05"
    assert product.description == "A Cup. This cup is light, safe."
    assert product.features == ["Light", "Safe", "Blue"]


def test_the_best_match_comes_first_and_ties_keep_the_catalogue_order() -> None:
    words = ["red cup", "blue cup", "blue cup holder", "blue", "red cup"]
    products = [
        Product(str(n), title, "", frozenset(), (), (), {"size": ("wide",)}, 100) for n, title in enumerate(words)
    ]
    index = SearchIndex(products)
    assert [product.asin for product in index.find("red")] == ["0", "4"]
    assert index.find("blue cups")[0].asin == "1"
    assert len(index.find("wide")) == 5
    assert index.find("narrow") == []


def test_search_ranks_an_exact_title_first_and_returns_at_most_fifty_products() -> None:
    for product in shipped_catalogue().products[::40]:
        assert shipped_index().find(product.title)[0] is product
        hits = shipped_index().find(product.kind)
        assert any(hit is product for hit in hits)
        assert len(hits) <= MAX_HITS


def test_threads_share_an_index() -> None:
    expected = [product.asin for product in shipped_index().find("vegan shampoo")]
    results: list[list[str]] = []

    def search_repeatedly() -> None:
        results.extend([product.asin for product in shipped_index().find("vegan shampoo")] for _ in range(20))

    threads = [threading.Thread(target=search_repeatedly) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [expected] * 80
