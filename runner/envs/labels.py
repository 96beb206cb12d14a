"""Which data the environments of this package play, told without importing one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class _Data(NamedTuple):
    label: str
    variable: str = ""
    real: str = ""


_DATA = {
    "alfworld": _Data("local scenes", "ALFWORLD_DATA", "ALFWorld data"),
    "gymnasium": _Data("Gymnasium"),
    "sqlgym": _Data("local databases", "AGENTENV_SQLGYM_BIRD_PATH", "BIRD"),
    "webshop": _Data("local catalogue"),
}
"""Where the tasks are not the published ones: what they are, and the variable that names the published data."""


def label_of(env: str, environ: Mapping[str, str]) -> str:
    """The ``data_label`` of an environment's class, empty where the tasks are as published.

    Args:
        env: the registered name of an environment of this package, in any case, or ``family:id``.
        environ: the variables that may name other data.
    """
    data = _DATA.get(env.lower().partition(":")[0], _Data(""))
    return data.real if data.variable and environ.get(data.variable) else data.label
