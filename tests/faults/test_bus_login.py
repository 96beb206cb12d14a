from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runner.bus.connection import BusAddress, BusError, NatsConnection, TlsSettings
from runner.errors import ConfigError
from tests.support.bus import BusStateRecorder, Certificates, new_seed, operator_config, public_key, write_creds_file
from tests.support.fake_nats import run_fake_nats
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.long

PASSWORD = "c4n4ry-p4ssw0rd"


def _login(password: str) -> dict[str, Any]:
    return {"authorization": {"user": "u", "password": password}}


async def _check(address: BusAddress) -> None:
    async with await NatsConnection.open(address, name="test") as connection:
        await connection.client.flush()


async def _assert_rejected(address: BusAddress, kind: str | None, text: str | None = None) -> str:
    with pytest.raises(BusError, match=text) as caught:
        await _check(address)
    assert kind in (None, caught.value.kind), caught.value
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def _tls(certificates: Certificates, *, client: bool = False, handshake_first: bool = False) -> TlsSettings:
    cert, key = (str(certificates.client_cert), str(certificates.client_key)) if client else (None, None)
    return TlsSettings(str(certificates.ca), cert, key, handshake_first)


async def test_login_with_a_password(tmp_path: Path) -> None:
    with NatsServer(tmp_path, jetstream=False, config=_login("right")) as server:
        await _check(BusAddress(server.url, user="u", password="right"))
        await _check(BusAddress(server.url.replace("//", "//u:right@")))
        await _assert_rejected(
            BusAddress(server.url, user="u", password=PASSWORD), "auth", "does not accept the credentials"
        )
        await _assert_rejected(BusAddress(server.url), "auth")


async def test_a_rotated_password_is_reported_until_it_is_accepted_again(tmp_path: Path) -> None:
    states = BusStateRecorder()
    with NatsServer(tmp_path, jetstream=False, config=_login(PASSWORD)) as server:
        address = BusAddress(server.url, user="u", password=PASSWORD)
        async with await NatsConnection.open(address, name="test", on_state=states) as connection:
            server.reload(_login("rotated"))
            state = await states.wait_for(lambda state: state.kind == "auth", timeout_s=3)
            server.reload(_login(PASSWORD))
            await states.wait_for("connected", timeout_s=5)
            await connection.client.flush()
            # A password rotated during an outage is rejected at the next login instead.
            server.kill()
            server.config = _login("rotated")
            server.start()
            await states.wait_for(lambda state: state.kind == "auth", timeout_s=5)
            server.kill()
            server.config = _login(PASSWORD)
            server.start()
            await states.wait_for("connected", timeout_s=5)
        assert PASSWORD not in f"{states.states} {connection.address!r} {state}"


async def test_login_with_a_token(tmp_path: Path) -> None:
    with NatsServer(tmp_path, jetstream=False, config={"authorization": {"token": "right"}}) as server:
        await _check(BusAddress(server.url, token="right"))
        await _check(BusAddress(server.url.replace("//", "//right@")))
        await _assert_rejected(BusAddress(server.url, token=PASSWORD), "auth")


async def test_login_with_an_nkey(tmp_path: Path) -> None:
    seed, other = new_seed(), new_seed()
    config = {"authorization": {"users": [{"nkey": public_key(seed)}]}}
    path = tmp_path / "seed"
    path.touch(mode=0o600)
    with NatsServer(tmp_path / "server", jetstream=False, config=config) as server:
        address = BusAddress(server.url, nkey_file=str(path))
        path.write_text(f"{seed}\n")
        await _check(address)
        path.write_text(other)
        assert other not in await _assert_rejected(address, "auth")
        path.write_text(f"not a seed {PASSWORD}")
        await _assert_rejected(address, "auth", "the NATS_NKEY file has no valid nkey seed")
        path.chmod(0o644)
        with pytest.raises(ConfigError, match="chmod 600"):
            await _check(address)


async def test_login_with_a_credentials_file(tmp_path: Path) -> None:
    account = new_seed(prefix=0)
    path = write_creds_file(tmp_path / "user.creds", account)
    with NatsServer(tmp_path / "server", jetstream=False, config=operator_config(account)) as server:
        address = BusAddress(server.url, creds_file=str(path))
        await _check(address)
        write_creds_file(path, new_seed(prefix=0))
        await _assert_rejected(address, "auth")
        path.write_text(PASSWORD)
        await _assert_rejected(address, "auth", "no user JWT")
        path.write_text(re.sub(r"SU[A-Z2-7]+", PASSWORD, write_creds_file(path, account).read_text()))
        await _assert_rejected(address, "auth", "the NATS_CREDS file has no valid nkey seed")


