"""Address of an environment's server: URL, credentials and request timeout."""

from __future__ import annotations

from base64 import b64encode
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from runner.errors import ConfigError
from runner.util.display_text import masker, one_line


class ServerAddress(msgspec.Struct, frozen=True):
    """Address and capabilities of one environment's server.

    The URL is untrusted text. It is in a struct because the config tree that environments are built from would
    interpolate ``${…}`` in a plain string.

    Attributes:
        url: ``http://HOST:PORT`` with an optional path. A user and password in the URL are sent but never shown;
            ``http://:TOKEN@HOST`` sends a bearer token.
        timeout_s: seconds for one request, from connecting to the last byte of the response.
        n_tasks: number of tasks that the server reports; None if it reports none.
        places: maximum number of episodes on the server, from the profile or from the server; None if it is unknown.
        lists_actions: whether the server has the paths ``/admissible`` and ``/world``, as this project's servers do.
        secrets: values that no text about the server shows, such as those of the variables it was started with.
        dialect: ``env`` for the dialect of AgentGym's server of the environment, ``createEnv`` for the dialect of
            servers with the path ``/createEnv``.
    """

    url: str
    timeout_s: float = 30.0
    n_tasks: int | None = None
    lists_actions: bool = False
    secrets: tuple[str, ...] = ()
    dialect: Literal["env", "createEnv"] = "env"
    places: int | None = None

    def __repr__(self) -> str:
        """Masks user and password, since it may appear in tracebacks and logs."""
        return f"ServerAddress({self.mask(self.url)!r}, timeout_s={self.timeout_s:g})"

    def mask(self, text: str) -> str:
        return masker(secrets=self.secrets)(text)

    @property
    def base(self) -> str:
        """URL to which request paths are appended, without a login; raises ``ConfigError`` if it is invalid."""
        parts = self._parts()
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    @property
    def authorization(self) -> str | None:
        """Basic for a user and password, Bearer for a password alone; raises ``ConfigError`` if it cannot be sent."""
        parts = self._parts()
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if user:
            return f"Basic {b64encode(f'{user}:{password}'.encode('utf-8', 'replace')).decode('ascii')}"
        if not all("!" <= letter <= "~" for letter in password):
            raise ConfigError("The token in an environment server's base_url must consist of visible ASCII characters")
        return f"Bearer {password}" if password else None

    def _parts(self) -> SplitResult:
        problem = "must be http://HOST:PORT or https://HOST, optionally with a path"
        try:
            parts = urlsplit(self.url)
            if parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment):
                _ = parts.port
                return parts
        except ValueError as exc:
            problem = one_line(str(exc))
        raise ConfigError(f"Invalid address of an environment server: {problem}. Correct its base_url")
