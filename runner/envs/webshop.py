"""WebShop: find the product that an instruction describes, choose its options and buy it.

The shop is searched in full text: by SQLite's FTS5 in memory, ranked by BM25 on word stems.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from textwrap import wrap
from typing import ClassVar, NamedTuple, TypeAlias

import msgspec

from runner.envs.base import DataLabel, EmbeddedEnvironment, Grammar, StepText, command
from runner.types import Action, CellRow, CellRun, Cells, InvalidAction, Mode, Trajectory
from runner.types.cells import CellColor
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


Link: TypeAlias = Callable[[], float | None]
"""Action that follows a link; returns the reward if the link makes a purchase, else None."""

MATCH_THRESHOLD = 85.0
"""Token-set ratio above which two texts count as equal."""
PER_PAGE = 10
SEPARATOR = " [SEP] "
_WIDTH = 76
_NO_WORD = re.compile(r"\W")
_BASE_COLORS = {"forest green": "green", "green apple": "green", "lemon zest": "lemon", "rosemary": "rose"}
"""The values in the catalogue that have the name of a basic color in them, by which WebShop replaces a value.

Source: ``normalize_color`` of WebShop's ``engine/normalize.py``, which also takes ``rosemary`` for ``rose``.
"""
_RANDOM = "<r>"
"""Keywords for which WebShop shows random products; here the same ones in every visit for the goal."""
_UNFILLED = (
    *("attrs", "None", "category", "None", "query", "None", "product category", "None", "Target", "asin", "options"),
    *("attrs", "price upper", "instuction text", "category", "product category", "query", "Goal", "None", "Reward"),
)
"""Pieces of WebShop's last page between the options and the score: labels of values that AgentGym does not fill in."""


def draw_page(visit: Visit) -> Cells:
    page, rows = visit.page, [(CellRun("WebShop", "cyan"), CellRun(f"   search: {visit.keywords or '-'}", "dim"))]
    rows += [(CellRun("Wanted: ", "dim"), CellRun(line)) for line in _lines(visit.goal.instruction)[:1]]
    rows += [(CellRun(" " * 8), CellRun(line)) for line in _lines(visit.goal.instruction)[1:4]]
    if page.has_search_bar:
        return Cells([*rows, (), (CellRun("[ type keywords …            ] [Search]", "cyan"),)])
    if visit.product is not None and "buy now" in page.links:
        return Cells([*rows, (), *_product_rows(visit, visit.product)])
    return Cells([*rows, (), *_piece_rows(visit)])


def _product_rows(visit: Visit, product: Product) -> Iterator[CellRow]:
    for line in _lines(product.title)[:3]:
        yield (CellRun(line, "yellow"),)
    yield (CellRun("Price: ", "dim"), CellRun(product.price, "green"))
    yield ()
    for name, values in product.options.items():
        yield (CellRun(f"{name}:", "dim"),)
        for value in values[:20]:
            is_chosen = visit.chosen.get(name) == value
            yield (CellRun(f"  (•) {value}", "green", "shade") if is_chosen else CellRun(f"  ( ) {value}"),)
    yield ()
    yield _buttons("Description", "Features", "Reviews", "Buy Now")
    yield _buttons("< Prev", "Back to Search")


def _piece_rows(visit: Visit) -> Iterator[CellRow]:
    links = visit.page.links
    buttons = [piece for piece in ("< Prev", "Next >", "Back to Search") if piece.lower() in links]
    skipped = {"Instruction:", visit.goal.instruction, *buttons}
    for piece in visit.page.pieces:
        if piece in skipped:
            continue
        if piece.lower() in links:
            yield (CellRun(f"[{piece}]", "cyan"),)
        else:
            color: CellColor = "green" if piece.startswith("$") else "plain"
            for line in _lines(piece)[:4]:
                yield (CellRun("  "), CellRun(line, color))
    if buttons:
        yield ()
        yield _buttons(*buttons)


