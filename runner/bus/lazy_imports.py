"""Imports nats-py without the modules that it hardly uses, which take longer than everything else.

These are aiohttp, needed only for ``ws://`` URLs, the parser of e-mails, needed only for the headers of single messages
of a stream, and ``importlib.metadata``, which only returns the version of nats-py.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from runner.util.installed import installed_version

if TYPE_CHECKING:
    from email.message import Message

WEBSOCKET_MODULES: Final = ("aiohttp", "multidict")
IMPORTERS: Final = ("nats.aio.transport", "nats.aio.client", "nats.js.client", "nats.js.manager")
"""The modules of nats-py whose imports of ``LATE`` are replaced."""


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


class _HeaderParser:
    """Stands for ``email.parser.BytesParser``, of which nats-py uses this method only."""

    def parsebytes(self, data: bytes) -> Message:
        from email.parser import BytesParser

        return BytesParser().parsebytes(data)


def _version(package: str) -> str:
    if (version := installed_version(package)) is None:
        raise LookupError(package)
    return version


LATE: Final[dict[str, object]] = {
    **{name: _ImportedOnUse(name) for name in WEBSOCKET_MODULES},
    "email.parser": SimpleNamespace(BytesParser=_HeaderParser),
    "importlib.metadata": SimpleNamespace(version=_version),
}
"""What ``IMPORTERS`` get in place of these modules."""


def _import(name: str, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
    return LATE[name] if name in LATE else builtins.__import__(name, *args, **kwargs)


class _Loader(SourceFileLoader):
    """Runs a module with an ``import`` statement of its own; no other import is affected, in no thread."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _Finder:
    """Finds ``IMPORTERS`` and no other module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in IMPORTERS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def import_nats_lightly() -> None:
    """Make the first import of nats-py leave out ``LATE``; nats-py imports these modules when it uses them.

    Call this before any import of nats-py; without effect after it, and at a second call.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
