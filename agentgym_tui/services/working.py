"""Work beside the drawing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from textual.dom import DOMNode


def begin(node: DOMNode, work: Callable[[], Awaitable[None]], *, group: str, exclusive: bool = False) -> None:
    """Have ``node`` do something; what never begins, as ``node`` is on its way out, leaves nothing unawaited."""
    node.run_worker(cast(Any, work), group=group, exclusive=exclusive)
