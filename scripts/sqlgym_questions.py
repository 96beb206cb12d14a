"""Question templates of SQLGym: each template yields questions about a database, with gold queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from scripts.sqlgym_domains import Domain, Table

YEARS = (2021, 2022, 2023, 2024)


class Question(NamedTuple):
    """A question, its gold query, and whether the wording implies a single result row."""

    text: str
    gold: str
    single: bool = False


Draw: TypeAlias = Callable[[int], int]
"""Function that draws an integer from 0 (included) to its argument (excluded)."""


class Templates:
    """Question templates for one database.

    Args:
        domain: the database.
        names: table -> names of its rows.
        draw: random source of the values, names and thresholds in the questions.
    """

    def __init__(self, domain: Domain, names: dict[str, list[str]], draw: Draw) -> None:
        self._place, self._first, self._second, self._fact = domain[1:]
        self._names = names
        self._draw = draw
        place, first, second, fact = self._place, self._first, self._second, self._fact
        self._join_first = f"{fact.many} AS f JOIN {first.many} AS a ON a.id = f.{first.one}_id"
        self._join_second = f"{fact.many} AS f JOIN {second.many} AS b ON b.id = f.{second.one}_id"
        self._join_place = f"{self._join_first} JOIN {place.many} AS p ON p.id = a.{place.one}_id"

    def kinds(self) -> list[Callable[[], Question]]:
        """Return one function per kind of question; each call returns a question with new random values."""
        return [
            *(self._having_value, self._totals_by_place, self._extreme, self._more_than, self._days_in_year),
            *(self._never, self._sum_of_one, self._highest_total, self._above, self._joined_names),
            *(self._groups, self._above_average, self._in_both_years, self._of_place, self._earliest),
            *(self._top_three, self._different, self._both_bounds, self._countries),
        ]

    def _one_of(self, options: tuple[str, ...] | list[str]) -> str:
        return options[self._draw(len(options))]

    def _table(self) -> Table:
        return (self._place, self._first, self._second)[self._draw(3)]

    def _person(self) -> Table:
        return (self._first, self._second)[self._draw(2)]

    def _year(self) -> int:
        return YEARS[self._draw(len(YEARS))]

    def _threshold(self, low: int, high: int) -> int:
        return low + (high - low) * (3 + self._draw(5)) // 10

    def _having_value(self) -> Question:
        table = self._person()
        value = self._one_of(table.choice.values)
        return Question(
            f"How many {table.many} are there whose {words(table.choice.name)} is {value}?",
            f"SELECT count(*) FROM {table.many} WHERE {table.choice.name} = {quoted(value)}",
        )

    def _above(self) -> Question:
        table = self._table()
        limit = self._threshold(table.whole.low, table.whole.high)
        return Question(
            f"Which {table.many} have {words(table.whole.name)} above {limit}? Give their names.",
            f"SELECT name FROM {table.many} WHERE {table.whole.name} > {limit}",
        )

    def _extreme(self) -> Question:
        table = self._table()
        word, function = (("highest", "max"), ("lowest", "min"))[self._draw(2)]
        column = table.whole.name
        return Question(
            f"Which {table.one} has the {word} {words(column)}? Give the name and the {words(column)}.",
            f"SELECT name, {column} FROM {table.many} WHERE {column} = (SELECT {function}({column}) FROM {table.many})",
            single=True,
        )

    def _groups(self) -> Question:
        table = self._person()
        column = table.choice.name
        return Question(
            f"How many {table.many} are there for each {words(column)}? Give the {words(column)} and the number.",
            f"SELECT {column}, count(*) FROM {table.many} GROUP BY {column}",
        )

    def _sum_of_one(self) -> Question:
        money, name = self._fact.money.name, self._one_of(self._names[self._first.many])
        return Question(
            f"What is the total {words(money)} over all {self._fact.many} of the {self._first.one} named {name}? "
            "Give 0 where there are none.",
            f"SELECT coalesce(sum(f.{money}), 0) FROM {self._join_first} WHERE a.name = {quoted(name)}",
        )

    def _more_than(self) -> Question:
        table, alias, joined = self._side()
        limit = self._fact.n_rows // table.n_rows + 1 + self._draw(4)
        return Question(
            f"Which {table.many} have more than {limit} {self._fact.many}? Give their names.",
            f"SELECT {alias}.name FROM {joined} GROUP BY {alias}.id HAVING count(*) > {limit}",
        )

    def _side(self) -> tuple[Table, str, str]:
        return ((self._first, "a", self._join_first), (self._second, "b", self._join_second))[self._draw(2)]

    def _never(self) -> Question:
        table, year = self._person(), self._year()
        when, condition = ((" at all", ""), (f" with a {self._fact.day} in {year}", f" WHERE {self._within(year)}"))[
            self._draw(2)
        ]
        return Question(
            f"Which {table.many} have no {self._fact.one}{when}? Give their names.",
            f"SELECT name FROM {table.many} WHERE id NOT IN (SELECT {table.one}_id FROM {self._fact.many}{condition})",
        )

    def _within(self, year: int, alias: str = "") -> str:
        return f"{alias}{self._fact.day} BETWEEN '{year}-01-01' AND '{year}-12-31'"

    def _days_in_year(self) -> Question:
        year = self._year()
        return Question(
            f"How many {self._fact.many} have a {self._fact.day} in the year {year}?",
            f"SELECT count(*) FROM {self._fact.many} WHERE {self._within(year)}",
        )

    def _joined_names(self) -> Question:
        second, value = self._second, self._one_of(self._second.choice.values)
        limit = self._fact.whole.high - (self._fact.whole.high - self._fact.whole.low) // 10
        return Question(
            f"Which {self._first.many} have {self._fact.many} with {words(self._fact.whole.name)} above {limit} "
            f"and with a {second.one} whose {words(second.choice.name)} is {value}? Give their names.",
            f"SELECT DISTINCT a.name FROM {self._join_first} JOIN {second.many} AS b ON b.id = f.{second.one}_id "
            f"WHERE b.{second.choice.name} = {quoted(value)} AND f.{self._fact.whole.name} > {limit}",
        )

    def _highest_total(self) -> Question:
        table, alias, joined = self._side()
        money = self._fact.money.name
        return Question(
            f"Which {table.one} has the highest total {words(money)} over all {self._fact.many}? "
            "Give the name and that total.",
            f"SELECT {alias}.name, sum(f.{money}) FROM {joined} GROUP BY {alias}.id "
            f"ORDER BY sum(f.{money}) DESC LIMIT 1",
        )

    def _different(self) -> Question:
        name = self._one_of(self._names[self._second.many])
        return Question(
            f"How many different {self._first.many} occur in the {self._fact.many} of the {self._second.one} "
            f"named {name}?",
            f"SELECT count(DISTINCT f.{self._first.one}_id) FROM {self._join_second} WHERE b.name = {quoted(name)}",
        )

    def _above_average(self) -> Question:
        table = self._table()
        column = table.whole.name
        return Question(
            f"Which {table.many} have {words(column)} above the average of all {table.many}? Give their names.",
            f"SELECT name FROM {table.many} WHERE {column} > (SELECT avg({column}) FROM {table.many})",
        )

    def _of_place(self) -> Question:
        name = self._one_of(self._names[self._place.many])
        return Question(
            f"How many {self._fact.many} are there of {self._first.many} that belong to the {self._place.one} "
            f"named {name}?",
            f"SELECT count(*) FROM {self._join_place} WHERE p.name = {quoted(name)}",
        )

    def _totals_by_place(self) -> Question:
        money, year = self._fact.money.name, self._year()
        return Question(
            f"What is the total {words(money)} in {year}, by {self._fact.day}, for each {self._place.one} over the "
            f"{self._fact.many} of its {self._first.many}? Give the name of the {self._place.one} and the total, "
            f"without those that have no such {self._fact.one}.",
            f"SELECT p.name, sum(f.{money}) FROM {self._join_place} WHERE {self._within(year, 'f.')} GROUP BY p.id",
        )

    def _earliest(self) -> Question:
        value = self._one_of(self._second.choice.values)
        word, function = (("earliest", "min"), ("latest", "max"))[self._draw(2)]
        return Question(
            f"What is the {word} {self._fact.day} among the {self._fact.many} with a {self._second.one} whose "
            f"{words(self._second.choice.name)} is {value}? Give it as it is stored.",
            f"SELECT {function}(f.{self._fact.day}) FROM {self._join_second} "
            f"WHERE b.{self._second.choice.name} = {quoted(value)}",
        )

    def _in_both_years(self) -> Question:
        table, alias, joined = self._side()
        year = YEARS[self._draw(len(YEARS) - 1)]
        picked = f"SELECT {alias}.name FROM {joined} WHERE "
        return Question(
            f"Which {table.many} have {self._fact.many} both in {year} and in {year + 1}, by {self._fact.day}? "
            "Give their names.",
            f"{picked}{self._within(year, 'f.')} INTERSECT {picked}{self._within(year + 1, 'f.')}",
        )

    def _top_three(self) -> Question:
        table = self._table()
        column = table.whole.name
        return Question(
            f"Which are the 3 {table.many} with the highest {words(column)}? Give their names.",
            f"SELECT name FROM {table.many} ORDER BY {column} DESC LIMIT 3",
        )

    def _both_bounds(self) -> Question:
        whole, money = self._fact.whole, self._fact.money
        least, below = self._threshold(whole.low, whole.high), self._threshold(money.low, money.high)
        return Question(
            f"How many {self._fact.many} have {words(whole.name)} of at least {least} and {words(money.name)} "
            f"below {below}?",
            f"SELECT count(*) FROM {self._fact.many} WHERE {whole.name} >= {least} AND {money.name} < {below}",
        )

    def _countries(self) -> Question:
        value = self._one_of(self._first.choice.values)
        column = self._place.choice.name
        return Question(
            f"In which countries are the {self._place.many} that have at least one {self._first.one} whose "
            f"{words(self._first.choice.name)} is {value}? Give each {column} once.",
            f"SELECT DISTINCT p.{column} FROM {self._first.many} AS a JOIN {self._place.many} AS p "
            f"ON p.id = a.{self._place.one}_id WHERE a.{self._first.choice.name} = {quoted(value)}",
        )


def words(name: str) -> str:
    """Return a column's name in words: ``fine in cents`` for ``fine_cents``."""
    return name.replace("_cents", " in cents").replace("_", " ")


def quoted(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
