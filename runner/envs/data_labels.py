"""Data labels of the built-in environments, determined without importing the environments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from runner.types import Mode

AS_PUBLISHED = "as published"
"""Display text for the published data, whose label is empty."""
ALFWORLD_VARIABLE = "ALFWORLD_DATA"
BIRD_VARIABLE = "AGENTENV_SQLGYM_BIRD_PATH"
TEXTCRAFT_VARIABLE = "AGENTENV_TEXTCRAFT_PATH"
"""Environment variables for folders of published data, which AgentGym's servers read, too."""
ALFWORLD_MAPPINGS = ("mappings_train.json", "mappings_test.json")
"""AgentGym's lists of ALFWorld's games; the places in both together are the numbers of its tasks."""
NUMBERED_AS_AGENTGYM = "ALFWorld data, AgentGym's numbers"
"""Label of ALFWorld's games in the order of these lists."""


def alfworld_mappings(environ: Mapping[str, str]) -> Path | None:
    """Return the folder with AgentGym's lists of games: of the checkout ``AGENTENV_PATH`` or of ALFWorld's data."""
    folders = [Path(checkout, "agentenv-alfworld", "configs")] if (checkout := environ.get("AGENTENV_PATH")) else []
    folders += [Path(data)] if (data := environ.get(ALFWORLD_VARIABLE)) else []
    found = (each for each in folders if all(map(os.path.isfile, (each / name for name in ALFWORLD_MAPPINGS))))
    return next(found, None)


class _DataSource(NamedTuple):
    label: str
    variable: str = ""
    published_label: str = ""
    markers: tuple[str, ...] = ()
    compat_label: str | None = None


_DATA_SOURCES = {
    "alfworld": _DataSource("local scenes", ALFWORLD_VARIABLE, "ALFWorld data", ("json_2.1.1",)),
    "are": _DataSource("ARE"),
    "gymnasium": _DataSource("Gymnasium"),
    "sqlgym": _DataSource(
        "local databases", BIRD_VARIABLE, "BIRD", (str(Path("train", "train.json")), str(Path("dev", "dev.json")))
    ),
    "textcraft": _DataSource("local recipes", TEXTCRAFT_VARIABLE, "AgentGym recipes", ("recipes",)),
    "webshop": _DataSource("local catalogue"),
    "wordle": _DataSource("local words", compat_label=""),
}
"""Environments whose shipped tasks are not the published ones.

Each entry has the label of the shipped tasks, the environment variable for the folder of the published data, the label
of the published data, relative paths of which a complete folder has at least one, and the label of the shipped tasks in
compat mode if that mode has other tasks.
"""


def data_label_of(env: str, environ: Mapping[str, str], mode: Mode = "strict") -> str:
    """Empty if the tasks are the published ones. ``env`` is case-insensitive, or ``family:id``."""
    source = _source_of(env)
    if _folder(source, environ):
        is_mapped = source.variable == ALFWORLD_VARIABLE and mode == "compat" and alfworld_mappings(environ) is not None
        return NUMBERED_AS_AGENTGYM if is_mapped else source.published_label
    return source.label if mode == "strict" or source.compat_label is None else source.compat_label


def data_folder(env: str) -> str | None:
    """Return the folder of the published data that an environment variable of this process names; None without one."""
    return _folder(_source_of(env), os.environ) or None


def missing_data(env: str, environ: Mapping[str, str]) -> str | None:
    """Return why the folder that a variable names cannot be used; None if it looks complete, or there is none."""
    source = _source_of(env)
    folder = _folder(source, environ)
    if not folder or any(map(os.path.exists, (Path(folder, marker) for marker in source.markers))):
        return None
    return f"{source.variable} is {folder!r}, which has no {' and no '.join(source.markers)}"


def same_data_advice(env: str, environ: Mapping[str, str]) -> str | None:
    """Return how to play the published data that a server plays; None if the environment has no data folder."""
    source = _source_of(env)
    if not source.variable:
        return None
    folder = _folder(source, environ)
    current = f"it is {folder!r}" if folder else "it is not set"
    return f"Set {source.variable} to the folder of {source.published_label} that the server plays; {current}"


class DataLabel:
    """Attribute with the label of an environment's current data, readable on the class and on its instances."""

    def __init__(self, env: str) -> None:
        self._env = env

    def __get__(self, instance: object, owner: type[object]) -> str:
        """Return the label, read from the environment variables at each access; on the class, that of strict mode."""
        return data_label_of(self._env, os.environ, getattr(instance, "mode", "strict"))


def _source_of(env: str) -> _DataSource:
    return _DATA_SOURCES.get(env.lower().partition(":")[0], _DataSource(""))


def _folder(source: _DataSource, environ: Mapping[str, str]) -> str:
    return environ.get(source.variable, "") if source.variable else ""
