"""A slow environment server that records every reset and step before it answers.

python -m tests.history.logged_server NAME ENV --log FILE [--delay SEC]; it prints its address when it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import randrange
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.serve.env_api import DIALECTS, PoolOptions, environment_app
from runner.serve.host import Site, run_apps
from tests.history.records import Recorder, Reset, Step

STEP_COST = 0.0137
_MAX_OPEN, _IDLE_S, _THREADS = 256, 600.0, 4


class RecordedApp:
    """An application whose successful resets and steps are recorded; every answer is delayed."""

    def __init__(self, app: ASGIApp, server: str, env: str, recorder: Recorder, delay_s: float) -> None:
        self._app = app
        self._server = server
        self._dialect = DIALECTS[env]
        self._recorder = recorder
        self._delay_s = delay_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = scope.get("path", "").rpartition("/")[2]
        if operation not in ("reset", "step"):
            await self._app(scope, receive, send)
            return
        await asyncio.sleep(self._delay_s)
        body = await _read_body(receive)
        sent: list[Message] = []

        async def replay() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def keep(message: Message) -> None:
            sent.append(message)

        await self._app(scope, replay, keep)
        reply_body = _with_step_cost(b"".join(message.get("body", b"") for message in sent))
        self._record(operation, body, reply_body)
        start, *_ = sent
        headers = [each for each in start["headers"] if each[0].lower() != b"content-length"]
        await send({**start, "headers": [*headers, (b"content-length", str(len(reply_body)).encode())]})
        await send({"type": "http.response.body", "body": reply_body})

    def _record(self, operation: str, body: bytes, reply_body: bytes) -> None:
        request, reply = _decode(body), _decode(reply_body)
        if "observation" not in reply:  # a rejected request
            return
        instance = str(request[self._dialect.id_field])
        if operation == "reset":
            task_index = request[self._dialect.task_field]
            text = reply["observation"]
            self._recorder.write(Reset(server=self._server, instance=instance, task_index=task_index, observation=text))
        else:
            names = ("observation", "reward", "done", "truncated")
            fields = {name: reply[name] for name in names}
            self._recorder.write(Step(server=self._server, instance=instance, action=request["action"], **fields))


def _with_step_cost(reply_body: bytes) -> bytes:
    """Lower the reward of a step, which is 0 or 1 otherwise, so that a rounded or reordered reward shows."""
    reply = _decode(reply_body)
    if "reward" not in reply or "observation" not in reply:
        return reply_body
    return json.dumps(reply | {"reward": reply["reward"] - STEP_COST}).encode()


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        decoded = json.loads(body)
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _print_ready(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("env", choices=DIALECTS)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay", type=float, default=0.03, help="seconds before each answer")
    options = parser.parse_args(arguments)
    with ThreadPoolExecutor(_THREADS) as executor:
        first_id = randrange(2**31)  # so that no two starts use the same id
        app = environment_app(options.env, "strict", PoolOptions(executor, _MAX_OPEN, _IDLE_S, first_id))
        recorded = RecordedApp(app.application(), options.name, options.env, Recorder(options.log), options.delay)
        run_apps([Site(recorded, "127.0.0.1", options.port, app.description)], on_ready=_print_ready)


if __name__ == "__main__":
    main(sys.argv[1:])
