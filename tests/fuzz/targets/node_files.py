"""Files by which clients find a node: its address, its credential, and the URL of a bus.

The input is the content of ``node.json``, an empty line, and the content of the credential.
"""

from __future__ import annotations

import msgspec

from runner.bus.address import NODE_FILE, BusAddress, address_from_environ, address_of_node
from runner.errors import ConfigError
from tests.fuzz.oracles import SECRET, check_displayable, check_masked, outcome, scratch_folder

TOKENS = (
    b'{"url":"nats://h:4222","credential_file":"@CREDENTIAL@"}',
    b'{"user":"u","password":"p"}',
    b"nats://u:p@h:1,tls://h2",
    b"[::1]",
    b"%00",
    b"@CREDENTIAL@",
    SECRET.encode(),
)
FOLDER = scratch_folder("node_files")
PATH = FOLDER / NODE_FILE
CREDENTIAL = FOLDER / "credential"
for path in (PATH, CREDENTIAL):
    path.touch(mode=0o600)


def check(data: bytes) -> None:
    node, _, credential = data.partition(b"\n\n")
    PATH.write_bytes(node.replace(b"@CREDENTIAL@", str(CREDENTIAL).encode()))
    CREDENTIAL.write_bytes(credential)
    address = outcome(lambda: address_of_node(PATH.parent), ConfigError)
    if isinstance(address, Exception):
        assert SECRET in node.decode("utf-8", "replace") or SECRET not in str(address)  # paths are no secrets
    elif address is not None:
        _check_address(address)
    url = node.decode("utf-8", "surrogateescape")
    other = outcome(lambda: address_from_environ(url, {}), ConfigError)
    if isinstance(other, Exception):
        check_displayable(str(other))
        check_masked(str(other))
    else:
        _check_address(other)


def _check_address(address: BusAddress) -> None:
    secrets = {name: "other" for name in ("password", "token") if getattr(address, name) is not None}
    assert repr(msgspec.structs.replace(address, **secrets)) == repr(address)
    split = outcome(address.with_split_login, ConfigError)
    if isinstance(split, BusAddress):
        assert split.servers and split.with_split_login() == split
        assert split.display_url.isprintable()
        assert all(server.startswith(("nats://", "tls://")) for server in split.servers)
        assert split.display_url.encode()
