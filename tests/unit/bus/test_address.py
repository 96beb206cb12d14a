from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from runner.bus.address import BusAddress, TlsSettings, address_from_environ, address_of_node
from runner.errors import ConfigError

CANARY = "c4n4ry-s3cret"


def _secret_file(path: Path, mode: int = 0o600) -> str:
    path.write_text(CANARY)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("localhost", ["nats://localhost:4222"]),
        ("nats://h:1", ["nats://h:1"]),
        ("TLS://h", ["tls://h:4222"]),
        ("nats://a, tls://b:5/", ["nats://a:4222", "tls://b:5"]),
        ("nats://[::1]:7", ["nats://[::1]:7"]),
    ],
)
def test_server_urls_are_normalized(url: str, servers: list[str]) -> None:
    assert BusAddress(url).servers == servers


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "nats://",
            "http://h",
            "ws://h",
            "nats://h:99999",
            "nats://h:x",
            "nats://h/path",
            "nats://h\nPUB x",
            "a,,b",
        ),
        *(f"http://u:{CANARY}@h", f"nats://u:{CANARY},x@h", f"nats://u:{CANARY}@"),
    ],
)
def test_an_invalid_url_is_rejected_and_not_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        address_from_environ(url, {})
    assert CANARY not in str(caught.value)
    assert CANARY not in repr(BusAddress(url))


def test_url_credentials_take_precedence_over_the_environment() -> None:
    environ = {"NATS_USER": "other", "NATS_PASSWORD": "other"}
    address = address_from_environ("nats://me:p%40ss%2Fw@h1,nats://me:p%40ss%2Fw@h2:5", environ)
    assert address == BusAddress("nats://h1:4222,nats://h2:5", user="me", password="p@ss/w")
    assert address_from_environ("nats://t0ken@h", environ).token == "t0ken"
    assert address_from_environ("nats://me:un@es/caped@h", {}).password == "un@es/caped"


def test_all_servers_must_have_the_same_login() -> None:
    with pytest.raises(ConfigError, match="same user"):
        address_from_environ("nats://a:b@h1,nats://c:d@h2", {})


def test_login_and_tls_are_read_from_the_environment(tmp_path: Path) -> None:
    nkey, creds, key = (_secret_file(tmp_path / name) for name in ("nkey", "creds", "key"))
    cert = _secret_file(tmp_path / "cert", 0o644)
    assert address_from_environ("h", {"NATS_USER": "u", "NATS_PASSWORD": "p"}).password == "p"
    assert address_from_environ("h", {"NATS_TOKEN": "t", "NATS_NKEY": ""}).token == "t"
    assert address_from_environ("h", {"NATS_NKEY": nkey}).nkey_file == nkey
    assert address_from_environ("h", {"NATS_CREDS": creds}).creds_file == creds
    environ = {"NATS_CA": cert, "NATS_CERT": cert, "NATS_KEY": key, "NATS_TLS_FIRST": "yes"}
    assert address_from_environ("h", environ).tls == TlsSettings(cert, cert, key, handshake_first=True)
    assert address_from_environ("h", {"NATS_TLS_FIRST": "0"}).tls is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NATS_USER": "u"}, "or neither"),
        ({"NATS_PASSWORD": CANARY}, "or neither"),
        ({"NATS_USER": "u", "NATS_PASSWORD": CANARY, "NATS_TOKEN": CANARY}, "NATS_USER and NATS_TOKEN"),
        ({"NATS_NKEY": "/missing"}, "NATS_NKEY: /missing cannot be read"),
        ({"NATS_CA": "/missing"}, "NATS_CA: /missing is not a file"),
        ({"NATS_KEY": "/missing"}, "needs NATS_CERT"),
        ({"NATS_TLS_FIRST": "perhaps"}, "1 or 0"),
    ],
)
def test_contradictory_settings_are_rejected(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        address_from_environ("h", environ)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("name", ["NATS_NKEY", "NATS_CREDS", "NATS_KEY"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_file_readable_by_others_is_rejected(name: str, mode: int, tmp_path: Path) -> None:
    path = _secret_file(tmp_path / "key", mode)
    environ = {name: path} | ({"NATS_CERT": path} if name == "NATS_KEY" else {})
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        address_from_environ("h", environ)


def test_an_invalid_key_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for content in (b"x" * 100_000, b"\xff\xfe"):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(ConfigError):
            address_from_environ("h", {"NATS_NKEY": str(path)})
    with pytest.raises(ConfigError, match="directory"):
        address_from_environ("h", {"NATS_NKEY": str(tmp_path)})
    with pytest.raises(ConfigError, match="regular"):
        address_from_environ("h", {"NATS_NKEY": "/dev/null"})


def test_tls_is_required_when_configured() -> None:
    assert not BusAddress("nats://h").tls_required
    assert BusAddress("nats://h,tls://h2").tls_required
    assert BusAddress("nats://h", tls=TlsSettings()).tls_required


def test_no_representation_contains_secrets() -> None:
    address = BusAddress(f"nats://u:{CANARY}@h,nats://{CANARY}@g", user="u", password=CANARY, token=CANARY)
    for text in (repr(address), str(address), f"{address}", pretty_repr(address), repr([address]), address.display_url):
        assert CANARY not in text
    assert "nats://h:4222" in repr(address)


def test_the_address_of_a_node_is_read_from_its_files(tmp_path: Path) -> None:
    assert address_of_node(tmp_path) is None
    credential, node = tmp_path / "credential.json", tmp_path / "node.json"
    credential.write_text(json.dumps({"user": "u", "password": CANARY}))
    node.write_text(json.dumps({"node": "n", "url": "nats://127.0.0.1:5", "credential_file": str(credential)}))
    with pytest.raises(ConfigError, match="chmod 600"):
        address_of_node(tmp_path)
    node.chmod(0o600)
    credential.chmod(0o600)
    assert address_of_node(tmp_path) == BusAddress("nats://127.0.0.1:5", user="u", password=CANARY)
    credential.write_text(f'{{"user": "u", "password": ["{CANARY}"]}}')
    with pytest.raises(ConfigError) as caught:
        address_of_node(tmp_path)
    assert CANARY not in str(caught.value)
    node.write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        address_of_node(tmp_path)
