"""Which data the environments of this package play, told without importing one of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

AS_PUBLISHED = "as published"
"""How data without a label of its own is called."""


class _Data(NamedTuple):
    label: str
    variable: str = ""
    real: str = ""
    markers: tuple[str, ...] = ()


_DATA = {
    "alfworld": _Data("local scenes", "ALFWORLD_DATA", "ALFWorld data", ("json_2.1.1",)),
    "gymnasium": _Data("Gymnasium"),
    "sqlgym": _Data(
        "local databases",
        "AGENTENV_SQLGYM_BIRD_PATH",
        "BIRD",
        (str(Path("train", "train.json")), str(Path("dev", "dev.json"))),
    ),
    "webshop": _Data("local catalogue"),
}
"""Where the tasks are not the published ones: what they are, the variable that names the folder of the published data,
and what that has at least one of."""


def data_label_of(env: str, environ: Mapping[str, str]) -> str:
    """The ``data_label`` of an environment's class, empty where the tasks are as published.

    Args:
        env: the registered name of an environment of this package, in any case, or ``family:id``.
        environ: the variables that may name other data.
    """
    data = _data_of(env)
    return data.real if _folder(data, environ) else data.label


def uses_configured_data(env: str, environ: Mapping[str, str]) -> bool:
    """Whether a variable names the data that an environment of this package plays."""
    return bool(_folder(_data_of(env), environ))


def missing_data(env: str, environ: Mapping[str, str]) -> str | None:
    """Why the data that a variable names cannot be played, as far as a look at the folder tells; None: it may be.

    Args:
        env: as for :func:`label_of`.
        environ: the variables that may name other data.
    """
    data = _data_of(env)
    folder = _folder(data, environ)
    if not folder or any(map(os.path.exists, (Path(folder, marker) for marker in data.markers))):
        return None
    return f"{data.variable} is {folder!r}, which has no {' and no '.join(data.markers)}"


class DataLabel:
    """The label of the data that is played now; also on the class, before there is an instance."""

    def __init__(self, env: str) -> None:
        """Of this environment."""
        self._env = env

    def __get__(self, instance: object, owner: type[object]) -> str:
        """Which data that is."""
        return data_label_of(self._env, os.environ)


def _data_of(env: str) -> _Data:
    return _DATA.get(env.lower().partition(":")[0], _Data(""))


def _folder(data: _Data, environ: Mapping[str, str]) -> str:
    return environ.get(data.variable, "") if data.variable else ""
