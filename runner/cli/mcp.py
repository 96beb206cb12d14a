"""``agentgym-runner mcp``: a node as tools, by MCP on standard streams; only who starts it allows orders and texts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from runner import __version__
from runner.cli.arguments import subcommand_parser
from runner.cli.ctl import COMMANDS, Ctl, Verb, add_node_options, failure_of, target_of
from runner.cli.terminal import ascii_json, reserve_stdout
from runner.client.follow import Follower, FollowItem
from runner.client.node_client import ControlRequestError
from runner.client.target import connected
from runner.client.views import Document
from runner.errors import RunnerError

VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MAX_MESSAGE_BYTES, MAX_ITEMS = 1 << 20, 200
_ID = ("id", Annotated[str, Meta(max_length=64, description="of a batch, battery or episode, a part of it, or `last`")])
_NEW_ID = ("batch_id", Annotated[str | None, Meta(description="a new ULID; it makes the call safe to repeat")], None)
_COUNT, _INDEX = Annotated[int, Meta(ge=1, le=1_000_000)], Annotated[int, Meta(ge=0)]
_NAMES = tuple((name, str | None, None) for name in ("run", "battery", "agent", "model"))
_PLAYED = (*_NAMES, ("repeat", _COUNT, 1), ("attempts", _COUNT, 1), ("task_index", _INDEX, 0), _NEW_ID)
_PAGE = (("query", str, ""), ("limit", Annotated[int, Meta(ge=1, le=200)], 50), ("before", str | None, None))
_FROM = (("cursor", _INDEX, 0), ("wait_s", Annotated[float, Meta(ge=0, le=30)], 10.0))
_Tool: TypeAlias = tuple[Verb, str, type[msgspec.Struct]]
_FOLLOWED: Final[dict[str, _Items]] = {}


class _Items:
    def __init__(self, follower: Follower) -> None:
        self.found, self.changed = list[FollowItem](), asyncio.Event()
        self.task = asyncio.create_task(self._collect(follower))
        self.task.add_done_callback(lambda _: self.changed.set())

    async def _collect(self, follower: Follower) -> None:
        async for item in follower.items():
            self.found.append(item)
            self.changed.set()


async def follow(ctl: Ctl) -> object:
    """Return the items from a cursor on; waits for the first one, or the end."""
    run_id, batch_ids = await ctl.followed()
    items = _FOLLOWED.get(run_id) or _FOLLOWED.setdefault(run_id, _Items(Follower(ctl.node, run_id, batch_ids)))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ctl.options.wait_s):
            while len(items.found) <= ctl.options.cursor and not items.task.done():
                items.changed.clear()
                await items.changed.wait()
    shown = items.found[ctl.options.cursor : ctl.options.cursor + MAX_ITEMS]
    if ended := items.task.done() and not shown:
        _FOLLOWED.pop(run_id, items).task.result()  # raises why it could not be followed to its end
    return {"items": shown, "cursor": ctl.options.cursor + len(shown), "ended": ended}


READING: Final[dict[str, tuple[Verb, str, tuple[Any, ...]]]] = {
    "list": (Ctl.show_list, "List the batches, newest first, and what the node can play.", ()),
    "show": (Ctl.show, "Show a batch, a battery, or an episode with its last steps.", (_ID, ("steps", int, 5))),
    "results": (Ctl.results, "Sum up a batch or battery; its failed episodes come in clusters.", (_ID,)),
    "episodes": (Ctl.episodes, "List episodes by a query such as `batch:ID outcome:failure`.", _PAGE),
    "compare": (Ctl.compare, "Compare two episodes step by step.", (("left", str), ("right", str))),
    "follow": (follow, "What a run did since a cursor; call again with the new one until `ended`.", (_ID, *_FROM)),
}
ORDERS: Final[dict[str, tuple[Verb, str, tuple[Any, ...]]]] = {
    "submit": (Ctl.submit, "Start batches of the environment `run`, or of a tier (`battery`).", _PLAYED),
    "again": (Ctl.again, "Play a run again, or only its errors.", (_ID, ("errors", bool, False), _NEW_ID)),
    "pause": (COMMANDS["pause"], "Pause a run after the running steps.", (_ID,)),
    "resume": (COMMANDS["resume"], "Resume what is paused or was interrupted.", (_ID,)),
    "cancel": (COMMANDS["cancel"], "Cancel a run.", (_ID,)),
}


async def answer(message: object, ctl: Ctl, tools: dict[str, _Tool]) -> dict[str, Any]:
    """Return the ``result`` or ``error`` of a request."""
    match message:
        case {"method": "initialize", "params": {"protocolVersion": version}}:
            info = {"serverInfo": {"name": "agentgym-runner", "version": __version__}, "capabilities": {"tools": {}}}
            return {"result": {"protocolVersion": version if version in VERSIONS else VERSIONS[-1], **info}}
        case {"method": "ping"}:
            return {"result": {}}
        case {"method": "tools/list"}:
            _, shapes = msgspec.json.schema_components([kind for *_, kind in tools.values()])
            listed = [{"name": name, "description": tools[name][1], "inputSchema": shapes[name]} for name in tools]
            return {"result": {"tools": listed}}
        case {"method": "tools/call", "params": {"name": str(name), **others}} if name in tools:
            return {"result": await _call(name, tools[name][0], tools[name][2], others.get("arguments") or {}, ctl)}
        case {"method": "tools/call"}:
            return {"error": {"code": -32602, "message": f"unknown tool; there are {', '.join(tools)}"}}
    return {"error": {"code": -32601, "message": "method not found"}}


async def _call(name: str, verb: Verb, kind: type[msgspec.Struct], given: object, ctl: Ctl) -> dict[str, Any]:
    try:
        arguments = msgspec.structs.asdict(msgspec.convert(given, kind))
        fixed = {"content": ctl.options.content, "dry_run": False, "all": False}
        result = await verb(Ctl(ctl.node, argparse.Namespace(**arguments | fixed)))
        document = Document(command=name, node=ctl.node.name, ok=True, result=result)
    except (ControlRequestError, RunnerError, msgspec.ValidationError) as exc:
        document = Document(command=name, node=ctl.node.name, ok=False, error=failure_of(exc))
    return {"content": [{"type": "text", "text": ascii_json(ctl.quote(document))}], "isError": not document.ok}


def main_mcp(argv: Sequence[str]) -> int:
    try:
        asyncio.run(_serve(mcp_parser().parse_args(argv)))
    except ControlRequestError as exc:
        raise RunnerError(exc.text) from exc
    return 0


def mcp_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser("mcp", "Serve a node's runs and episodes as tools of the Model Context Protocol.")
    add_node_options(parser, changes=False, json="")
    parser.add_argument("--allow-orders", action="store_true", help="add tools that start, pause and cancel runs")
    return parser


async def _serve(options: argparse.Namespace) -> None:
    """Answer JSON messages, one per line, until standard input ends; nothing else is written to standard output."""
    output, reader = reserve_stdout(), asyncio.StreamReader(MAX_MESSAGE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    chosen = READING | (ORDERS if options.allow_orders else {})
    new_kind = partial(msgspec.defstruct, forbid_unknown_fields=True, kw_only=True)
    tools = {name: (verb, text, new_kind(name, fields)) for name, (verb, text, fields) in chosen.items()}
    calls: dict[str, asyncio.Task[None]] = {}

    async def reply(message: dict[str, Any]) -> None:
        result = await answer(message, ctl, tools)
        print(ascii_json({"jsonrpc": "2.0", "id": message["id"], **result}), file=output, flush=True)

    async with connected(target_of(options), starts=options.allow_orders) as node, asyncio.TaskGroup() as tasks:
        ctl = Ctl(node, options)
        while not reader.at_eof():
            with contextlib.suppress(ValueError, RecursionError):  # what is too long or no message is left out
                calls = {n: task for n, task in calls.items() if not task.done()}
                match msgspec.json.decode(await reader.readline()):
                    case {"method": "notifications/cancelled", "params": {"requestId": n}} if repr(n) in calls:
                        calls[repr(n)].cancel()
                    case {"method": str(), "id": int() | str() as n} as message:
                        calls[repr(n)] = tasks.create_task(reply(message))
