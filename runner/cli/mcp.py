"""``agentgym-runner mcp``: a node as tools for coding agents, by the Model Context Protocol on standard streams.

Only the person who starts it decides whether tools may change anything and whether they return foreign text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from runner import __version__
from runner.cli.arguments import subcommand_parser
from runner.cli.ctl import Ctl, add_node_options, failure_of, node_problem, target_of
from runner.cli.terminal import ascii_json, print_line, reserve_stdout
from runner.client.follow import Follower, FollowItem
from runner.client.node_client import ControlRequestError
from runner.client.target import connected
from runner.client.views import Document
from runner.errors import RunnerError
from runner.util.argument_parser import SafeArgumentParser
from runner.util.json_accessors import as_dict

VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MAX_MESSAGE_BYTES, MAX_ITEMS = 1 << 20, 200
_WHICH = Meta(max_length=64, description="of a batch, battery or episode, or a part of it that no other has; or last")
_ID = ("id", Annotated[str, _WHICH])
_NEW_ID = ("batch_id", Annotated[str | None, Meta(description="a new ULID; it makes the call safe to repeat")], None)
_COUNT = Annotated[int, Meta(ge=1, le=1_000_000)]


class Tool(NamedTuple):
    description: str
    fields: tuple[Any, ...]
    call: Callable[[Ctl], Awaitable[object]]

    def arguments(self, name: str) -> type[msgspec.Struct]:
        return msgspec.defstruct(name, self.fields, forbid_unknown_fields=True, kw_only=True)


async def follow(ctl: Ctl) -> object:
    """Return the items from a cursor on; waits for the first one, or the end."""
    run_id, batch_ids = await ctl.followed()
    items = _FOLLOWED.get(run_id) or _FOLLOWED.setdefault(run_id, _Items())
    if items.task is None:
        items.task = asyncio.create_task(items.collect(Follower(ctl.node, run_id, batch_ids, ctl.quote)))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ctl.options.wait_s):
            while len(items.found) <= ctl.options.cursor and not items.task.done():
                items.changed.clear()
                await items.changed.wait()
    shown = items.found[ctl.options.cursor : ctl.options.cursor + MAX_ITEMS]
    if not shown and items.task.done() and (failure := items.task.exception()) is not None:
        _FOLLOWED.pop(run_id, None)
        raise failure
    cursor = ctl.options.cursor + len(shown)
    return {"items": shown, "cursor": cursor, "ended": items.task.done() and cursor >= len(items.found)}


class _Items:
    def __init__(self) -> None:
        self.found: list[FollowItem] = []
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def collect(self, follower: Follower) -> None:
        try:
            async for item in follower.items():
                self.found.append(item)
                self.changed.set()
        finally:
            self.changed.set()


_FOLLOWED: Final[dict[str, _Items]] = {}
_PLAYED: Final = (
    *((name, str | None, None) for name in ("run", "battery", "agent", "model")),
    *((name, _COUNT, 1) for name in ("repeat", "attempts")),
    ("task_index", Annotated[int, Meta(ge=0)], 0),
    _NEW_ID,
)
_PAGE: Final = (("query", str, ""), ("limit", Annotated[int, Meta(ge=1, le=200)], 50), ("before", str | None, None))
_FROM: Final = (("cursor", Annotated[int, Meta(ge=0)], 0), ("wait_s", Annotated[float, Meta(ge=0, le=30)], 10.0))
READING: Final = {
    "list": Tool("List the batches, newest first, and what the node can play.", (), Ctl.show_list),
    "show": Tool("Show a batch, a battery, or an episode with its last steps.", (_ID, ("steps", int, 5)), Ctl.show),
    "results": Tool("Sum up a batch or battery; its failed episodes come in clusters.", (_ID,), Ctl.results),
    "episodes": Tool("List episodes by a query such as `batch:ID outcome:failure`, newest first.", _PAGE, Ctl.episodes),
    "compare": Tool("Compare two episodes step by step.", (("left", str), ("right", str)), Ctl.compare),
    "follow": Tool("What a run did since a cursor; call again with the new one until `ended`.", (_ID, *_FROM), follow),
}
ORDERS: Final = {
    "submit": Tool("Start batches of the environment `run`, or of a tier (`battery`).", _PLAYED, Ctl.submit),
    "again": Tool("Play a run again, or only its errors.", (_ID, ("errors", bool, False), _NEW_ID), Ctl.again),
    "pause": Tool("Pause a run after the running steps.", (_ID,), lambda ctl: ctl.command("pause")),
    "resume": Tool("Resume what is paused or was interrupted.", (_ID,), lambda ctl: ctl.command("resume")),
    "cancel": Tool("Cancel a run.", (_ID,), lambda ctl: ctl.command("cancel")),
}


class Message(msgspec.Struct):
    """A request, or without an id a notification."""

    method: str
    id: int | float | str | None = None
    params: object = None


async def answer(message: Message, ctl: Ctl, tools: dict[str, Tool]) -> dict[str, Any]:
    """Return the ``result`` or ``error`` of a request."""
    parameters = as_dict(message.params)
    match message.method:
        case "initialize":
            version = parameters.get("protocolVersion")
            info = {"name": "agentgym-runner", "version": __version__}
            known = version if version in VERSIONS else VERSIONS[-1]
            return {"result": {"protocolVersion": known, "capabilities": {"tools": {}}, "serverInfo": info}}
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": [_described(name, tool) for name, tool in tools.items()]}}
        case "tools/call" if (name := str(parameters.get("name"))) in tools:
            document = await _call(name, tools[name], parameters.get("arguments") or {}, ctl)
            text = {"type": "text", "text": ascii_json(document)}
            return {"result": {"content": [text], "isError": not document.ok}}
        case "tools/call":
            return {"error": {"code": -32602, "message": f"unknown tool; there are {', '.join(tools)}"}}
    return {"error": {"code": -32601, "message": "method not found"}}


def _described(name: str, tool: Tool) -> dict[str, Any]:
    _, definitions = msgspec.json.schema_components([tool.arguments(name)])
    return {"name": name, "description": tool.description, "inputSchema": definitions[name]}


async def _call(name: str, tool: Tool, arguments: object, ctl: Ctl) -> Document:
    try:
        given = msgspec.structs.asdict(msgspec.convert(arguments, tool.arguments(name)))
        fixed = {"content": ctl.options.content, "dry_run": False, "all": False}
        result = await tool.call(Ctl(ctl.node, argparse.Namespace(**given | fixed)))
    except (ControlRequestError, RunnerError, msgspec.ValidationError) as exc:
        return Document(command=name, node=ctl.node.name, ok=False, error=failure_of(exc, ctl.quote))
    return Document(command=name, node=ctl.node.name, ok=True, result=result)


def main_mcp(argv: Sequence[str]) -> int:
    parser = mcp_parser()
    options = parser.parse_args(argv)
    if problem := node_problem(options):
        parser.error(problem)
    asyncio.run(_serve(options))
    return 0


def mcp_parser() -> SafeArgumentParser:
    parser = subcommand_parser("mcp", "Serve a node's runs and episodes as tools of the Model Context Protocol.")
    add_node_options(parser, changes=False, json="")
    parser.add_argument("--allow-orders", action="store_true", help="add tools that start, pause and cancel runs")
    return parser


def main_skill(argv: Sequence[str]) -> int:
    skill_parser().parse_args(argv)
    print_line(files("runner").joinpath("SKILL.md").read_text("utf-8").rstrip())
    return 0


def skill_parser() -> SafeArgumentParser:
    return subcommand_parser("skill", "Print SKILL.md, with which coding agents use these commands.")


async def _serve(options: argparse.Namespace) -> None:
    """Answer JSON messages, one per line, until standard input ends; nothing else is written to standard output."""
    output, reader = reserve_stdout(), asyncio.StreamReader(MAX_MESSAGE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tools = READING | (ORDERS if options.allow_orders else {})
    running: dict[object, asyncio.Task[None]] = {}

    async def reply(message: Message, ctl: Ctl) -> None:
        try:
            result = await answer(message, ctl, tools)
        finally:
            running.pop(message.id, None)
        output.write(json.dumps({"jsonrpc": "2.0", "id": message.id, **result}) + "\n")
        output.flush()

    async with connected(target_of(options), starts=options.allow_orders) as node, asyncio.TaskGroup() as tasks:
        ctl = Ctl(node, options)
        while not reader.at_eof():
            with contextlib.suppress(ValueError, RecursionError):  # what is too long or no message is left out
                message = msgspec.json.decode(await reader.readline(), type=Message)
                if message.id is not None:
                    running[message.id] = tasks.create_task(reply(message, ctl))
                elif message.method == "notifications/cancelled":
                    cancelled = msgspec.convert(as_dict(message.params).get("requestId"), int | float | str)
                    if (task := running.get(cancelled)) is not None:
                        task.cancel()
