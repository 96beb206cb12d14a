"""Replay of recorded requests against a server of this project; instance ids are translated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import httpx
import msgspec

from tests.support.recordings import load_rows


class RawExchange(msgspec.Struct, frozen=True):
    """One exchange with the request body as sent; ``received`` is decoded if it is JSON."""

    note: str
    method: str
    path: str
    body: str | None
    status: int
    received: Any

    @property
    def sent(self) -> dict[str, Any]:
        """Fields of the body; empty if it is not a JSON object."""
        try:
            return dict(json.loads(self.body or "{}"))
        except ValueError:
            return {}


def load_exchanges(name: str) -> list[RawExchange]:
    return [_recorded(row) for row in load_rows(name)]


def _recorded(row: dict[str, Any]) -> RawExchange:
    request, response = row["request"], row["response"]
    is_json = response["headers"]["content-type"] == "application/json"
    received = json.loads(response["body"]) if is_json else response["body"]
    return RawExchange(
        row["note"] or "", request["method"], request["path"], request["body"], response["status"], received
    )


class Replay:
    """Sends recorded requests to a server with that server's instance ids."""

    def __init__(self, client: httpx.Client, key: str = "id", create: str = "/create") -> None:
        self.client = client
        self.ids: dict[int, int] = {}
        self._key = key
        self._create = create

    def open(self, recorded_id: int) -> None:
        """Create an instance for one that was created before the recording began."""
        created = self.client.post(self._create, json={}).json()
        self.ids[recorded_id] = created if isinstance(created, int) else created["id"]

    def send(self, exchange: RawExchange) -> Any:  # noqa: ANN401
        """Return the response with recorded ids and without fields that only this project sends; check the status."""
        body = exchange.sent
        if (recorded_id := body.get(self._key)) is not None:
            body[self._key] = type(recorded_id)(self.ids.get(int(recorded_id), int(recorded_id)))
        path = re.sub(rf"(?<={self._key}=)\d+", lambda match: str(self.ids.get(int(match[0]), match[0])), exchange.path)
        content = json.dumps(body) if body else exchange.body
        headers = {"content-type": "application/json"} if content is not None else {}
        response = self.client.request(exchange.method, path, content=content, headers=headers)
        assert response.status_code == exchange.status, (exchange, response.text)
        if exchange.status == 422:  # the texts of FastAPI are not imitated
            assert all(isinstance(problem["msg"], str) for problem in response.json()["detail"])
            return exchange.received
        received = response.json() if response.headers["content-type"] == "application/json" else response.text
        return self._with_recorded_ids(exchange, received)

    def _with_recorded_ids(self, exchange: RawExchange, received: Any) -> Any:  # noqa: ANN401
        if exchange.path == self._create and exchange.status == 200:
            own_id = received if isinstance(received, int) else received["id"]
            recorded_id = exchange.received if isinstance(received, int) else exchange.received["id"]
            self.ids[recorded_id] = own_id
        recorded_ids = {str(own_id): str(recorded_id) for recorded_id, own_id in self.ids.items()}
        match received:
            case bool():
                return received
            case int():
                return int(recorded_ids[str(received)])
            case {"error": str() as text}:
                return {"error": re.sub(r"\b\d+\b", lambda match: recorded_ids.get(match[0], match[0]), text)}
            case dict():
                if self._key in received:
                    received[self._key] = int(recorded_ids[str(received[self._key])])
                received.pop("truncated", None)
        return received


Compare: TypeAlias = Callable[[Replay, RawExchange], bool]
"""Handles an exchange that needs a special comparison; returns False for all others."""


def replay_all(
    client: httpx.Client,
    exchanges: list[RawExchange],
    special: Compare,
    *,
    key: str = "id",
    create: str = "/create",
    created: Iterable[int] = (),
) -> None:
    """Replay all exchanges; ``created`` are ids from before the recording began."""
    replay = Replay(client, key, create)
    for recorded_id in created:
        replay.open(recorded_id)
    for exchange in exchanges:
        if not special(replay, exchange):
            assert replay.send(exchange) == exchange.received, exchange
