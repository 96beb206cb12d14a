from __future__ import annotations

from tests.unit.store.conftest import index, store

__all__ = ["index", "store"]
