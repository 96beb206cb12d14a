"""Whose server answers: ours and AgentGym's say so on ``GET /``."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from runner.types import Mode
from runner.util.text import one_line

ServerKind: TypeAlias = Literal["console", "agentgym", "wrong", "unknown"]

_OK = "ok"
_AGENTGYM = {
    "babyai": "babyai",
    "textcraft": "textcraft",
    "maze": "lmrl-gym",
    "wordle": "lmrl-gym",
    "alfworld": "alfworld",
    "sciworld": "scienceworld",
}
"""What AgentGym's servers call themselves in their greeting, in lower case; the others only say ``ok``."""
_ONLY_OK = frozenset({"sqlgym", "webshop", "webarena", "searchqa", "academia", "movie", "sheet", "todo", "weather"})

_OF_AGENTGYM = re.compile(r"This is environment (?P<env>[^\n]{1,100})\.")
_OF_OURS = re.compile(
    r"AgentGym Console [^\s:]{1,50}: (?P<env>[^\n]{1,100}) \((?P<mode>strict|compat), (?P<label>[^\n]{1,200})\)"
)
_LONGEST = 500


class ServerIdentity(msgspec.Struct, frozen=True):
    """What a server said of itself.

    Attributes:
        kind: ``console`` is a server of ours and ``agentgym`` one of AgentGym's, both for the environment in question;
            ``wrong`` is a server of something else, ``unknown`` one that may well be right.
        env: the environment as the server names it, empty where it names none.
        mode: by which rules it plays; None where it does not say.
        label: which data it plays, empty where it does not say.
    """

    kind: ServerKind
    env: str = ""
    mode: Mode | None = None
    label: str = ""


def identify_server(env: str, payload: object) -> ServerIdentity:
    """Read the reply to ``GET /`` of the server that is to play ``env``.

    Args:
        env: the environment's name, in any case.
        payload: the decoded JSON of a reply with status 200, or the text of one that is not JSON.
    """
    if not isinstance(payload, str) or len(payload) > _LONGEST:
        return ServerIdentity("wrong")
    if ours := _OF_OURS.fullmatch(payload):
        return _of_ours(env, ours)
    named, wanted = _OF_AGENTGYM.fullmatch(payload), env.lower()
    if named:
        kind: ServerKind = "agentgym" if named["env"].lower() == _AGENTGYM.get(wanted, wanted) else "wrong"
        return ServerIdentity(kind, one_line(named["env"]), "compat")
    if payload == _OK and wanted in _ONLY_OK:
        return ServerIdentity("agentgym", mode="compat")
    return ServerIdentity("wrong" if payload == _OK and wanted in _AGENTGYM else "unknown")


def _of_ours(env: str, said: re.Match[str]) -> ServerIdentity:
    kind: ServerKind = "console" if said["env"].lower() == env.lower() else "wrong"
    mode: Mode = "strict" if said["mode"] == "strict" else "compat"
    return ServerIdentity(kind, one_line(said["env"]), mode, one_line(said["label"]))
