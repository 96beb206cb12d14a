"""Where an environment's server is, and how long one answer of it may take."""

from __future__ import annotations

from base64 import b64encode
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from runner.errors import ConfigError
from runner.util.text import mask, one_line


class ServerAddress(msgspec.Struct, frozen=True):
    """The address of one environment's server.

    A struct of its own because a URL is outside text: it must not become part of the config tree that environments are
    built from, where ``${…}`` has a meaning.

    Attributes:
        url: ``http://HOST:PORT`` with an optional path; a user and password in it are sent, and shown
            nowhere; ``http://:TOKEN@HOST`` sends a bearer token.
        timeout_s: seconds for one request, from its connection to the last byte of the reply.
        n_tasks: how many tasks the server says that it has; None: as many as its kind is known to have.
        lists_actions: whether the server has the path ``/admissible``, as ours do.
        dialect: ``env`` is AgentGym's for the environment, ``createEnv`` the one of servers with that path.
    """

    url: str
    timeout_s: float = 30.0
    n_tasks: int | None = None
    lists_actions: bool = False
    dialect: Literal["env", "createEnv"] = "env"

    def __repr__(self) -> str:
        """Without the user and password, which a traceback or a log would show."""
        return f"ServerAddress({mask(self.url)!r}, timeout_s={self.timeout_s:g})"

    @property
    def base(self) -> str:
        """The URL that paths are added to: without user and password, and without a slash at its end.

        Raises:
            ConfigError: saying why no request can be sent there.
        """
        parts = self._parts()
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    @property
    def authorization(self) -> str | None:
        """What is sent as ``Authorization``: a user and password, or a password alone as a token.

        Raises:
            ConfigError: saying why no request can be sent there.
        """
        parts = self._parts()
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if user:
            return f"Basic {b64encode(f'{user}:{password}'.encode('utf-8', 'replace')).decode('ascii')}"
        if not all("!" <= letter <= "~" for letter in password):
            raise ConfigError("The token in the address of an environment's server has to be visible ASCII characters")
        return f"Bearer {password}" if password else None

    def _parts(self) -> SplitResult:
        problem = "it has to be http://HOST:PORT or https://HOST, with a path at most"
        try:
            parts = urlsplit(self.url)
            if parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment):
                _ = parts.port
                return parts
        except ValueError as exc:
            problem = one_line(str(exc))
        raise ConfigError(f"The address of an environment's server cannot be used: {problem}. Correct its base_url")