@pytest.mark.parametrize("handshake_first", [False, True])
async def test_login_over_tls(handshake_first: bool, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "right")
    config = certificates.server_config(handshake_first=handshake_first) | _login("right")
    with NatsServer(tmp_path, jetstream=False, config=config) as server:
        tls = _tls(certificates, handshake_first=handshake_first)
        good = BusAddress(server.url, user="u", password="right", tls=tls)
        async with await NatsConnection.open(good, name="test", on_state=(states := BusStateRecorder())) as connection:
            server.restart()
            await states.wait_for("disconnected")
            await states.wait_for("connected")
            await connection.client.flush()
        await _assert_rejected(BusAddress(server.url, user="u", password=PASSWORD, tls=tls), "auth")
        wrong = _tls(Certificates(tmp_path / "wrong"), handshake_first=handshake_first)
        await _assert_rejected(
            BusAddress(server.url, user="u", password=PASSWORD, tls=wrong),
            "tls",
            "was rejected: unable to get local issuer",
        )
        wrong_host = server.url.replace("127.0.0.1", "localhost")
        await _assert_rejected(
            BusAddress(wrong_host, user="u", password=PASSWORD, tls=tls), "tls", "(?i)hostname mismatch"
        )
        if handshake_first:
            # Either the server or the client may time out first.
            await _assert_rejected(BusAddress(server.url, tls=_tls(certificates)), None, "NATS_TLS_FIRST")
        else:
            # Without settings TLS is used if offered, and the system's authorities do not include the server's.
            await _assert_rejected(BusAddress(server.url, user="u", password=PASSWORD), "tls", "NATS_CA")


async def test_login_with_a_client_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "right")
    with NatsServer(tmp_path, jetstream=False, config=certificates.server_config(verify=True)) as server:
        await _check(BusAddress(server.url, tls=_tls(certificates, client=True)))
        await _assert_rejected(BusAddress(server.url, tls=_tls(certificates)), "tls", "NATS_CERT")
        other = Certificates(tmp_path / "other")
        mixed = TlsSettings(str(certificates.ca), str(other.client_cert), str(other.client_key))
        await _assert_rejected(BusAddress(server.url, tls=mixed), "tls", "NATS_CERT")


async def test_invalid_certificate_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "file.pem"
    path.write_text(PASSWORD)
    for tls in (TlsSettings(ca=str(path)), TlsSettings(cert=str(path))):
        await _assert_rejected(BusAddress("nats://127.0.0.1:1", tls=tls), "tls", "file is invalid")
    with pytest.raises(ConfigError, match="cannot be read"):
        await _check(BusAddress("nats://127.0.0.1:1", tls=TlsSettings(ca="/missing")))


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_a_server_without_tls_is_rejected_where_tls_is_required(scheme: str, tmp_path: Path) -> None:
    async with run_fake_nats(auth_required=True) as server:
        tls = TlsSettings() if scheme == "nats" else None
        address = BusAddress(server.url.replace("nats", scheme), user="u", password=PASSWORD, tls=tls)
        await _assert_rejected(address, "tls", "offers no TLS")
        assert server.received == b""
        await _assert_rejected(
            BusAddress(address.url, token=PASSWORD, tls=TlsSettings(handshake_first=True)), "timeout", "NATS_TLS_FIRST"
        )
        assert PASSWORD.encode() not in server.received


async def test_a_server_without_tls_is_rejected_after_a_reconnect(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "right")
    states = BusStateRecorder()
    with NatsServer(tmp_path, jetstream=False, config=certificates.server_config() | _login(PASSWORD)) as server:
        address = BusAddress(server.url, user="u", password=PASSWORD, tls=_tls(certificates))
        async with await NatsConnection.open(address, name="test", on_state=states):
            server.kill()
            await states.wait_for("disconnected")
            async with run_fake_nats(port=server.port, auth_required=True) as plaintext:
                state = await states.wait_for(lambda state: state.kind == "tls")
                assert "offers no TLS" in state.reason
            assert plaintext.received == b""
            server.start()
            await states.wait_for("connected")
