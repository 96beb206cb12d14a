from __future__ import annotations

from tests.unit.store.conftest import episode_store, index

__all__ = ["episode_store", "index"]
