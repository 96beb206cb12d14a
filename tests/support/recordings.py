"""Recorded exchanges with AgentGym's own servers, from an optional folder beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

RECORDINGS_FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "agentgym-wire"
CHANGED_BABYAI_TASKS = {3, 43, 203, 243, 283}
"""Tasks of GoToObjS6 in the recorded episodes, drawn differently since minigrid 3.2."""


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


def load_recording(name: str) -> list[Exchange]:
    """Return the exchanges of a recording; skips the calling test if the folder is missing."""
    if not RECORDINGS_FOLDER.is_dir():
        pytest.skip(f"no recorded exchanges: the folder {RECORDINGS_FOLDER} is missing")
    return [_exchange(json.loads(line)) for line in (RECORDINGS_FOLDER / name).read_text("utf-8").splitlines()]


def load_babyai_episodes(name: str) -> list[dict[str, Any]]:
    """Return the recorded episodes of a file, without ``CHANGED_BABYAI_TASKS``; skips the test if it is missing."""
    path = RECORDINGS_FOLDER / name
    if not path.is_file():
        pytest.skip(f"no recorded episodes: {path} is missing")
    episodes = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [episode for episode in episodes if episode["data_idx"] not in CHANGED_BABYAI_TASKS]


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