def _buttons(*labels: str) -> CellRow:
    return tuple(run for label in labels for run in (CellRun(f"[{label}]", "cyan"), CellRun(" ")))


def _lines(text: str) -> list[str]:
    return wrap(text[:4096], _WIDTH) or [""]


_GRAMMAR = Grammar(
    [
        command(
            "search[{keywords}]",
            "Search the shop. Shows up to 50 products that have any of the words, ten a page, best first.",
            {"keywords": (".+", {"type": "string", "description": 'As in "vegan shampoo".'})},
            name="search",
        ),
        command(
            "click[{element}]",
            "Click something on the page: a product by its number, a value of an option, or a button such as Next >, "
            "< Prev, Back to Search, Description, Features or Reviews. Buy Now buys the product with the options "
            "clicked so far and ends the episode. A click on anything else does nothing.",
            {"element": (".+", {"type": "string", "description": "Its text on the page, in any case."})},
            name="click",
        ),
    ],
    expected="search[<keywords>] or click[<something on the page>]",
)


class WebShop(EmbeddedEnvironment):
    """Buy the product that an instruction describes; the purchase gives the reward and ends the episode.

    The reward, 0 to 1, is the share of requirements that the purchase meets; only a
    reward of 1 is a success. After an invalid text or a click on something that is not on the page, the same page is
    shown again. There is no step limit. The products are invented, so results are not WebShop scores.

    ``compat`` keeps quirks of AgentGym's server (``agentenv-webshop/agentenv_webshop/environment.py``): an action may
    have trailing text but no leading white space, steps after the end of the episode are executed, ``Next >`` is always
    shown, ``search[<r>]`` finds any products, and similar sizes count as equal.
    """

    name: ClassVar[str] = "WebShop"
    data_label = DataLabel("webshop")
    grammar = _GRAMMAR
    steps_after_end = True

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._catalogue = shipped_catalogue()
        self.n_tasks = len(self._catalogue.goals)
        self._visit: Visit
        self._is_lost = False
        """Whether the latest click was on something that is not on the page."""

    @property
    def instruction(self) -> str:
        return self._visit.goal.instruction

    @property
    def has_search_bar(self) -> bool:
        return self._visit.page.has_search_bar

    @property
    def clickables(self) -> list[str]:
        """In lower case; in compat mode options come last, and the useless button of the search bar is listed."""
        links = [*self._visit.page.links]
        if self.mode == "strict":
            return links
        product = self._visit.product
        options = {value.lower() for values in product.options.values() for value in values} if product else set()
        return [*(["search"] if self.has_search_bar else []), *sorted(links, key=lambda link: link in options)]

    def parse(self, text: str) -> Action | InvalidAction:
        if self.mode == "strict":
            return super().parse(text)
        command = _command_prefix(text)
        parsed = super().parse(command) if command else InvalidAction(text, self.grammar.expected)
        return Action(text=text, tool_calls=parsed.tool_calls) if isinstance(parsed, Action) else parsed

    def admissible_actions(self) -> list[str]:
        searches = [f"search[{self.instruction}]"] if self.has_search_bar else []
        return searches + [f"click[{element}]" for element in self._visit.page.links]

    def success(self, trajectory: Trajectory) -> bool:
        return any(step.reward >= 1 for step in trajectory.timesteps)

    def oracle(self, seed: int | None) -> WebShopOracle:
        return WebShopOracle(self._visit, self._catalogue.by_asin[self._visit.goal.asin].kind)

    def render_cells(self) -> Cells:
        return draw_page(self._visit)

    def _reset(self, task_index: int) -> str:
        goal = self._catalogue.goals[task_index]
        self._visit = Visit(self._catalogue, shipped_index(), goal, compat=self.mode == "compat")
        return self._visit.page.text

    def _step(self, text: str) -> StepText:
        parsed = self.parse(text)
        reward, self._is_lost = None, False
        if isinstance(parsed, Action):
            (call,) = parsed.tool_calls
            (argument,) = json.loads(call.arguments).values()
            target = argument.lower()
            self._is_lost = call.name == "click" and target not in self._visit.page.links
            reward = (self._visit.search if call.name == "search" else self._visit.click)(target)
        return self._visit.page.text, reward or 0.0, reward is not None

    def _has_refused(self, observation: str) -> bool:
        return self._is_lost


