"""A server like AgentGym's SQLGym: a fixed number of slots, whose ids it reissues in turn when no slot is free."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.rude_env_server import ReceivedRequest, RudeServer, http_response, json_response, run_rude_server

N_STEPS = 3


class SlotHandler:
    """Plays tasks of ``N_STEPS`` steps in Maze's dialect; the reward of an instance's last step is its task's number.

    Two episodes in one instance therefore see each other's tasks and rewards. There is neither
    ``/close`` nor ``/observation``.

    Attributes:
        tasks: instance id -> task and steps left.
        n_created: number of requests for an instance.
    """

    def __init__(self, n_slots: int) -> None:
        self.tasks: dict[int, tuple[int, int]] = {}
        self.n_created = 0
        self._n_slots = n_slots

    async def __call__(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        operation = request.path.rpartition("/")[2]
        is_known = operation in ("create", "reset", "step")
        writer.write(json_response(self._reply(request)) if is_known else http_response("no", 404))

    def _reply(self, request: ReceivedRequest) -> dict[str, Any]:
        operation, sent = request.path.rpartition("/")[2], request.payload
        if operation == "create":
            self.n_created += 1
            return {"id": (self.n_created - 1) % self._n_slots}
        if operation == "reset":
            self.tasks[sent["id"]] = (sent["game"], N_STEPS)
            return {"observation": f"task {sent['game']}"}
        task, left = self.tasks[sent["id"]]
        self.tasks[sent["id"]] = (task, left - 1)
        return {"observation": f"task {task}", "reward": task if left == 1 else 0, "done": left <= 1}


class QuestionHandler(SlotHandler):
    """Plays tasks of one step in SQLGym's dialect, with ``/observation``; the reward is the number of the slot's task.

    Each reply is delayed, so that requests for one slot overlap. No task starts before one below 1000 and another one
    are there: two runs that have these tasks play at the same time.
    """

    def __init__(self, n_slots: int) -> None:
        super().__init__(n_slots)
        self._runs: set[bool] = set()
        self._have_met = asyncio.Event()

    async def __call__(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(random.uniform(0.0, 0.05))
        path, _, slot = request.path.partition("?env_idx=")
        if path == "/reset":
            self._runs.add(request.payload["item_id"] < 1000)
            if len(self._runs) == 2:
                self._have_met.set()
            await self._have_met.wait()
        if path == "/observation":
            writer.write(json_response(_question(self.tasks[int(slot)][0])))
        elif path == "/":
            writer.write(json_response("ok"))
        else:
            await super().__call__(request, writer)

    def _reply(self, request: ReceivedRequest) -> Any:  # noqa: ANN401 - JSON
        sent = request.payload
        if request.path == "/reset":
            self.tasks[sent["env_idx"]] = (sent["item_id"], 0)
            return [_question(sent["item_id"]), None]
        if request.path == "/step":
            return {"state": "[]", "reward": self.tasks[sent["env_idx"]][0], "done": True, "info": {}}
        return super()._reply(request)["id"]


def _question(task: int) -> str:
    return f"t contains tables such as a.\n\nHow many rows has the answer {task}?"


@contextmanager
def run_slot_server(n_slots: int, kind: type[SlotHandler] = SlotHandler) -> Iterator[tuple[RudeServer, SlotHandler]]:
    """Run a server with this many slots on a free port."""
    with run_rude_server() as server:
        handler = kind(n_slots)
        server.reset(handler)
        yield server, handler
