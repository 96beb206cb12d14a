from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import trustme

from runner.bus.connection import BusState


class States:
    """Records the states of a connection; ``until`` waits for one."""

    def __init__(self) -> None:
        self.seen: list[BusState] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, state: BusState) -> None:
        self.seen.append(state)
        task = asyncio.get_running_loop().create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until(self, wanted: Callable[[BusState], bool] | str, timeout_s: float = 10.0) -> BusState:
        def last_fits() -> bool:
            if not self.seen:
                return False
            return self.seen[-1].status == wanted if isinstance(wanted, str) else wanted(self.seen[-1])

        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(last_fits)
            return self.seen[-1]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def new_seed(prefix: int = nkeys.PREFIX_BYTE_USER) -> str:
    return bytes(nkeys.encode_seed(secrets.token_bytes(32), prefix)).decode().rstrip("=")


def public_key(seed: str) -> str:
    return bytes(nkeys.from_seed(bytearray(seed.encode())).public_key).decode()


def jwt(kind: str, name: str, subject: str, issuer_seed: str, **claims: object) -> str:
    body = {"jti": name, "iat": 1, "iss": public_key(issuer_seed), "sub": subject, "name": name}
    body |= {"nats": {"type": kind, "version": 2, **claims}}
    signed = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(body)}"
    signature = nkeys.from_seed(bytearray(issuer_seed.encode())).sign(signed.encode())
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def _encoded(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def operator_mode(account_seed: str) -> dict[str, Any]:
    """The configuration of a server that accepts users signed by an account."""
    operator = new_seed(nkeys.PREFIX_BYTE_OPERATOR)
    account = public_key(account_seed)
    limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}
    return {
        "operator": jwt("operator", "operator", public_key(operator), operator),
        "resolver": "MEMORY",
        "resolver_preload": {account: jwt("account", "account", account, operator, limits=limits)},
    }


def creds_file(path: Path, account_seed: str) -> Path:
    user = new_seed()
    limits = {"subs": -1, "data": -1, "payload": -1}
    token = jwt("user", "user", public_key(user), account_seed, **limits)
    path.touch(mode=0o600)
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user}\n------END USER NKEY SEED------\n"
    )
    return path


class Certificates:
    """An authority with a certificate for a server and one for a client, as files."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.server_cert, self.server_key = self._issue(authority, folder, "server", host)
        self.client_cert, self.client_key = self._issue(authority, folder, "client", "agentgym-client")

    def for_server(self, *, verify: bool = False, handshake_first: bool = False) -> dict[str, Any]:
        tls: dict[str, Any] = {"cert_file": str(self.server_cert), "key_file": str(self.server_key)}
        tls |= {"ca_file": str(self.ca), "verify": verify, "handshake_first": handshake_first}
        return {"tls": tls}

    def _issue(self, authority: trustme.CA, folder: Path, name: str, host: str) -> tuple[Path, Path]:
        issued = authority.issue_cert(host)
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        key.touch(mode=0o600)
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key