def _command_prefix(text: str) -> str:
    # AgentGym's server parses the first line up to its last "]", and looks for the last "[" before it
    # (agentenv-webshop/agentenv_webshop/environment.py)
    line = text.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 0, max(end - 1, 0))
    return line[: end + 1] if line[: max(start, 0)] in ("search", "click") else ""


class WebShopOracle:
    """Searches by kind and attributes, chooses and buys; each action follows from the current page alone."""

    def __init__(self, visit: Visit, kind: str) -> None:
        self._visit = visit
        self._keywords = " ".join([*visit.goal.attributes, kind])

    def next_action(self) -> str:
        goal, product = self._visit.goal, self._visit.product
        return self._to_product() if product is None or product.asin != goal.asin else self._to_purchase()

    def _to_product(self) -> str:
        links, asin = self._visit.page.links, self._visit.goal.asin.lower()
        if asin in links:
            return f"click[{asin}]"
        searched = self._visit.keywords == self._keywords and self._visit.product is None
        return "click[next >]" if searched and self._visit.has_next_page else f"search[{self._keywords}]"

    def _to_purchase(self) -> str:
        if "buy now" not in self._visit.page.links:
            return "click[< prev]" if "< prev" in self._visit.page.links else f"search[{self._keywords}]"
        chosen, options = self._visit.chosen, self._visit.goal.options
        missing = (value for name, value in options.items() if chosen.get(name) != value)
        return f"click[{next(missing, 'buy now')}]"


def purchase_reward(
    catalogue: Catalogue, goal: Goal, product: Product, chosen: Mapping[str, str], *, compat: bool = False
) -> float:
    """Return the reward of a purchase: the share of requirements that it meets, 0 to 1, times ``type_factor``.

    The requirements are the goal's attributes, options and price limit. Similar values of an option, such as a color,
    count as equal; a size must match exactly, but not with ``compat``: AgentGym's server compares all options alike.
    """
    has_option = _has_similar_option if compat else _has_option
    texts = (product.title.lower(), product.description.lower(), " ".join(product.features).lower())
    n_met = sum(_has_attribute(attribute, product, texts) for attribute in goal.attributes)
    n_met += sum(has_option(name, value, chosen) for name, value in goal.options.items())
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


def _has_similar_option(name: str, required: str, chosen: Mapping[str, str]) -> bool:
    """As AgentGym's server compares options: the words of name and value, in which ``large`` is a part of ``x-large``.

    Only the chosen values are replaced by basic colors, so that ``rosemary`` never meets a goal.
    """
    wanted = _NO_WORD.sub(" ", f"{name} {required}")
    given = (_NO_WORD.sub(" ", _BASE_COLORS.get(value, value)) for value in chosen.values())
    return any(token_set_ratio(wanted, words) > MATCH_THRESHOLD for words in given)


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


class Page(NamedTuple):
    """A page of the shop: the pieces of its text, and a mapping from lower-case labels to links."""

    pieces: Sequence[str]
    links: Mapping[str, Link]
    has_search_bar: bool = False

    @property
    def text(self) -> str:
        return SEPARATOR.join(self.pieces)


