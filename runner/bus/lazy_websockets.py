"""Imports nats-py without aiohttp, which takes longer than everything else and is needed only for ``ws://`` URLs."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, Final

TRANSPORT: Final = "nats.aio.transport"
"""The module of nats-py that imports ``WEBSOCKET_MODULES``."""

WEBSOCKET_MODULES: Final = ("aiohttp", "multidict")


class _ImportedOnUse:
    """Stands for a module, and imports it when its first attribute is read.

    Args:
        name: name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        value: object = getattr(importlib.import_module(self._name), attribute)
        return value


def _import(name: str, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
    if name in WEBSOCKET_MODULES:
        return _ImportedOnUse(name)
    return builtins.__import__(name, *args, **kwargs)


class _TransportLoader(SourceFileLoader):
    """Runs a module with an ``import`` statement of its own; no other import is affected, in no thread."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _TransportFinder:
    """Finds ``TRANSPORT`` and no other module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TRANSPORT:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _TransportLoader(spec.loader.name, spec.loader.path)
        return spec


def import_websockets_late() -> None:
    """Make the first import of nats-py leave out what only WebSockets need; they import it when they connect.

    Call this before any import of nats-py; without effect after it, and at a second call.
    """
    if not any(isinstance(finder, _TransportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TransportFinder())
