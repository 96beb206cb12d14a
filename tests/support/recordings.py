"""Exchanges and episodes recorded on AgentGym's own servers; ``tests/recordings/README.md`` describes each file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parents[1] / "recordings"


class Exchange(msgspec.Struct, frozen=True):
    """One request to a server and its response.

    Attributes:
        sent: decoded JSON of the request, its text if it is not JSON, or an empty mapping without a body.
        received: decoded JSON of the response, or its text if it is not JSON.
        body: text of the response.
    """

    method: str
    path: str
    sent: Any
    status: int
    content_type: str
    received: Any
    body: str

    @property
    def kind(self) -> str:
        """Last part of the path, or the kind of error: error texts are not the environment's."""
        if self.status != 200:
            return "http error"
        if isinstance(self.received, dict) and "error" in self.received:
            return "server error"
        return self.path.split("?")[0].rsplit("/", 1)[-1]


def load_rows(name: str) -> list[dict[str, Any]]:
    """Return the decoded lines of a recording, for example ``maze.jsonl``."""
    with gzip.open(FOLDER / f"{name}.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def load_recording(name: str) -> list[Exchange]:
    return [_exchange(row) for row in load_rows(name)]


def _exchange(row: dict[str, Any]) -> Exchange:
    request, response = row["request"], row["response"]
    sent, kind, body = request["body"], response["headers"]["content-type"], response["body"]
    return Exchange(
        method=request["method"],
        path=request["path"],
        sent=_decode(sent) if sent else {},
        status=response["status"],
        content_type=kind,
        received=_decode(body),
        body=body,
    )


def _decode(text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except ValueError:
        return text
