"""Recorded exchanges of AgentGym's own servers; they lie beside the checkout, where there are any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "agentgym-wire"


class Exchange(msgspec.Struct, frozen=True):
    """One request to a server and its reply.

    Attributes:
        sent: the decoded JSON of the request, or its text where it was none; empty where it had no body.
        received: the decoded JSON of the reply, or its text where it was none.
        body: the reply's text as it came.
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
        """The last part of the path, or what kind of error the reply is: those are not an environment's texts."""
        if self.status != 200:
            return "http error"
        if isinstance(self.received, dict) and "error" in self.received:
            return "server error"
        return self.path.split("?")[0].rsplit("/", 1)[-1]


def exchanges(name: str) -> list[Exchange]:
    """The exchanges of a recording, in order; skips the calling test where the folder is missing."""
    if not FOLDER.is_dir():
        pytest.skip(f"no recorded exchanges: the folder {FOLDER} is missing")
    return [_exchange(json.loads(line)) for line in (FOLDER / name).read_text("utf-8").splitlines()]


def _exchange(row: dict[str, Any]) -> Exchange:
    request, response = row["request"], row["response"]
    sent, kind, body = request["body"], response["headers"]["content-type"], response["body"]
    return Exchange(
        method=request["method"],
        path=request["path"],
        sent=_decoded(sent) if sent else {},
        status=response["status"],
        content_type=kind,
        received=_decoded(body),
        body=body,
    )


def _decoded(text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except ValueError:
        return text
