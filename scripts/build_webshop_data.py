"""Build ``data/webshop/catalogue.json``: 1,000 invented products and a shopping goal for each.

    python scripts/build_webshop_data.py

The script reads no input. Choices are made by digests of names and numbers instead of a random generator, so the
output is identical with every Python version. The license notice of the catalogue is ``data/webshop/LICENSE``.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

TARGET = Path(__file__).resolve().parent.parent / "data" / "webshop" / "catalogue.json"
SOURCE = "invented by scripts/build_webshop_data.py"
PER_KIND = 20

Product: TypeAlias = tuple[str, str, str, list[str], list[str], list[str], dict[str, list[str]], int]
"""ASIN, title, kind, nouns of the title, attributes, further features, options with their values, price in cents."""
Goal: TypeAlias = tuple[str, str, list[str], dict[str, str], int]
"""ASIN of a matching product, instruction, attributes, options, maximum price in cents."""
_T = TypeVar("_T")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


class Group(NamedTuple):
    """A group of products in a department: kinds of products with attributes, options, uses and prices."""

    category: tuple[str, str]
    kinds: tuple[str, ...]
    """Countable nouns in the singular."""
    attributes: tuple[str, ...]
    """Adjectives that can stand before or after a noun."""
    options: Mapping[str, tuple[str, ...]]
    uses: tuple[str, ...]
    dollars: tuple[int, int]


_COLORS = _words("black, white, navy, forest green, burgundy, charcoal, beige, teal, mustard, rose")
_BOTTLES = _words("2 fl oz, 4 fl oz, 8 fl oz, 16 fl oz, 32 fl oz")
_CLOTHES = _words("x-small, small, medium, large, x-large, xx-large")
_FABRIC = "machine washable, quick drying, wrinkle resistant, moisture wicking, breathable, fade resistant, lightweight"
_GADGET = "water resistant, fast charging, shock proof, travel ready, lightweight, energy saving, noise reducing"
_COSMETIC = "cruelty free, paraben free, alcohol free, vegan, dermatologist tested, long lasting, plant based"

GROUPS = (
    Group(
        ("Beauty & Personal Care", "Hair Care"),
        _words("shampoo, conditioner, hair mask, scalp oil, hair spray"),
        _words(f"{_COSMETIC}, sulfate free, color safe, deep moisturizing, volume boosting"),
        {"scent": _words("lavender, rosemary, coconut, green apple, unscented"), "size": _BOTTLES},
        _words("family, salon, travel, gym, summer, winter"),
        (6, 45),
    ),
    Group(
        ("Beauty & Personal Care", "Skin Care"),
        _words("face cream, face serum, body lotion, sun lotion, lip balm"),
        _words(f"{_COSMETIC}, oil free, fast absorbing, anti aging, fragrance free"),
        {"skin type": _words("dry skin, oily skin, mature skin, sensitive skin"), "size": _BOTTLES},
        _words("family, spa, travel, morning, night, winter"),
        (8, 70),
    ),
    Group(
        ("Clothing, Shoes & Jewelry", "Men"),
        _words("dress shirt, polo shirt, sweatshirt, rain jacket, cardigan"),
        _words(f"{_FABRIC}, slim fit, relaxed fit, long sleeved, tag free"),
        {"color": _COLORS, "size": _CLOTHES},
        _words("office, weekend, hiking, golf, travel, winter"),
        (15, 90),
    ),
    Group(
        ("Clothing, Shoes & Jewelry", "Women"),
        _words("midi dress, blouse, pencil skirt, trench coat, sweater vest"),
        _words(f"{_FABRIC}, high waisted, loose fit, hand made, fully lined"),
        {"color": _COLORS, "size": _CLOTHES},
        _words("office, weekend, party, wedding, travel, summer"),
        (18, 110),
    ),
    Group(
        ("Home & Kitchen", "Bedding"),
        _words("duvet cover, bed sheet, pillow case, throw blanket, mattress topper"),
        _words(f"{_FABRIC}, hypoallergenic, super soft, extra thick, double brushed"),
        {"color": _COLORS, "size": _words("twin, full, queen, king, california king")},
        _words("bedroom, guest, dorm, nursery, camping, winter"),
        (14, 130),
    ),
    Group(
        ("Home & Kitchen", "Kitchen & Dining"),
        _words("frying pan, mixing bowl, chef knife, water bottle, cutting board"),
        _words("dishwasher safe, bpa free, non stick, rust proof, heat resistant, leak proof, stackable, oven safe"),
        {"color": _COLORS, "size": _words("single piece, set of two, set of four, set of six")},
        _words("family, baking, camping, office, party, picnic"),
        (9, 85),
    ),
    Group(
        ("Electronics", "Audio"),
        _words("headset, bluetooth speaker, soundbar, turntable, radio"),
        _words(f"{_GADGET}, high fidelity, low latency, hands free, bass heavy"),
        {"color": _COLORS, "plug": _words("american, british, european, usb-c")},
        _words("gaming, office, party, travel, kitchen, studio"),
        (20, 250),
    ),
    Group(
        ("Electronics", "Phone Accessories"),
        _words("phone case, power bank, charging cable, car mount, selfie stick"),
        _words(f"{_GADGET}, scratch resistant, tangle free, slim profile, heavy duty"),
        {"color": _COLORS, "size": _words("3 feet, 6 feet, 10 feet, 15 feet")},
        _words("office, car, travel, hiking, school, desk"),
        (5, 60),
    ),
    Group(
        ("Grocery & Gourmet Food", "Snacks"),
        _words("trail mix, granola bar, chocolate bar, popcorn bag, almond mix"),
        _words("gluten free, non gmo, low sugar, high protein, dairy free, keto friendly, fair trade, low sodium"),
        {
            "flavor": _words("sea salt, honey, cinnamon, smoky barbecue, cocoa, lemon zest"),
            "size": _words("pack of 1, pack of 6, pack of 12, pack of 24"),
        },
        _words("office, school, hiking, party, breakfast, family"),
        (4, 50),
    ),
    Group(
        ("Office Products", "Furniture"),
        _words("bookcase, writing desk, swivel chair, filing cabinet, bar stool"),
        _words("tool free, height adjustable, space saving, scratch resistant, heavy duty, stackable, foldable"),
        {"color": _COLORS, "size": _words("20 inches, 30 inches, 40 inches, 55 inches")},
        _words("bedroom, studio, library, school, reception, workshop"),
        (35, 480),
    ),
)
_BRANDS = tuple(map("".join, itertools.product(("Nor", "Vel", "Quin", "Tam", "Ash", "Bel"), ("vane", "dora", "mark"))))
_LINES = _words("Juniper, Harbor, Meridian, Cascade, Willow, Summit, Ember, Orchard, Lantern, Prairie, Drift, Beacon")
_OPENINGS = ("i am looking for {}", "i need {}", "find me {}", "i would like to buy {}", "can you get me {}")


def derive() -> dict[str, Any]:
    """Return the catalogue: the kinds, their products, and one goal per product in task order."""
    kinds = {kind: (*group.category, kind.title()) for group in GROUPS for kind in group.kinds}
    products = [_product(group, kind, number) for group in GROUPS for kind in group.kinds for number in range(PER_KIND)]
    if len({product[0] for product in products}) < len(products):
        raise ValueError("two products have the same ASIN")
    goals = [_goal(product) for product in sorted(products, key=lambda product: _digest("goals", product[0]))]
    return {"source": SOURCE, "kinds": kinds, "products": products, "goals": goals}


def render(catalogue: Mapping[str, Any]) -> str:
    """Return the catalogue as JSON, with one line per kind, product and goal."""
    kinds = ",\n".join(f"{_json(name)}: {_json(category)}" for name, category in catalogue["kinds"].items())
    products, goals = (",\n".join(map(_json, catalogue[part])) for part in ("products", "goals"))
    head = f'"source": {_json(catalogue["source"])},\n"kinds": {{\n{kinds}\n}}'
    return f'{{\n{head},\n"products": [\n{products}\n],\n"goals": [\n{goals}\n]\n}}\n'


def _product(group: Group, kind: str, number: int) -> Product:
    about = f"{kind} {number}"
    brand, line = _pick(_BRANDS, about, "brand"), _pick(_LINES, about, "line")
    attributes = _sample(group.attributes, 4 + _number(about, "extras") % 3, about, "attributes")
    uses = _sample(group.uses, 2, about, "uses")
    options = {
        name: sorted(_sample(values, 2 + _number(about, name) % 3, about, name), key=values.index)
        for name, values in group.options.items()
        if _number(about, "has", name) % 8
    }
    title = f"{brand} {line} {attributes[0]} {kind}, {attributes[1]}, for {uses[0]} and {uses[1]}".title()
    nouns = [*dict.fromkeys(word.lower() for word in (brand, line, *kind.split(), *uses))]
    low, high = group.dollars
    cents = 100 * (low + _number(about, "dollars") % (high - low)) - _pick((1, 5, 11, 51), about, "cents")
    return _asin(about), title, kind, nouns, attributes[:-1], attributes[-1:], options, cents


def _goal(product: Product) -> Goal:
    asin, _, kind, _, product_attributes, _, choices, cents = product
    attributes = _sample(product_attributes, 1 + _number(asin, "asked") % 3, asin, "asked")
    options = {name: _pick(values, asin, "wanted", name) for name, values in choices.items()}
    dollars = 10 * (cents // 1000 + 1 + _number(asin, "cap") % 3)
    first = _number(asin, "order") % 2
    thing = f"{', '.join(attributes)} {kind}" if first else f"{kind} that is {_listed(attributes)}"
    opening = _pick(_OPENINGS, asin, "opening").format(f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}")
    wanted = ", and ".join(f"{name}: {value}" for name, value in options.items())
    instruction = f"{opening}{wanted and f' with {wanted}'}, and price lower than {dollars:.2f} dollars"
    return asin, instruction, attributes, options, 100 * dollars


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _asin(about: str) -> str:
    # ten letters and digits, as in the original shop
    letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "B0" + "".join(letters[byte % len(letters)] for byte in _digest(about, "asin")[:8])


def _digest(*about: str) -> bytes:
    return hashlib.sha256("\0".join(about).encode()).digest()


def _number(*about: str) -> int:
    return int.from_bytes(_digest(*about)[:8], "big")


def _pick(values: Sequence[_T], *about: str) -> _T:
    return values[_number(*about) % len(values)]


def _sample(values: Sequence[str], count: int, *about: str) -> list[str]:
    return sorted(values, key=lambda value: _digest(*about, value))[:count]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Write the catalogue."""
    parser = argparse.ArgumentParser(description="Invent WebShop's catalogue.")
    parser.add_argument("--output", type=Path, default=TARGET)
    parser.parse_args().output.write_text(render(derive()), "utf-8")


if __name__ == "__main__":
    main()
