from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.envs.webshop import Catalogue, CatalogueFile, Goal, Product, purchase_reward, token_set_ratio, type_factor

GOAL_PRODUCT = Product(
    "W",
    "Ash Lamp, For Desk",
    "lamp",
    frozenset({"ash", "lamp", "desk", "home", "light", "shade", "foot", "bulb", "wire", "plug", "lid"}),
    ("energy saving", "long lasting"),
    ("easy to clean",),
    {"color": ("navy", "rose"), "size": ("large", "x-large")},
    1999,
)
GOAL = Goal("W", "a lamp", ("energy saving", "easy to clean"), {"color": "navy", "size": "large"}, 2000)
KINDS = {
    "lamp": ("Home", "Light", "Lamp"),
    "torch": ("Home", "Light", "Torch"),
    "rug": ("Home", "Floor", "Rug"),
    "hat": ("Clothing", "Head", "Hat"),
}


def product(kind: str = "hat", nouns: str = "hat", **changes: object) -> Product:
    fields = {"asin": "P", "title": "A Hat", "attributes": (), "extras": (), "options": {}, "cents": 100}
    return Product(**{**fields, "kind": kind, "nouns": frozenset(nouns.split()), **changes})  # type: ignore[arg-type]


def make_catalogue(*others: Product) -> Catalogue:
    return Catalogue(CatalogueFile("", {kind: KINDS[kind] for kind in KINDS}, (GOAL_PRODUCT, *others), (GOAL,)))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"color": "navy", "size": "large"}, 1.0),
        ({"color": "navy blue", "size": "large"}, 1.0),
        ({"color": "navy", "size": "x-large"}, 0.8),
        ({"color": "rose", "size": "large"}, 0.8),
        ({"size": "navy", "color": "large"}, 0.8),
        ({}, 0.6),
    ],
)
def test_each_matching_option_counts_and_a_size_must_match_exactly(chosen: dict[str, str], expected: float) -> None:
    assert purchase_reward(make_catalogue(), GOAL, GOAL_PRODUCT, chosen) == expected


@pytest.mark.parametrize(
    ("changes", "hits"),
    [
        ({"attributes": ("energy saving", "easy to clean")}, 3),
        ({"attributes": ("saving energy",)}, 2),
        ({"attributes": ("energy savings",)}, 2),
        ({"attributes": ("saving space",)}, 1),
        ({"title": "Energy Saving Lamp"}, 2),
        ({"extras": ("easy to clean",)}, 2),
        ({"cents": 2000}, 1),
        ({"cents": 2001}, 0),
    ],
)
def test_attributes_match_in_any_text_and_the_price_counts_up_to_its_limit(
    changes: dict[str, object], hits: int
) -> None:
    bought = product("lamp", "lamp ash desk", **changes)
    assert purchase_reward(make_catalogue(bought), GOAL, bought, {}) == hits / 5


@pytest.mark.parametrize(
    ("kind", "nouns", "factor"),
    [
        ("lamp", "lamp ash desk", 1.0),
        ("torch", "torch light shade", 1.0),
        ("hat", "ash lamp desk", 1.0),
        ("rug", "rug home wire", 0.5),
        ("hat", "ash lamp", 0.5),
        ("hat", "ash", 0.1),
        ("torch", "light", 0.1),
        ("lamp", "candle", 0.0),
        ("hat", "hat", 0.0),
    ],
)
def test_the_product_type_scales_the_reward(kind: str, nouns: str, factor: float) -> None:
    bought = product(kind, nouns, attributes=GOAL.attributes)
    assert type_factor(make_catalogue(bought), bought, GOAL_PRODUCT) == factor
    assert purchase_reward(make_catalogue(bought), GOAL, bought, {"size": "large", "color": "navy"}) == factor


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [  # values of rapidfuzz 3.14
        ("navy", "navy blue", 100.0),
        ("gluten free", "free gluten", 100.0),
        ("non stick", "nonstick", 94.12),
        ("water resistant", "heat resistant", 82.76),
        ("green apple", "forest green", 62.5),
        ("x-large", "xx-large", 93.33),
        ("abc", "xyz", 0.0),
        ("", "navy", 0.0),
    ],
)
def test_the_token_set_ratio_equals_rapidfuzz(one: str, other: str, ratio: float) -> None:
    assert round(token_set_ratio(one, other), 2) == ratio


WORD = st.text(alphabet="abcx", min_size=1, max_size=8)


def common_length(one: str, other: str) -> int:
    """Return the length of the longest common subsequence, by dynamic programming."""
    row = [0] * (len(other) + 1)
    for letter in one:
        above = row
        row = [0]
        for n, other_letter in enumerate(other):
            row.append(above[n] + 1 if other_letter == letter else max(row[n], above[n + 1]))
    return row[-1]


@given(one=WORD, other=WORD)
def test_single_words_are_compared_by_common_subsequence(one: str, other: str) -> None:
    assert token_set_ratio(one, other) == pytest.approx(200 * common_length(one, other) / (len(one) + len(other)))


@given(one=st.lists(WORD, max_size=4), other=st.lists(WORD, max_size=4))
def test_order_and_repeats_of_words_do_not_matter(one: list[str], other: list[str]) -> None:
    ratio = token_set_ratio(" ".join(one), " ".join(other))
    assert 0 <= ratio <= 100
    assert ratio == token_set_ratio(" ".join(other), " ".join(one))
    assert ratio == token_set_ratio(" ".join([*one[::-1], *one]), " ".join(other))
