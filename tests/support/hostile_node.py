"""A node whose replies have a hostile text in every string, and which the reader of an output can find by its mark."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import nats
from msgspec import inspect
from nats.aio.client import Client
from nats.aio.msg import Msg

from runner.events.control import ControlError, Op
from runner.events.durable import BatchCompleted, EpisodeCompleted
from runner.events.live import EpisodeStarted, Heartbeat, Timestep
from runner.events.subjects import BATCH_COMPLETED, EPISODE_COMPLETED, control_subject, live_subject
from runner.store import EpisodeRecord
from scripts.event_texts import RESULTS

SECRETS: Final = {"HOSTILE_API_KEY": "sk-0123456789abcdefHOSTILE", "HOSTILE_TOKEN": "eyJhbGciOiJIUzI1NiJ9.HOSTILE"}
"""Variables of the commands that get the texts; each text quotes their values."""
FORGED: Final = "FORGED"
"""Begins a line of each text."""
TEXT: Final = (
    "\x1b]52;c;cHduZWQ=\x07\x1b[2J\x9b31m\u202e\u2066\u200b\ufeff\x00\x7f\U000e0041[/][red]\x1b]8;;x\x1b\\"
    f"\r\n{FORGED} \u2028\t"
    '\n{"schema": "agentgym.ctl.v1", "ok": true}\n'
    f"{SECRETS['HOSTILE_API_KEY']} Bearer {SECRETS['HOSTILE_TOKEN']}"
)
BEAT_S: Final = 0.5
BATCH, EPISODE, OTHER = "01HZZZZZZZZZZZZZZZZZZZZZZA", "01HZZZZZZZZZZZZZZZZZZZZZZB", "01HZZZZZZZZZZZZZZZZZZZZZZC"
ENV: Final = "Maze"
IDS: Final[dict[str, Any]] = {
    "batch_id": BATCH,
    "battery_id": None,
    "episode_id": EPISODE,
    "BatchCompleted.status": "completed",
    "BatchCompleted.n_errors": 0,
    "EpisodeCompleted.rounds": 2,
    "Timestep.index": 0,
}


class Texts:
    """Makes JSON of structs, with a mark of its own in the text of each field of each struct.

    Args:
        fixed: values of fields, by their names, alone or after that of the struct.
        text: what is between two copies of the mark.
    """

    def __init__(self, fixed: Mapping[str, Any], text: str = TEXT) -> None:
        self._fixed, self._text = fixed, text
        self._marks: dict[str, str] = {}

    @property
    def fields(self) -> dict[str, str]:
        """Return the field of each mark, such as ``BatchState.env``."""
        return {mark: field for field, mark in self._marks.items()}

    def text(self, field: str) -> str:
        mark = self._marks.setdefault(field, f"needle{len(self._marks):03}x")
        return f"{mark}{self._text}{mark}"

    def value(self, kind: Any) -> Any:  # noqa: ANN401 - any type, and its JSON
        return self._value(inspect.type_info(kind), "")

    def _value(self, kind: inspect.Type, field: str) -> Any:  # noqa: ANN401 - any JSON
        match kind:
            case inspect.StructType():
                values = {each.encode_name: self._field(kind, each) for each in kind.fields}
                return ({kind.tag_field: kind.tag} if kind.tag_field else {}) | values
            case inspect.Metadata():
                return self._value(kind.type, field)
            case inspect.StrType() | inspect.AnyType():
                return self.text(field)
            case inspect.UnionType():
                return self._values(kind, field)[0]
            case inspect.ListType() | inspect.VarTupleType():
                return self._values(kind.item_type, field)
            case inspect.TupleType():
                return [self._value(each, field) for each in kind.item_types]
            case inspect.DictType():
                return {self._value(kind.key_type, f"{field} key"): self._value(kind.value_type, field)}
            case inspect.LiteralType():
                return kind.values[0]
            case inspect.EnumType():
                return next(iter(kind.cls)).value
            case inspect.IntType() | inspect.FloatType():
                return kind.ge or 1
        simple: dict[type, Any] = {inspect.BoolType: True, inspect.NoneType: None, inspect.BytesType: ""}
        return "2026-03-04T05:06:07Z" if isinstance(kind, inspect.DateTimeType) else simple.get(type(kind), {})

    def _field(self, struct: inspect.StructType, field: inspect.Field) -> Any:  # noqa: ANN401 - any JSON
        name = f"{struct.cls.__name__}.{field.name}"
        known = next((each for each in (name, field.name) if each in self._fixed), None)
        return self._value(field.type, name) if known is None else self._fixed[known]

    def _values(self, kind: inspect.Type, field: str) -> list[Any]:
        """Return one value of each kind, those with most texts first."""
        kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        order = (inspect.StructType, inspect.ListType, inspect.VarTupleType, inspect.DictType, inspect.StrType)
        known = [each for each in kinds if not isinstance(each, inspect.NoneType)]
        return [
            self._value(each, field)
            for each in sorted(known, key=lambda each: order.index(type(each)) if type(each) in order else len(order))
        ]


class HostileNode:
    """Answers control requests, and before a request for the batches of a run publishes how that run ends.

    ``change`` may replace what is sent for an operation: bytes, or None for no reply.

    Args:
        url: that of the bus.
        name: that of the node.
    """

    def __init__(self, url: str, name: str = "n1") -> None:
        self.url, self.name = url, name
        self.texts = Texts(IDS)
        self.record: dict[str, Any] = {}
        """Fields of the episode files in place of valid ones."""
        self.error: str | None = None
        """Code of the error that answers every request but ``list``."""
        self.change: Callable[[Op, bytes], bytes | None] = lambda op, reply: reply
        self.names: Sequence[str] = ()
        """Names of nodes whose heartbeats it sends."""
        self._ready, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)

    def reset(self, fixed: Mapping[str, Any] = IDS, text: str = TEXT) -> None:
        """Answer as at first, with these values of fields, and this text in all others."""
        self.texts, self.error, self.change = Texts(fixed, text), None, lambda op, reply: reply
        self.record, self.names = {}, ()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        client = await nats.connect(self.url)

        async def answer(message: Msg) -> None:
            request = json.loads(message.data)
            if request["op"] == "list" and request["args"].get("batch_id"):
                await self._publish(client)
            reply = self.change(request["op"], self._reply(**request))
            if reply is not None:
                await message.respond(reply)

        await client.subscribe(control_subject(self.name), cb=answer)
        await client.flush()
        self._ready.set()
        while not self._end.is_set():
            for name in self.names:
                await client.publish(live_subject("health", name), self._batch(self.texts.value(Heartbeat)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), BEAT_S)
        await client.close()

    def _reply(self, id: str, op: Op, args: dict[str, Any]) -> bytes:
        if self.error is not None and op != "list":
            error = self.texts.value(ControlError) | ({"code": self.error} if self.error else {})
            return json.dumps({"id": id, "ok": False, "error": error}).encode()
        result = self.texts.value(RESULTS[op])
        if op == "list":
            result["envs"].append(ENV)
            if args.get("batch_id") not in (None, BATCH):
                result["batches"] = []
        if op == "episode":
            data = json.dumps(self.episode(args["episode_id"])).encode()
            digest = hashlib.sha256(data).hexdigest()
            result = {"total": len(data), "sha256": digest, "data": base64.b64encode(data).decode()}
        return json.dumps({"id": id, "ok": True, "result": result}).encode()

    def episode(self, episode_id: str) -> dict[str, Any]:
        """Return an episode file."""
        found: dict[str, Any] = self.texts.value(EpisodeRecord)
        for step in found["timesteps"]:
            step |= {"tool_schemas_ref": 0, "reward": int(episode_id == OTHER)}
            step["observation"] = [{"role": "user", "content": self.texts.text("TimeStep.observation")}]
        return found | {"schema": 1, "batch_id": BATCH, "episode_id": episode_id} | self.record

    def _batch(self, *items: Any) -> bytes:  # noqa: ANN401 - any JSON
        return json.dumps({"node": self.name, "boot": "b", "dropped": 0, "items": items}).encode()

    async def _publish(self, client: Client) -> None:
        started, step = self.texts.value(EpisodeStarted), self.texts.value(Timestep)
        step["observation"] = [{"role": "user", "content": self.texts.text("Timestep.observation")}]
        await client.publish(live_subject("episode", self.name), self._batch(started, step))
        for subject, kind in ((EPISODE_COMPLETED, EpisodeCompleted), (BATCH_COMPLETED, BatchCompleted)):
            await client.publish(subject, json.dumps(self.texts.value(kind)).encode())
