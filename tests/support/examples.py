"""How many examples a property test tries."""

from __future__ import annotations

import os
from typing import Final

IS_FULL: Final = os.environ.get("AGENTGYM_EXAMPLES") == "full"
"""Set by `make test-long`, which runs all property tests again."""


def examples(full: int = 100) -> int:
    """Return ``full`` in `make test-long`, else a twentieth, and 10 where that is less."""
    return full if IS_FULL else min(full, max(10, full // 20))
