"""Identification of environment servers by their greeting, the JSON string that ``GET /`` returns.

The greetings of AgentGym's servers are those of ``agentenv-*/agentenv_*/server.py`` at commit 3ef9235.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from runner.types import Mode
from runner.util.display_text import one_line

ServerKind: TypeAlias = Literal["console", "agentgym", "wrong", "unknown"]

_OK_GREETING = "ok"
_AGENTGYM_GREETING = re.compile(r"This is environment (?P<env>[^\n]{1,100})\.")
_CONSOLE_GREETING = re.compile(
    r"AgentGym Console [^\s:]{1,50}: (?P<env>[^\n]{1,100}) \((?P<mode>strict|compat), (?P<label>[^\n]{1,200})\)"
)
_MAX_GREETING_CHARS = 500


class ServerIdentity(msgspec.Struct, frozen=True):
    """Identity of a server, read from its greeting.

    Attributes:
        kind: ``console`` for this project's server of the expected environment, ``agentgym`` for AgentGym's server of
            it, ``wrong`` for a server of something else, ``unknown`` for a server that may be the right one.
        env: environment name in the greeting; empty if there is none.
        mode: rules of the server; None if the greeting does not name them.
        label: data label of the server; empty if the greeting does not name it.
    """

    kind: ServerKind
    env: str = ""
    mode: Mode | None = None
    label: str = ""


def identify_server(env: str, payload: object) -> ServerIdentity:
    """Identify the server of ``env`` by its reply to ``GET /``.

    Args:
        env: the environment's name, case-insensitive.
        payload: the decoded JSON of a reply with status 200; None if the body is not JSON.
    """
    if not isinstance(payload, str) or len(payload) > _MAX_GREETING_CHARS:
        return ServerIdentity("wrong")
    if match := _CONSOLE_GREETING.fullmatch(payload):
        return _console_identity(env, match)
    from runner.envs.http.dialects import dialect_for  # imported late: most probes find no server

    dialect = dialect_for(env)
    greeting = None if dialect is None else dialect.greeting
    if match := _AGENTGYM_GREETING.fullmatch(payload):
        kind: ServerKind = "agentgym" if match["env"].lower() == (greeting or env).lower() else "wrong"
        return ServerIdentity(kind, one_line(match["env"]), "compat")
    if payload != _OK_GREETING or dialect is None:
        return ServerIdentity("unknown")
    return ServerIdentity("wrong") if greeting else ServerIdentity("agentgym", mode="compat")


def _console_identity(env: str, match: re.Match[str]) -> ServerIdentity:
    kind: ServerKind = "console" if match["env"].lower() == env.lower() else "wrong"
    mode: Mode = "strict" if match["mode"] == "strict" else "compat"
    return ServerIdentity(kind, one_line(match["env"]), mode, one_line(match["label"]))