class Visit:
    """State of one task in the shop: current page, latest search and chosen options; ``compat``: as AgentGym's server.

    Attributes:
        keywords: keywords of the last search, empty after a return to the start page.
        product: product whose item or detail page is shown; None on other pages.
        chosen: option name -> value clicked for ``product``; cleared when search results are shown.
    """

    def __init__(self, catalogue: Catalogue, index: SearchIndex, goal: Goal, *, compat: bool = False) -> None:
        self.goal = goal
        self._compat = compat
        self.page: Page
        self.keywords = ""
        self.product: Product | None = None
        self.chosen: dict[str, str] = {}
        self._catalogue = catalogue
        self._index = index
        self._hits: Sequence[Product] = ()
        self._number = 1
        self._start()

    def search(self, keywords: str) -> None:
        self.keywords = keywords
        if self._compat and keywords == _RANDOM:
            self._hits = random.Random(self.goal.asin).sample(self._catalogue.products, MAX_HITS)
        else:
            self._hits = self._index.find(keywords)
        self._results(1)

    def click(self, label: str) -> float | None:
        """Follow the link with a label; return the reward of a purchase, else None. An unknown label does nothing."""
        link = self.page.links.get(label)
        return link() if link else None

    @property
    def has_next_page(self) -> bool:
        return self._number * PER_PAGE < len(self._hits)

    def _start(self) -> None:
        self.keywords, self.product, self.chosen = "", None, {}
        self.page = Page(["WebShop", "Instruction:", self.goal.instruction, "Search"], {}, has_search_bar=True)

    def _results(self, number: int) -> None:
        self._number, self.product, self.chosen = number, None, {}
        paging: dict[str, Link] = {}
        if number > 1:
            paging["< Prev"] = partial(self._results, number - 1)
        if self._compat or self.has_next_page:
            paging["Next >"] = partial(self._results, number + 1)
        shown = self._hits[(number - 1) * PER_PAGE : number * PER_PAGE]
        items = {product.asin: partial(self._item, product) for product in shown}
        pieces = [piece for product in shown for piece in (product.asin, product.title, product.price)]
        count = f"Page {number} (Total results: {len(self._hits)})"
        self._show([count, *paging, *pieces], {**paging, **items})

    def _item(self, product: Product) -> None:
        self.product = product
        options = {
            value: partial(self._choose, name, value) for name, values in product.options.items() for value in values
        }
        details = {
            "Description": partial(self._detail, product, [product.description]),
            "Features": partial(self._detail, product, product.features),
            "Reviews": partial(self._detail, product, []),
        }
        choices = [piece for name, values in product.options.items() for piece in (name, *values)]
        about = [product.title, f"Price: {product.price}", "Rating: N.A."]
        back = {"< Prev": partial(self._results, self._number)}
        self._show(
            [*back, *choices, *about, *details, "Buy Now"],
            {**back, **options, **details, "Buy Now": partial(self._buy, product)},
        )

    def _detail(self, product: Product, texts: Sequence[str]) -> None:
        back = {"< Prev": partial(self._item, product)}
        self._show([*back, *texts], back)

    def _choose(self, name: str, value: str) -> None:
        self.chosen[name] = value

    def _buy(self, product: Product) -> float:
        score = purchase_reward(self._catalogue, self.goal, product, self.chosen, compat=self._compat)
        thanks, shown = "Thank you for shopping with us!", ["Your score (min 0.0, max 1.0)", str(score)]
        if self._compat:
            options = json.dumps(self.chosen, sort_keys=True)
            bought = ["Purchased", "asin", product.asin, "options", options, *_UNFILLED]
            code = ["Your code:", "None", "(Paste it in your MTurk interface.)"]
            shown = [*code, *bought, *shown, "Reward Details", "None"]
        self.page = Page([thanks, *shown], {})
        return score

    def _show(self, pieces: Sequence[str], links: Mapping[str, Link]) -> None:
        common: dict[str, Link] = {"Back to Search": self._start}
        shown = ["Instruction:", self.goal.instruction, *common, *pieces]
        self.page = Page(shown, {label.lower(): link for label, link in {**common, **links}.items()})
