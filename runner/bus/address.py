"""Address of a bus: URL, login and TLS settings, from environment variables, a profile or a node's state directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from runner.errors import ConfigError
from runner.util.display_text import MASK
from runner.util.files import read_secret

if TYPE_CHECKING:
    from runner.config import Profile

NODE_FILE = "node.json"
_LOGIN_VARIABLES = ("NATS_TOKEN", "NATS_NKEY", "NATS_CREDS")
_FLAGS = {"": False, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


class TlsSettings(msgspec.Struct, frozen=True):
    """Paths of PEM files for TLS, which is then required. Without ``ca``, the system's authorities are used."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    handshake_first: bool = False


class BusAddress(msgspec.Struct, frozen=True):
    """Servers of one bus, at most one login method, and TLS settings; with TLS settings, TLS is required.

    ``url`` may name several servers, separated by commas. Its user information is used when no other login is given.
    ``follows_announced``: whether servers that the bus announces are connected to, too.
    """

    url: str
    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_file: str | None = None
    creds_file: str | None = None
    tls: TlsSettings | None = None
    follows_announced: bool = True

    def __repr__(self) -> str:
        return f"BusAddress({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        try:
            fields: list[tuple[str, object]] = [("url", self.display_url)]
        except ConfigError:  # an unparsable URL may contain a secret anywhere
            fields = [("url", MASK)]
        for name in self.__struct_fields__[1:]:
            if (value := getattr(self, name)) is not None:
                fields.append((name, MASK if name in ("password", "token") else value))
        return fields

    @property
    def servers(self) -> list[str]:
        return [server for server, _ in _split(self.url)]

    @property
    def display_url(self) -> str:
        return ",".join(self.servers)

    @property
    def tls_required(self) -> bool:
        """Whether plaintext connections are refused."""
        return self.tls is not None or any(server.startswith("tls:") for server in self.servers)

    def with_split_login(self) -> BusAddress:
        """Return a copy with the URL's user information as login fields; raises ``ConfigError`` for an invalid URL."""
        infos = {info for _, info in _split(self.url)}
        if len(infos) > 1:
            raise ConfigError("all servers of a bus URL must have the same user and password, or none")
        return msgspec.structs.replace(
            self, url=self.display_url, **(_login(infos.pop()) if not self.has_login else {})
        )

    @property
    def has_login(self) -> bool:
        return any((self.user, self.password, self.token, self.nkey_file, self.creds_file))


def address_from_environ(url: str, environ: Mapping[str, str]) -> BusAddress:
    """Return the bus at ``url`` with the credentials and TLS files of the ``NATS_…`` variables.

    User information in the URL takes precedence over the variables. Empty variables count as unset.

    Raises:
        ConfigError: a value is invalid, variables contradict each other, or a key file is readable by others.
    """
    address = BusAddress(url, tls=_tls_from_environ(environ)).with_split_login()
    return address if address.has_login else msgspec.structs.replace(address, **_login_from_environ(environ))


class _NodeFile(msgspec.Struct):
    url: str
    credential_file: str


