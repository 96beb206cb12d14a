"""What a purchase is worth: how much of what was asked for it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner.envs.webshop.catalogue import Catalogue, Goal, Product

MATCH_THRESHOLD = 85.0
"""Texts whose token-set ratio is above this say the same."""


def purchase_reward(catalogue: Catalogue, goal: Goal, product: Product, chosen: Mapping[str, str]) -> float:
    """The share of attributes, options and price limit that a purchase meets, 0 to 1, times ``type_factor``.

    A colour or scent that is nearly the asked one counts, a size has to be the very one.

    Args:
        catalogue: the shop.
        goal: what was asked for.
        product: what was bought.
        chosen: the values clicked for the product's options.
    """
    texts = (product.title.lower(), product.description.lower(), " ".join(product.features).lower())
    hits = sum(_is_met(asked, product, texts) for asked in goal.attributes)
    hits += sum(_is_chosen(name, value, chosen) for name, value in goal.options.items())
    hits += product.cents <= goal.cap_cents
    n_asked = len(goal.attributes) + len(goal.options) + 1
    return type_factor(catalogue, product, catalogue.by_asin[goal.asin]) * hits / n_asked


def type_factor(catalogue: Catalogue, product: Product, wanted: Product) -> float:
    """How far a product is the kind of thing that was wanted.

    It is 1 for the same kind, two shared levels of category or a fair share of the wanted title's nouns, else 0.5. But
    a product with less than a tenth of the nouns is worth 0.1, and one with none of them nothing.
    """
    overlap = len(product.nouns & wanted.nouns) / len(wanted.nouns)
    if overlap < 0.1:
        return 0.1 if overlap else 0.0
    same = product.kind == wanted.kind or catalogue.shared_levels(product, wanted) >= 2
    return 1.0 if same or overlap > 0.2 else 0.5


def token_set_ratio(one: str, other: str) -> float:
    """How alike two texts are as sets of words, 0 to 100; 100 when one has all words of the other.

    The measure of the same name in ``rapidfuzz``: the best similarity among the shared words alone and the shared words
    followed by the rest of either text, all in alphabetical order.
    """
    ours, theirs = set(one.split()), set(other.split())
    shared = ours & theirs
    if not ours or not theirs:
        return 0.0
    if shared in (ours, theirs):
        return 100.0
    common, with_ours, with_theirs = (
        " ".join([*sorted(shared), *sorted(rest - shared)]) for rest in (shared, ours, theirs)
    )
    alone = [_similarity(common, whole) for whole in (with_ours, with_theirs)] if shared else []
    return max([_similarity(with_ours, with_theirs), *alone])


def _is_met(asked: str, product: Product, texts: Iterable[str]) -> bool:
    known = any(token_set_ratio(attribute, asked) > MATCH_THRESHOLD for attribute in product.attributes)
    return known or any(asked in text for text in texts)


def _is_chosen(name: str, asked: str, chosen: Mapping[str, str]) -> bool:
    if name == "size":
        return chosen.get(name) == asked
    return any(token_set_ratio(asked, value) > MATCH_THRESHOLD for value in chosen.values())


def _similarity(one: str, other: str) -> float:
    """Twice the length of the longest common subsequence, in per cent of both lengths."""
    return 200 * _common_length(one, other) / (len(one) + len(other))


def _common_length(one: str, other: str) -> int:
    """The length of the longest common subsequence, by Hyyrö's bits: a 0 in ``row`` is a matched place of ``one``."""
    places = {letter: sum(1 << i for i, own in enumerate(one) if own == letter) for letter in set(one)}
    full = row = (1 << len(one)) - 1
    for letter in other:
        matched = row & places.get(letter, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(one) - row.bit_count()
