"""Reward of a purchase: the share of the goal's requirements that it meets.

The formula is WebShop's, as used by AgentGym's ``agentenv-webshop`` (``web_agent_site/engine/goal.py`` of WebShop).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner.envs.webshop.catalogue import Catalogue, Goal, Product

MATCH_THRESHOLD = 85.0
"""Token-set ratio above which two texts count as equal."""


def purchase_reward(catalogue: Catalogue, goal: Goal, product: Product, chosen: Mapping[str, str]) -> float:
    """Return the reward of a purchase: the share of requirements that it meets, 0 to 1, times ``type_factor``.

    The requirements are the goal's attributes, options and price limit. Similar values of an option, such as a color,
    count as equal; a size must match exactly.

    Args:
        catalogue: the shop's catalogue.
        goal: the requirements.
        product: the purchased product.
        chosen: option name -> chosen value.
    """
    texts = (product.title.lower(), product.description.lower(), " ".join(product.features).lower())
    n_met = sum(_has_attribute(attribute, product, texts) for attribute in goal.attributes)
    n_met += sum(_has_option(name, value, chosen) for name, value in goal.options.items())
    n_met += product.cents <= goal.cap_cents
    n_requirements = len(goal.attributes) + len(goal.options) + 1
    return type_factor(catalogue, product, catalogue.by_asin[goal.asin]) * n_met / n_requirements


def type_factor(catalogue: Catalogue, product: Product, target: Product) -> float:
    """Return how well the type of a product matches the type of the goal's product, 0 to 1.

    The factor is 0 if the product's title has no noun of the target's title, and 0.1 if it has less than 10% of them.
    Otherwise, it is 1 if the products have the same kind, share two category levels or share more than 20% of the
    nouns, else 0.5.
    """
    overlap = len(product.nouns & target.nouns) / len(target.nouns)
    if overlap < 0.1:
        return 0.1 if overlap else 0.0
    same_type = product.kind == target.kind or catalogue.shared_levels(product, target) >= 2
    return 1.0 if same_type or overlap > 0.2 else 0.5


def token_set_ratio(first: str, second: str) -> float:
    """Return the similarity of two texts as sets of words, 0 to 100; 100 if one contains all words of the other.

    As in ``rapidfuzz``, the result is the best similarity of any two of three strings: the shared words, and for each
    text the shared words followed by the text's other words. The words are in alphabetical order.
    """
    first_words, second_words = set(first.split()), set(second.split())
    shared = first_words & second_words
    if not first_words or not second_words:
        return 0.0
    if shared in (first_words, second_words):
        return 100.0
    common, with_first, with_second = (
        " ".join([*sorted(shared), *sorted(words - shared)]) for words in (shared, first_words, second_words)
    )
    to_common = [_similarity(common, text) for text in (with_first, with_second)] if shared else []
    return max([_similarity(with_first, with_second), *to_common])


def _has_attribute(required: str, product: Product, texts: Iterable[str]) -> bool:
    is_listed = any(token_set_ratio(attribute, required) > MATCH_THRESHOLD for attribute in product.attributes)
    return is_listed or any(required in text for text in texts)


def _has_option(name: str, required: str, chosen: Mapping[str, str]) -> bool:
    if name == "size":
        return chosen.get(name) == required
    return any(token_set_ratio(required, value) > MATCH_THRESHOLD for value in chosen.values())


def _similarity(first: str, second: str) -> float:
    # twice the length of the longest common subsequence, in percent of both lengths
    return 200 * _common_length(first, second) / (len(first) + len(second))


def _common_length(first: str, second: str) -> int:
    """Return the length of the longest common subsequence, by Hyyrö's bit-parallel algorithm.

    A 0 bit in ``row`` marks a matched position of ``first``.
    """
    positions = {letter: sum(1 << i for i, other in enumerate(first) if other == letter) for letter in set(first)}
    full = row = (1 << len(first)) - 1
    for letter in second:
        matched = row & positions.get(letter, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(first) - row.bit_count()
