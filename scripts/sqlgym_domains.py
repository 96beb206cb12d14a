"""Plans of SQLGym's databases: invented places, people and things, not taken from any source.

Each database has four tables: ``place``, ``first``, ``second`` and ``fact``. A row of ``first`` belongs to a row of
``place``; a row of ``fact`` refers to a row of ``first`` and a row of ``second``.
"""

from __future__ import annotations

from typing import NamedTuple


class Choice(NamedTuple):
    """A text column with a few possible values."""

    name: str
    values: tuple[str, ...]


class Whole(NamedTuple):
    """An integer column; amounts of money are in cents."""

    name: str
    low: int
    high: int


class Names(NamedTuple):
    """Two lists of words whose pairs are the distinct names of a table's rows."""

    first: tuple[str, ...]
    second: tuple[str, ...]


class Table(NamedTuple):
    """A table with the columns ``id`` and ``name``; ``one`` and ``many`` are the noun for one row and for many rows."""

    one: str
    many: str
    n_rows: int
    names: Names
    choice: Choice
    whole: Whole


class Fact(NamedTuple):
    """A fact table whose rows have a day, an integer and an amount of money."""

    one: str
    many: str
    n_rows: int
    day: str
    whole: Whole
    money: Whole


class Domain(NamedTuple):
    """Plan of a database: its name and four tables."""

    name: str
    place: Table
    first: Table
    second: Table
    fact: Fact


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _choice(name: str, values: str) -> Choice:
    return Choice(name, _words(values))


def _names(first: str, second: str) -> Names:
    return Names(_words(first), _words(second))


_GIVEN = _words(
    "Ada Bruno Clara Dario Edda Felix Greta Hugo Ines Jonas Klara Leon Mira Nils Olga Paul Rosa Sven Tilda Uwe"
)
_FAMILY = _words(
    "Adler Brandt Conti Duval Eriks Fabre Gruber Hansen Iversen Jansen Keller Lindt Moreau Novak O'Dell Petri"
)
_PEOPLE = Names(_GIVEN, _FAMILY)
_TOWNS = _names("North South East West Upper Lower Old New", "Ashby Birkdale Corwen Dunmore Elwick Farley")
_COUNTRIES = ("Austria", "Denmark", "Italy", "Norway", "Portugal")
_COLOURS = ("black", "blue", "green", "red", "white", "yellow")


def _places(one: str, many: str, whole: Whole) -> Table:
    return Table(one, many, 9, _TOWNS, Choice("country", _COUNTRIES), whole)