class Credential(msgspec.Struct):
    """Content of the credential file of a node's broker, stored as JSON."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credential(user={self.user!r}, password={MASK!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("user", self.user)]


def address_of_node(data_dir: Path) -> BusAddress | None:
    """Return the bus address of a state directory's node, even a stopped one; None if no node has used the directory.

    Raises:
        ConfigError: the node's files are damaged or readable by others.
    """
    path = data_dir / NODE_FILE
    if not path.exists():
        return None
    try:
        node = msgspec.json.decode(read_secret(path, "the node's address"), type=_NodeFile)
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise ConfigError(f"{path} is damaged: {exc}; restart the node") from exc
    credential = read_credential(Path(node.credential_file))
    return BusAddress(node.url, user=credential.user, password=credential.password)


def read_credential(path: Path) -> Credential:
    try:
        return msgspec.json.decode(read_secret(path, "the broker's credential"), type=Credential)
    except (msgspec.MsgspecError, UnicodeError):
        # The cause may contain the password.
        raise ConfigError(f"{path} is damaged; restart the node") from None


def _split(url: str) -> list[tuple[str, str]]:
    # Errors never quote the URL, as it may contain secrets.
    parts = url.split(",")
    return [_split_one(part.strip(), f"{number} of {len(parts)}") for number, part in enumerate(parts, start=1)]


def _split_one(text: str, position: str) -> tuple[str, str]:
    scheme, separator, rest = text.partition("://")
    scheme, rest = (scheme.lower(), rest) if separator else ("nats", text)
    # Split at the last @, as a password may contain an unescaped @ or /.
    info, _, host_port = rest.rpartition("@")
    try:
        parsed = urlsplit(f"//{host_port}")
        is_valid = bool(parsed.hostname) and parsed.path in ("", "/") and not (parsed.query or parsed.fragment)
        port = parsed.port or 4222
    except ValueError:
        is_valid = False
    if not is_valid or not host_port.isprintable() or " " in host_port:
        raise ConfigError(f"the bus URL (server {position}) is invalid; use nats://HOST:PORT or tls://HOST:PORT")
    if scheme not in ("nats", "tls"):
        raise ConfigError(f"the bus URL (server {position}) must start with nats:// or tls://")
    host = f"[{parsed.hostname}]" if ":" in str(parsed.hostname) else parsed.hostname
    return f"{scheme}://{host}:{port}", info


def _login(info: str) -> dict[str, str]:
    if not info:
        return {}
    user, colon, password = info.partition(":")
    return {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}


def _login_from_environ(environ: Mapping[str, str]) -> dict[str, str]:
    user, password = environ.get("NATS_USER"), environ.get("NATS_PASSWORD")
    given = {name: value for name in _LOGIN_VARIABLES if (value := environ.get(name))}
    methods = [*(["NATS_USER"] if user else []), *given]
    if len(methods) > 1:
        raise ConfigError(f"{' and '.join(methods)} are set; keep one login method and unset the others")
    if bool(user) != bool(password):
        raise ConfigError("set both NATS_USER and NATS_PASSWORD, or neither")
    if user and password:
        return {"user": user, "password": password}
    for name in ("NATS_NKEY", "NATS_CREDS"):
        if name in given:
            read_secret(Path(given[name]), name)
    fields = {"NATS_TOKEN": "token", "NATS_NKEY": "nkey_file", "NATS_CREDS": "creds_file"}
    return {fields[name]: value for name, value in given.items()}


def _tls_from_environ(environ: Mapping[str, str]) -> TlsSettings | None:
    ca, cert, key = (environ.get(name) or None for name in ("NATS_CA", "NATS_CERT", "NATS_KEY"))
    first = _FLAGS.get(environ.get("NATS_TLS_FIRST", "").strip().lower())
    if first is None:
        raise ConfigError("NATS_TLS_FIRST must be 1 or 0")
    if key and not cert:
        raise ConfigError("NATS_KEY needs NATS_CERT, its certificate")
    for name, path in (("NATS_CA", ca), ("NATS_CERT", cert)):
        if path and not Path(path).is_file():
            raise ConfigError(f"{name}: {path} is not a file")
    if private := key or cert:
        read_secret(Path(private), "NATS_KEY" if key else "NATS_CERT (also the key file, as NATS_KEY is not set)")
    return TlsSettings(ca, cert, key, first) if ca or cert or first else None


def egress_reader(profile: Profile) -> Callable[[], BusAddress | None]:
    """Return a function that reads the egress address; None if there is none.

    Each call reads the environment and the key files again, because credentials may change.
    """

    def read() -> BusAddress | None:
        url = profile.nats.egress_url(os.environ)
        return address_from_environ(url, os.environ) if url else None

    return read
