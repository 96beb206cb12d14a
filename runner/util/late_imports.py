"""Lets modules of a library do without modules that they import at their top and use rarely or never."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any


class ImportedOnUse:
    """Stands for a module, or for the class ``name`` in it, and imports the module when it is used."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    def __getattr__(self, attribute: str) -> object:
        value: object = getattr(self._load(), attribute)
        return value

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._load()(*args, **kwargs)

    def _load(self) -> Any:  # noqa: ANN401
        module = importlib.import_module(self._module)
        return getattr(module, self._name) if self._name else module


def _import(stand_ins: Mapping[str, object], name: str, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
    return stand_ins[name] if name in stand_ins else builtins.__import__(name, *args, **kwargs)


class _Loader(SourceFileLoader):
    """Runs a module with an ``import`` statement of its own; no other import is affected, in no thread."""

    stand_ins: Mapping[str, object]

    def exec_module(self, module: ModuleType) -> None:
        own_import = partial(_import, self.stand_ins)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": own_import}
        super().exec_module(module)


class _Finder:
    def __init__(self, importers: Collection[str], stand_ins: Mapping[str, object]) -> None:
        self.importers, self._stand_ins = importers, stand_ins

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.importers:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            loader = _Loader(spec.loader.name, spec.loader.path)
            loader.stand_ins = self._stand_ins
            spec.loader = loader
        return spec


def import_late(importers: Collection[str], stand_ins: Mapping[str, object]) -> None:
    """Give some modules other objects than those that they import; without effect at a second call for them.

    ``stand_ins`` has, by the name of an imported module, the object that the importers get in its place.
    """
    if not any(isinstance(finder, _Finder) and finder.importers == importers for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(importers, stand_ins))