DOMAINS = (
    Domain(
        "library",
        _places("branch", "branches", Whole("opening_year", 1950, 2015)),
        Table("member", "members", 60, _PEOPLE, _choice("card", "adult child senior student"), Whole("age", 8, 90)),
        Table(
            "book",
            "books",
            48,
            _names(
                "Silent Golden Hidden Broken Distant Crimson Hollow Winter",
                "Harbour Garden Mirror Forest River Letter Summer Tower",
            ),
            _choice("genre", "biography crime fantasy history poetry travel"),
            Whole("pages", 80, 900),
        ),
        Fact("loan", "loans", 560, "lent_on", Whole("days", 1, 60), Whole("fine_cents", 0, 2_400)),
    ),
    Domain(
        "clinic",
        _places("ward", "wards", Whole("beds", 8, 60)),
        Table(
            "doctor",
            "doctors",
            36,
            _PEOPLE,
            _choice("specialty", "cardiology neurology paediatrics surgery"),
            Whole("experience_years", 1, 40),
        ),
        Table("patient", "patients", 72, _PEOPLE, _choice("blood_group", "A AB B O"), Whole("birth_year", 1930, 2015)),
        Fact("visit", "visits", 550, "visited_on", Whole("minutes", 5, 120), Whole("fee_cents", 1_500, 42_000)),
    ),
    Domain(
        "shop",
        _places("store", "stores", Whole("floor_area", 90, 2_000)),
        Table("customer", "customers", 64, _PEOPLE, _choice("tier", "basic gold silver"), Whole("points", 0, 5_000)),
        Table(
            "product",
            "products",
            45,
            _names("Oak Steel Linen Copper Glass Cotton Walnut Marble", "Chair Lamp Table Shelf Bowl Clock Stool Vase"),
            Choice("colour", _COLOURS),
            Whole("weight_grams", 150, 22_000),
        ),
        Fact("order", "orders", 545, "ordered_on", Whole("quantity", 1, 12), Whole("total_cents", 900, 180_000)),
    ),
    Domain(
        "school",
        _places("campus", "campuses", Whole("classrooms", 6, 48)),
        Table("student", "students", 70, _PEOPLE, _choice("house", "Eagle Fox Otter Wolf"), Whole("grade", 5, 12)),
        Table(
            "course",
            "courses",
            32,
            _names("Basic Applied Advanced Modern", "Algebra Biology Chemistry Drawing French Geography Music Physics"),
            _choice("term", "autumn spring summer"),
            Whole("hours", 10, 90),
        ),
        Fact("exam", "exams", 550, "held_on", Whole("score", 1, 100), Whole("fee_cents", 0, 6_000)),
    ),
    Domain(
        "cinema",
        _places("town", "towns", Whole("inhabitants", 2_000, 90_000)),
        Table(
            "hall",
            "halls",
            40,
            _names("Grand Little Royal Star Lux", "Palace Studio Arena Corner Vista Lantern Rex Odeon"),
            _choice("sound", "analogue digital surround"),
            Whole("seats", 40, 600),
        ),
        Table(
            "film",
            "films",
            54,
            _names(
                "Midnight Electric Velvet Paper Burning Lonely Secret Northern",
                "Train Island Orchestra Dance Detective Circus Winter Voyage",
            ),
            _choice("genre", "animation comedy documentary drama thriller"),
            Whole("length_minutes", 70, 210),
        ),
        Fact("screening", "screenings", 560, "shown_on", Whole("tickets", 0, 400), Whole("takings_cents", 0, 480_000)),
    ),
    Domain(
        "railway",
        _places("depot", "depots", Whole("tracks", 2, 30)),
        Table(
            "train",
            "trains",
            44,
            _names("Swift Iron Blue Silver Amber Rapid", "Arrow Comet Falcon Heron Meteor Pike Swallow Thunder"),
            _choice("fuel", "battery diesel electric"),
            Whole("seats", 60, 800),
        ),
        Table("driver", "drivers", 52, _PEOPLE, _choice("licence", "A1 B1 B2"), Whole("birth_year", 1958, 2002)),
        Fact(
            "trip", "trips", 555, "departed_on", Whole("delay_minutes", 0, 95), Whole("revenue_cents", 10_000, 900_000)
        ),
    ),
    Domain(
        "farm",
        _places("valley", "valleys", Whole("altitude", 20, 1_400)),
        Table(
            "field",
            "fields",
            50,
            _names(
                "Long Round Stony Sunny Windy Mill Church", "Acre Meadow Slope Hollow Terrace Paddock Croft Furlong"
            ),
            _choice("soil", "clay loam peat sand"),
            Whole("area", 4, 260),
        ),
        Table(
            "crop",
            "crops",
            40,
            _names("Early Late Red White Giant Dwarf", "Barley Bean Beet Carrot Maize Oat Potato Rye"),
            _choice("season", "autumn spring summer winter"),
            Whole("growing_days", 45, 240),
        ),
        Fact("harvest", "harvests", 545, "reaped_on", Whole("sacks", 1, 180), Whole("revenue_cents", 2_000, 640_000)),
    ),
    Domain(
        "workshop",
        _places("garage", "garages", Whole("lifts", 1, 14)),
        Table(
            "mechanic",
            "mechanics",
            42,
            _PEOPLE,
            _choice("training", "apprentice engineer master"),
            Whole("hourly_cents", 2_200, 9_500),
        ),
        Table(
            "car",
            "cars",
            60,
            _names("Aero Bolt Civet Delta Ember Fjord Gale Helix", "Coupe Estate Roadster Sedan Sport Van Wagon Mini"),
            Choice("colour", _COLOURS),
            Whole("built_year", 1988, 2022),
        ),
        Fact("repair", "repairs", 550, "repaired_on", Whole("hours", 1, 40), Whole("price_cents", 3_000, 520_000)),
    ),
)
