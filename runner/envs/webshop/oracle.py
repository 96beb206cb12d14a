"""A planner that knows which product the instruction was made from."""

from __future__ import annotations

from runner.envs.webshop.visit import Visit


class WebShopOracle:
    """Searches for the kind of thing with its attributes, turns pages to the product, chooses its options and buys it.

    It only looks at the page that is shown, so it finds its way from anywhere in the shop.
    """

    def __init__(self, visit: Visit, kind: str) -> None:
        """Watch ``visit``, which the episode steps; ``kind`` is that of the product to buy."""
        self._visit = visit
        self._keywords = " ".join([*visit.goal.attributes, kind])

    def next_action(self) -> str:
        """The next search or click."""
        goal, product = self._visit.goal, self._visit.product
        return self._to_product() if product is None or product.asin != goal.asin else self._to_purchase()

    def _to_product(self) -> str:
        links, asin = self._visit.page.links, self._visit.goal.asin.lower()
        if asin in links:
            return f"click[{asin}]"
        searched = self._visit.keywords == self._keywords and self._visit.product is None
        return "click[next >]" if searched and "next >" in links else f"search[{self._keywords}]"

    def _to_purchase(self) -> str:
        if "buy now" not in self._visit.page.links:
            return "click[< prev]" if "< prev" in self._visit.page.links else f"search[{self._keywords}]"
        chosen, options = self._visit.chosen, self._visit.goal.options
        missing = (value for name, value in options.items() if chosen.get(name) != value)
        return f"click[{next(missing, 'buy now')}]"
