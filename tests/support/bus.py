"""Recorded connection states, and the credentials and certificates of NATS servers."""

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


class BusStateRecorder:
    """Records the states of a connection; ``wait_for`` waits for a status or a condition."""

    def __init__(self) -> None:
        self.states: list[BusState] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, state: BusState) -> None:
        self.states.append(state)
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_for(self, expected: Callable[[BusState], bool] | str, timeout_s: float = 10.0) -> BusState:
        def matches() -> bool:
            if not self.states:
                return False
            return self.states[-1].status == expected if isinstance(expected, str) else expected(self.states[-1])

        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(matches)
            return self.states[-1]

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def new_seed(prefix: int = nkeys.PREFIX_BYTE_USER) -> str:
    return bytes(nkeys.encode_seed(secrets.token_bytes(32), prefix)).decode().rstrip("=")


def public_key(seed: str) -> str:
    return bytes(nkeys.from_seed(bytearray(seed.encode())).public_key).decode()


def signed_jwt(kind: str, name: str, subject: str, issuer_seed: str, **claims: object) -> str:
    body = {"jti": name, "iat": 1, "iss": public_key(issuer_seed), "sub": subject, "name": name}
    body |= {"nats": {"type": kind, "version": 2, **claims}}
    signed = f"{_encode_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encode_part(body)}"
    signature = nkeys.from_seed(bytearray(issuer_seed.encode())).sign(signed.encode())
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def _encode_part(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def operator_config(account_seed: str) -> dict[str, Any]:
    """Return the configuration of a server that accepts users signed by ``account_seed``."""
    operator = new_seed(nkeys.PREFIX_BYTE_OPERATOR)
    account = public_key(account_seed)
    limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}
    return {
        "operator": signed_jwt("operator", "operator", public_key(operator), operator),
        "resolver": "MEMORY",
        "resolver_preload": {account: signed_jwt("account", "account", account, operator, limits=limits)},
    }


def write_creds_file(path: Path, account_seed: str) -> Path:
    user = new_seed()
    limits = {"subs": -1, "data": -1, "payload": -1}
    token = signed_jwt("user", "user", public_key(user), account_seed, **limits)
    path.touch(mode=0o600)
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user}\n------END USER NKEY SEED------\n"
    )
    return path


class Certificates:
    """Files of a certificate authority, and of the server and client certificates that it issued."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.server_cert, self.server_key = self._issue(authority, folder, "server", host)
        self.client_cert, self.client_key = self._issue(authority, folder, "client", "agentgym-client")

    def server_config(self, *, verify: bool = False, handshake_first: bool = False) -> dict[str, Any]:
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
