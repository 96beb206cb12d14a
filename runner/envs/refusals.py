"""What the replies of environments look like that refuse an action; the same for ours and for AgentGym's servers.

The texts are those of AgentGym's environments; the module of each embedded environment names their source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_REFUSALS: Final[Mapping[str, re.Pattern[str]]] = {
    "BabyAI": re.compile(
        r"The action is not recognized\. |You cannot |There is a barrier in front of you, you can't move forward\."
    ),
    "TextCraft": re.compile("Could not |Wrong item format: "),
    "Wordle": re.compile("invalid word"),
    "ALFWorld": re.compile(r"Nothing happens\."),
    "SQLGym": re.compile(r"(?!\[)"),  # rows are shown as a list in Python; anything else is the error of the query
    "SciWorld": re.compile(r"No known action matches that input\."),
}
"""Environment -> beginning of the observations that refuse an action. A maze refuses no move."""

_SEPARATOR: Final = " [SEP] "
_CLICK: Final = "click["


def is_refusal(env: str, observation: str) -> bool:
    """Return whether an observation refuses the action before it, in an environment whose texts show that."""
    pattern = _REFUSALS.get(env)
    return pattern is not None and pattern.match(observation) is not None


def is_lost_click(command: str, page: str, next_page: str) -> bool:
    """Return whether a click in WebShop hit nothing, by the texts of the page that was clicked and of the next one.

    Of other clicks, only one on a value of an option shows the same page again. Values and names of options look alike
    in the text, so a click on a name counts as one on a value, except on the first name and those in the instruction.
    """
    start = command.find(_CLICK)
    if start < 0 or page != next_page:
        return False
    label = command[start + len(_CLICK) :].rpartition("]")[0].lower()
    pieces = page.lower().split(_SEPARATOR.lower())
    if "< prev" not in pieces:
        return True
    shown = pieces[pieces.index("< prev") + 2 :]
    prices = [index for index, piece in enumerate(shown) if piece.startswith("price: ")]
    instruction = pieces[1] if len(pieces) > 1 else ""
    return not prices or label not in shown[: max(prices[0] - 1, 0)] or f" {label}: " in instruction
