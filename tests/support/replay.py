"""Sends recorded requests to a server of ours; its ids are not those of the recording, so they are translated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import httpx
import msgspec
import pytest

from tests.support.recordings import FOLDER


class Recorded(msgspec.Struct, frozen=True):
    """One exchange, the request as it was sent; ``received`` is decoded where it is JSON."""

    note: str
    method: str
    path: str
    body: str | None
    status: int
    received: Any

    @property
    def sent(self) -> dict[str, Any]:
        """The fields of the body, none where it is no JSON object."""
        try:
            return dict(json.loads(self.body or "{}"))
        except ValueError:
            return {}


def recorded(name: str) -> list[Recorded]:
    if not FOLDER.is_dir():
        pytest.skip(f"no recorded exchanges: the folder {FOLDER} is missing")
    return [_recorded(json.loads(line)) for line in (FOLDER / name).read_text("utf-8").splitlines()]


def _recorded(row: dict[str, Any]) -> Recorded:
    request, response = row["request"], row["response"]
    is_json = response["headers"]["content-type"] == "application/json"
    received = json.loads(response["body"]) if is_json else response["body"]
    return Recorded(
        row["note"] or "", request["method"], request["path"], request["body"], response["status"], received
    )


class Replay:
    """Sends recorded requests to a server of ours, in the words of its ids."""

    def __init__(self, client: httpx.Client, key: str = "id", create: str = "/create") -> None:
        self.client = client
        self.ids: dict[int, int] = {}
        self._key = key
        self._create = create

    def open(self, theirs: int) -> None:
        """Have an instance for one that was created before the recording began."""
        created = self.client.post(self._create, json={}).json()
        self.ids[theirs] = created if isinstance(created, int) else created["id"]

    def send(self, exchange: Recorded) -> Any:  # noqa: ANN401
        """Our reply as theirs would be: with their ids and without what only ours has; the status has to agree."""
        body = exchange.sent
        if (theirs := body.get(self._key)) is not None:
            body[self._key] = type(theirs)(self.ids.get(int(theirs), int(theirs)))
        path = re.sub(rf"(?<={self._key}=)\d+", lambda match: str(self.ids.get(int(match[0]), match[0])), exchange.path)
        content = json.dumps(body) if body else exchange.body
        headers = {"content-type": "application/json"} if content is not None else {}
        reply = self.client.request(exchange.method, path, content=content, headers=headers)
        assert reply.status_code == exchange.status, (exchange, reply.text)
        received = reply.json() if reply.headers["content-type"] == "application/json" else reply.text
        return self._as_theirs(exchange, received)

    def _as_theirs(self, exchange: Recorded, received: Any) -> Any:  # noqa: ANN401
        if exchange.path == self._create and exchange.status == 200:
            ours = received if isinstance(received, int) else received["id"]
            theirs = exchange.received if isinstance(received, int) else exchange.received["id"]
            self.ids[theirs] = ours
        back = {str(ours): str(theirs) for theirs, ours in self.ids.items()}
        match received:
            case bool():
                return received
            case int():
                return int(back[str(received)])
            case {"error": str() as text}:
                return {"error": re.sub(r"\b\d+\b", lambda match: back.get(match[0], match[0]), text)}
            case {"detail": [*problems]}:
                for problem in problems:
                    self._rename(problem["input"], back)
            case dict():
                self._rename(received, back)
        if isinstance(received, dict):
            received.pop("truncated", None)
        return received

    def _rename(self, value: object, back: dict[str, str]) -> None:
        if isinstance(value, dict) and self._key in value:
            value[self._key] = int(back[str(value[self._key])])


Compare: TypeAlias = Callable[[Replay, Recorded], bool]
"""Sends an exchange and compares the reply, for exchanges that need more than that; False: it is not one of them."""


def replayed(
    client: httpx.Client,
    exchanges: list[Recorded],
    special: Compare,
    *,
    key: str = "id",
    create: str = "/create",
    created: Iterable[int] = (),
) -> None:
    """Send them all; ``created`` are ids from before the recording began."""
    replay = Replay(client, key, create)
    for theirs in created:
        replay.open(theirs)
    for exchange in exchanges:
        if not special(replay, exchange):
            assert replay.send(exchange) == exchange.received, exchange
