"""Picture of a page of the shop: its texts, its links as buttons, and the chosen options."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from runner.envs.webshop.catalogue import Product
from runner.envs.webshop.visit import Visit
from runner.types import CellRow, CellRun, Cells
from runner.types.cells import CellColor

_WIDTH = 76


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
