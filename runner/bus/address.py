"""Where a bus is and how to log in there; taken from the environment, or from the node of a state directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from runner.errors import ConfigError
from runner.util.files import read_secret
from runner.util.text import MASK

if TYPE_CHECKING:
    from runner.config import Profile

NODE_FILE = "node.json"
_LOGINS = ("NATS_TOKEN", "NATS_NKEY", "NATS_CREDS")
_FLAGS = {"": False, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


class TlsSettings(msgspec.Struct, frozen=True):
    """Files in PEM format; without ``ca`` the system's authorities count. Settings mean that TLS is required."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    handshake_first: bool = False


class BusAddress(msgspec.Struct, frozen=True):
    """One bus: servers, at most one way to log in, and TLS settings, which mean that TLS is required.

    ``url`` may name several servers, joined by commas. User information in it counts when nothing else is given.
    """

    url: str
    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_file: str | None = None
    creds_file: str | None = None
    tls: TlsSettings | None = None

    def __repr__(self) -> str:
        """Without secrets."""
        return f"BusAddress({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """The fields that are set; secrets masked."""
        try:
            fields: list[tuple[str, object]] = [("url", self.display_url)]
        except ConfigError:  # what cannot be taken apart may hold a secret anywhere
            fields = [("url", MASK)]
        for name in self.__struct_fields__[1:]:
            if (value := getattr(self, name)) is not None:
                fields.append((name, MASK if name in ("password", "token") else value))
        return fields

    @property
    def servers(self) -> list[str]:
        """One URL per server, without user information."""
        return [server for server, _ in _split(self.url)]

    @property
    def display_url(self) -> str:
        """The URL without user information, for screens and logs."""
        return ",".join(self.servers)

    @property
    def tls_required(self) -> bool:
        """Whether plaintext is refused."""
        return self.tls is not None or any(server.startswith("tls:") for server in self.servers)

    def with_split_login(self) -> BusAddress:
        """The same with the URL's user information moved to its own fields.

        Raises:
            ConfigError: for an URL that cannot be used.
        """
        infos = {info for _, info in _split(self.url)}
        if len(infos) > 1:
            raise ConfigError("the servers of one bus need the same user and password in each URL, or in none")
        return msgspec.structs.replace(
            self, url=self.display_url, **(_login(infos.pop()) if not self._has_login() else {})
        )

    def _has_login(self) -> bool:
        return any((self.user, self.password, self.token, self.nkey_file, self.creds_file))


def address_from_environ(url: str, environ: Mapping[str, str]) -> BusAddress:
    """The bus at ``url`` with the credentials and TLS files that the ``NATS_…`` variables name.

    User information in the URL goes before the variables. Empty variables count as not set.

    Raises:
        ConfigError: for what cannot be used or contradicts itself, and for key files that others may read.
    """
    address = BusAddress(url, tls=_tls(environ)).with_split_login()
    return address if address._has_login() else msgspec.structs.replace(address, **_login_from(environ))


class _NodeFile(msgspec.Struct):
    url: str
    credential_file: str


class Credential(msgspec.Struct):
    """What the credential file of a node's broker holds, as JSON."""

    user: str
    password: str

    def __repr__(self) -> str:
        """Without the password."""
        return f"Credential(user={self.user!r}, password={MASK!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Without the password."""
        return [("user", self.user)]


def address_of_node(data_dir: Path) -> BusAddress | None:
    """The bus of the node that owns a state directory, running or not; None where there never was one.

    Raises:
        ConfigError: when its files are damaged or open to others.
    """
    path = data_dir / NODE_FILE
    if not path.exists():
        return None
    try:
        node = msgspec.json.decode(read_secret(path, "the node's address"), type=_NodeFile)
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise ConfigError(f"{path} is damaged: {exc}; start the node again") from exc
    credential = read_credential(Path(node.credential_file))
    return BusAddress(node.url, user=credential.user, password=credential.password)


def read_credential(path: Path) -> Credential:
    """User and password of a node's broker.

    Raises:
        ConfigError: when the file is missing, damaged or open to others.
    """
    try:
        return msgspec.json.decode(read_secret(path, "the broker's credential"), type=Credential)
    except (msgspec.MsgspecError, UnicodeError):
        # The cause may quote the password.
        raise ConfigError(f"{path} is damaged; start the node again") from None


def _split(url: str) -> list[tuple[str, str]]:
    """Per server its URL and its user information, ``""`` for none. Errors do not quote the URL: it may be secret."""
    parts = url.split(",")
    return [_split_one(part.strip(), f"{number} of {len(parts)}") for number, part in enumerate(parts, start=1)]


def _split_one(text: str, which: str) -> tuple[str, str]:
    scheme, found, rest = text.partition("://")
    scheme, rest = (scheme.lower(), rest) if found else ("nats", text)
    # From the right: a password may hold an unescaped @ or /.
    info, _, place = rest.rpartition("@")
    try:
        parsed = urlsplit(f"//{place}")
        usable = bool(parsed.hostname) and parsed.path in ("", "/") and not (parsed.query or parsed.fragment)
        port = parsed.port or 4222
    except ValueError:
        usable = False
    if not usable or not place.isprintable() or " " in place:
        raise ConfigError(f"the bus URL (server {which}) is not valid; give nats://HOST:PORT or tls://HOST:PORT")
    if scheme not in ("nats", "tls"):
        raise ConfigError(f"the bus URL (server {which}) must start with nats:// or tls://")
    host = f"[{parsed.hostname}]" if ":" in str(parsed.hostname) else parsed.hostname
    return f"{scheme}://{host}:{port}", info


def _login(info: str) -> dict[str, str]:
    if not info:
        return {}
    user, found, password = info.partition(":")
    return {"user": unquote(user), "password": unquote(password)} if found else {"token": unquote(user)}


def _login_from(environ: Mapping[str, str]) -> dict[str, str]:
    user, password = environ.get("NATS_USER"), environ.get("NATS_PASSWORD")
    given = {name: value for name in _LOGINS if (value := environ.get(name))}
    ways = [*(["NATS_USER"] if user else []), *given]
    if len(ways) > 1:
        raise ConfigError(f"{' and '.join(ways)} are set; one way to log in is enough, unset the others")
    if bool(user) != bool(password):
        raise ConfigError("NATS_USER and NATS_PASSWORD go together; set both or none")
    if user and password:
        return {"user": user, "password": password}
    for name in ("NATS_NKEY", "NATS_CREDS"):
        if name in given:
            read_secret(Path(given[name]), name)
    fields = {"NATS_TOKEN": "token", "NATS_NKEY": "nkey_file", "NATS_CREDS": "creds_file"}
    return {fields[name]: value for name, value in given.items()}


def _tls(environ: Mapping[str, str]) -> TlsSettings | None:
    ca, cert, key = (environ.get(name) or None for name in ("NATS_CA", "NATS_CERT", "NATS_KEY"))
    first = _FLAGS.get(environ.get("NATS_TLS_FIRST", "").strip().lower())
    if first is None:
        raise ConfigError("NATS_TLS_FIRST must be 1 or 0")
    if key and not cert:
        raise ConfigError("NATS_KEY needs NATS_CERT, the certificate it belongs to")
    for name, path in (("NATS_CA", ca), ("NATS_CERT", cert)):
        if path and not Path(path).is_file():
            raise ConfigError(f"{name}: {path} is not a file")
    if private := key or cert:
        read_secret(Path(private), "NATS_KEY" if key else "NATS_CERT (holds the key too, as NATS_KEY is not set)")
    return TlsSettings(ca, cert, key, first) if ca or cert or first else None


def egress_reader(profile: Profile) -> Callable[[], BusAddress | None]:
    """``NATS_URL``, else the profile's ``nats.url``; read anew at each call, as credentials may change."""

    def read() -> BusAddress | None:
        url = os.environ.get("NATS_URL") or profile.nats.url
        return address_from_environ(url, os.environ) if url else None

    return read
