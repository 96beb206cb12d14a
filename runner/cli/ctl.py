"""``agentgym-runner ctl``: drive a running node from a script, a shell or a coding agent."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import structs

from runner.bus.errors import BusError
from runner.cli.arguments import (
    Options,
    add_bus_option,
    add_change_options,
    add_run_options,
    add_state_options,
    at_least,
    option_name,
    run_problem,
    subcommand_parser,
)
from runner.cli.query_arguments import add_query_argument, protect_negations
from runner.cli.terminal import ascii_json, output_stream, print_stderr, print_table, print_text
from runner.client.follow import ENDED, BatchItem, Follower, GapItem, Shown, episode_details
from runner.client.node_client import ControlRequestError, NodeClient, RunCommand
from runner.client.node_folder import LaunchOptions, NodeStartError
from runner.client.ssh import SshError, parse_ssh_url
from runner.client.target import ConnectedNode, Target, connected, find_nodes, is_stopped
from runner.client.views import (
    MAX_QUOTED_CHARS,
    Document,
    EpisodeList,
    Failure,
    Fleet,
    HealthView,
    NodeEntry,
    Order,
    Quotes,
    ServerView,
    compared,
    health_view,
)
from runner.errors import ConfigError, RunnerError, StoreError
from runner.events.control import (
    ERRORS,
    BatchState,
    EpisodesArgs,
    ExtendArgs,
    LogLines,
    LogsArgs,
    NodeList,
    ReplayArgs,
    RunResults,
    SetArgs,
    StartArgs,
)
from runner.results.alignment import AlignedEpisodes
from runner.store.episode_file import decode_episode, shared_fields
from runner.types import Budget
from runner.util.argument_parser import SafeArgumentParser, suggestion
from runner.util.clock import is_ulid, new_ulid
from runner.util.display_text import one_line

MIN_EPISODE_CHARS: Final = 4
MAX_NAMED_CHARS: Final = 150  # of the ids that the message about an ambiguous one names
MAX_STEPS: Final = 5  # of an episode that ``show`` prints, unless another number is given
MAX_LINE_CHARS: Final = 400  # of a line of ``follow``
_WITHHELD: Final[dict[type[Exception], tuple[str, str]]] = {
    NodeStartError: ("unreachable", "the node could not be started"),
    SshError: ("unreachable", "the node cannot be reached by ssh"),
    StoreError: ("invalid", "a file cannot be read"),
}
"""Codes and messages of errors that quote what others wrote."""
_SHOWN: Final = "--content shows the reason"
_REFUSED: Final = ("script", "endpoint", "key_env", "tracing", "compat")
_SETTINGS: Final = attrgetter(
    "n_planned", "concurrency", "workers", "limits", "budget", "requests_per_minute", "concurrent_requests"
)

EPILOG = """The node is that of the state directory, or with --nats that of another bus, with the credentials of the
variables NATS_USER and NATS_PASSWORD, NATS_TOKEN, NATS_NKEY or NATS_CREDS (files). An ID is that of a batch, a battery
or an episode, or a beginning or an end of it that no other has; the word `last` is the newest batch or battery.
Exit codes: 0 done, 1 the node refused or did not answer, 2 invalid usage; those of a run after --wait, --follow and
follow."""


class Ctl:
    """The commands, with the node that they talk to."""

    def __init__(self, node: ConnectedNode, options: argparse.Namespace) -> None:
        self.node, self.options = node, options
        self.client: NodeClient = node.client
        self.quote = Quotes(content=options.content)

    def document(self, command: str, result: object) -> dict[str, Any]:
        document: dict[str, Any] = self.quote(
            Document(command=command, node=self.node.name or None, ok=True, result=result)
        )
        return document

    async def show_list(self) -> NodeList:
        return await self.client.fetch_list()

    async def nodes(self) -> Fleet:
        found = await find_nodes(self.node.connection)
        played = await asyncio.gather(*map(self._played, found))
        entries = zip(found.items(), played, strict=True)
        return Fleet(nodes=[NodeEntry(node=name, **structs.asdict(each), **batch) for (name, each), batch in entries])

    async def _played(self, node: str) -> dict[str, Any]:
        batches: list[BatchState] = []
        with contextlib.suppress(ControlRequestError):
            batches = (await NodeClient(lambda: self.node.connection, lambda _: node).fetch_list()).batches
        batch = next((each for each in batches if each.status in ("running", "paused")), None)
        return {name: getattr(batch, name, None) for name in ("batch_id", "env", "n_done", "n_planned")}

    async def health(self) -> HealthView:
        return health_view(await self.client.fetch_health())

    async def env(self) -> ServerView:
        starts = self.options.action == "start"
        if self.options.dry_run:
            env = _known(self.options.env, (await self.client.fetch_list()).envs, "environment")
            return ServerView(env=env, status="starting" if starts else "stopped", cause=None, dry_run=True)
        change = self.client.start_server if starts else self.client.stop_server
        return ServerView(**shared_fields(await change(self.options.env), ServerView))

    async def _find(self, *, episodes: bool = False) -> tuple[str, list[BatchState]]:
        """Return the id that the options name and its batches; none for an ``episode``, which may be shortened, too."""
        text, listed = self.options.id, await self.client.fetch_list()
        try:
            run_id, batches = find_batches(listed, text, but=vars(self.options).get("batch_id"))
        except ControlRequestError as exc:
            if exc.code == "not_found" and episodes and (found := await self._find_episode(text)) is not None:
                return found, []
            raise
        batches = batches or (await self.client.fetch_list(run_id)).batches  # older than those that are listed
        if not batches and not episodes:
            raise ControlRequestError(f"no batch has the id {run_id}", "list shows what there is", "not_found")
        return run_id, batches

    async def _find_episode(self, text: str) -> str | None:
        """Return the id of the episode that a part of it names; None if there is none."""
        if is_ulid(text.upper()):
            return text.upper()
        if not text.isalnum() or len(text) < MIN_EPISODE_CHARS:
            return None
        args = EpisodesArgs(query=f"id:{text.upper()}* OR id:*{text.upper()}", limit=2)
        found = [each.episode_id for each in await self.client.fetch_episodes(args)]
        if len(found) > 1:
            hint = "give more of the id"
            raise ControlRequestError(f"{one_line(text)} names several episodes", hint, "ambiguous")
        return found[0] if found else None

    async def show(self) -> Shown:
        run_id, batches = await self._find(episodes=True)
        if batches:
            return Shown(batches=batches, episode=None)
        data = await self.client.fetch_episode(run_id)
        return Shown(batches=[], episode=episode_details(data, run_id, self.options.steps))

    async def results(self) -> RunResults:
        run_id, _ = await self._find()
        return await self.client.fetch_results(run_id)

    async def episodes(self) -> EpisodeList:
        options = self.options
        args = EpisodesArgs(query=options.query, limit=options.limit, before=options.before)
        return EpisodeList(episodes=await self.client.fetch_episodes(args))

    async def logs(self) -> LogLines:
        return await self.client.fetch_logs(LogsArgs(log=self.options.log, n_lines=self.options.lines))

    async def compare(self) -> AlignedEpisodes:
        ids = [await self._find_episode(each) or each.upper() for each in (self.options.left, self.options.right)]
        left, right = [
            decode_episode(await self.client.fetch_episode(each), Path(f"{each}.json"), was_moved=True) for each in ids
        ]
        return compared(left, right)

    async def command(self, name: RunCommand) -> Order:
        """Pause, resume, step or cancel; what is so already is no failure."""
        if self.options.all:
            targets, send = (await self.client.fetch_list()).batches, partial(self.client.command_all, name)
        else:
            run_id, targets = await self._find(episodes=True)
            kind = "batch_id" if targets else "episode_id"
            send = partial(self.client.command, name, **{kind: run_id})
        concerned = [each for each in targets if _may(name, each, everything=self.options.all)]
        if self.options.dry_run:
            return Order(batches=concerned, changed=False, dry_run=True)
        try:
            await send()
        except ControlRequestError as exc:
            goes_on = [not _is_paused(each) for each in targets if each.status not in ENDED]
            is_so = name == "cancel" or self.options.all or (name != "step" and (name == "resume") in goes_on)
            if exc.code == "not_found" and name == "cancel":  # the episode does not run
                is_so = bool(await self.client.fetch_episodes(EpisodesArgs(query=f"id:{run_id}", limit=1)))
            if exc.code not in ("not_running", "not_found") or not is_so:
                raise
            return Order(batches=targets, changed=False)
        after = await self._after(targets)
        after.changed = name == "step" or not targets or bool(concerned)
        return after

    async def move(self) -> Order:
        run_id, batches = await self._find()
        if not self.options.dry_run:
            await self.client.move(run_id, self.options.to)
        return await self._after(batches)

    async def set(self) -> Order:
        given = {"max_duration_sec": self.options.max_duration, "budget": _budget(self.options)}
        return await self._change(SetArgs, vars(self.options) | given, self.client.set)

    async def extend(self) -> Order:
        return await self._change(ExtendArgs, vars(self.options), self.client.extend)

    async def _change(
        self,
        kind: type[SetArgs | ExtendArgs],
        given: dict[str, Any],
        send: Callable[[Any], Awaitable[list[BatchState]]],
    ) -> Order:
        """Send a change of a run; ``changed`` is whether its batches were planned and set otherwise before."""
        run_id, batches = await self._find()
        fields: dict[str, Any] = {name: given.get(name) for name in kind.__struct_fields__}
        args = kind(**fields | {"batch_id": run_id})
        if args == kind(batch_id=run_id, dry_run=self.options.dry_run):
            raise ConfigError("give at least one option of what is to be changed")
        listed = (*(await self.client.fetch_list()).batches, *batches)
        before = {batch.batch_id: _SETTINGS(batch) for batch in listed}
        after = await send(args)
        old = [before.get(batch.batch_id, (0,)) for batch in after]
        n_episodes = sum(batch.n_planned for batch in after) - sum(n_planned for n_planned, *_ in old)
        changed = list(map(_SETTINGS, after)) != old and not args.dry_run
        return Order(batches=after, changed=changed, n_episodes=n_episodes, dry_run=args.dry_run)

    async def stop(self) -> Order:
        listed, is_dry = await self.client.fetch_list(), self.options.dry_run
        changes = not is_dry and (await self.client.fetch_health()).status != "stopping"
        if not is_dry:
            await self.client.shutdown(drain=self.options.drain)
        left = [batch for batch in listed.batches if batch.status not in ENDED]
        return Order(batches=left, changed=changes, dry_run=is_dry)

    async def again(self) -> Order:
        run_id, batches = await self._find()
        new_id = self.options.batch_id or new_ulid()
        if self.options.dry_run:
            n_episodes = sum(batch.n_planned for batch in batches)
            if self.options.errors:
                n_episodes = sum(row.n_errors for row in (await self.client.fetch_results(run_id)).rows)
            return Order(batches=batches, changed=False, dry_run=True, n_episodes=n_episodes)
        only: Literal["errors", "all"] = "errors" if self.options.errors else "all"
        args = ReplayArgs(batch_id=run_id, only=only, new_batch_id=new_id)
        return await self._started(new_id, partial(self.client.replay, args))

    async def submit(self) -> Order:
        args = start_args(self.options, await self.client.fetch_list())
        if self.options.dry_run:
            n_tasks = sum(map(len, args.tasks.values())) if args.tasks else args.repeat * len(args.envs)
            n_episodes = n_tasks * args.attempts * max(len(args.models), 1)
            return Order(batches=[], changed=False, dry_run=True, n_episodes=n_episodes)
        return await self._started(args.batch_id, partial(self.client.start, args))

    async def _started(self, batch_id: str, start: Callable[[], Awaitable[list[BatchState]]]) -> Order:
        known = self.options.batch_id and (await self.client.fetch_list(batch_id)).batches
        try:
            started = await start()
        except ControlRequestError as exc:
            if not exc.code:  # the request may have arrived
                exc.hint = "; ".join(filter(None, (exc.hint, f"repeat the command with --batch-id {batch_id}")))
            raise
        return Order(batches=started, changed=not known, n_episodes=sum(batch.n_planned for batch in started))

    async def followed(self) -> tuple[str, list[str]]:
        run_id, batches = await self._find()
        return run_id, [batch.batch_id for batch in batches]

    async def _after(self, batches: Sequence[BatchState]) -> Order:
        """Return an order for these batches, as they are now."""
        is_dry = self.options.dry_run
        now = {batch.batch_id: batch for batch in (await self.client.fetch_list()).batches}
        return Order(batches=[now.get(each.batch_id, each) for each in batches], changed=not is_dry, dry_run=is_dry)


Verb: TypeAlias = Callable[[Ctl], Awaitable[Any]]
COMMANDS: Final[dict[str, Verb]] = {name: partial(Ctl.command, name=name) for name in get_args(RunCommand)}


def find_batches(listed: NodeList, text: str, but: str | None = None) -> tuple[str, list[BatchState]]:
    """Return the id that a text names, and the batches that have it; none for that of an episode.

    ``last`` names the newest ``but`` one, which a repeated command has started before.
    Raises ``ControlRequestError`` if it names nothing, or several.
    """
    if text == "last":
        runs = {batch.battery_id or batch.batch_id for batch in listed.batches} - {but}
        if not runs:
            raise ControlRequestError("the node has no batch yet", "start one with submit", "not_found")
        text = max(runs)
    part = text.upper()
    ids = dict.fromkeys(each for batch in listed.batches for each in (batch.battery_id, batch.batch_id) if each)
    found = (
        [part] if part in ids else [each for each in ids if part and part in (each[: len(part)], each[-len(part) :])]
    )
    if len(found) > 1:
        names = one_line(", ".join(found), MAX_NAMED_CHARS)
        raise ControlRequestError(f"{one_line(text)} names several: {names}", "give more of the id", "ambiguous")
    if found:
        return found[0], [batch for batch in listed.batches if found[0] in (batch.batch_id, batch.battery_id)]
    if is_ulid(part):
        return part, []
    raise ControlRequestError(f"no batch has an id with {one_line(text)}", "list shows what there is", "not_found")


def _is_paused(batch: BatchState) -> bool:
    return batch.paused or batch.status == "paused"


def _may(name: RunCommand, batch: BatchState, *, everything: bool) -> bool:
    """Return whether a command concerns a batch; one for everything leaves what is interrupted."""
    if batch.status == "interrupted":
        return name in ("resume", "cancel") and not everything
    if name == "resume":
        return _is_paused(batch)
    return batch.status not in ENDED and not (name == "pause" and _is_paused(batch))


def start_args(options: argparse.Namespace, listed: NodeList) -> StartArgs:
    """Return the request of ``submit``, whose names the node has.

    Raises ``ControlRequestError`` for a name that it does not have, ``StoreError``, which may quote it, for a file.
    """
    given = Options(**{k: value for k, value in vars(options).items() if k in Options._fields and value is not None})
    tiers = listed.batteries | {"all": listed.envs}
    envs = [_known(given.run, listed.envs, "environment")] if given.run else tiers.get(given.battery or "", [])
    if not envs:
        text = f"the node has no environment of the tier {given.battery}" if given.battery else "nothing is to be run"
        raise ControlRequestError(text, "name an environment, or one of list's batteries", "invalid")
    tasks: dict[str, list[int]] = {}
    if given.tasks is not None:
        from runner.formats.task_files import read_tasks

        try:
            found = read_tasks(given.tasks, given.run)
        except ConfigError as exc:
            raise StoreError(str(exc)) from exc
        envs = [env for env in envs if env.lower() in found] or envs
        tasks = {env: list(found.get(env.lower(), ())) for env in envs}
    models = [_known(name.strip(), listed.models, "model") for name in (given.model or "").split(",") if name.strip()]
    same = {name: getattr(given, name) for name in StartArgs.__struct_fields__ if name in Options._fields}
    return StartArgs(
        **same
        | {
            "batch_id": options.batch_id or new_ulid(),
            "envs": envs,
            "agent": given.agent and _known(given.agent, listed.agents, "agent"),
            "model": models[0] if len(models) == 1 else None,
            "models": models if len(models) > 1 else [],
            "tasks": tasks,
            "max_duration_sec": given.max_duration,
            "budget": _budget(given),
        }
    )


def _budget(options: argparse.Namespace | Options) -> Budget | None:
    budget = Budget(cost=options.budget_cost, tokens=options.budget_tokens, errors_in_a_row=options.budget_errors)
    return None if budget == Budget() else budget


def _known(name: str, names: Sequence[str], what: str) -> str:
    for each in names:
        if each.lower() == name.lower():
            return each
    hint = f"it has: {one_line(', '.join(names), 400)}" if names else f"it has no {what}"
    raise ControlRequestError(f"the node has no {what} {one_line(name)}{suggestion(name, names)}", hint, "invalid")


def main_ctl(argv: Sequence[str]) -> int:
    parser = ctl_parser()
    options = parser.parse_args(protect_negations(argv) if "episodes" in argv[:1] else argv)
    if options.command == "episodes":
        options.query = " ".join(options.query)
    if options.command == "list" and options.all:
        options.command, options.verb = "list --all", Ctl.nodes
    if problem := _usage_problem(options):
        parser.error(problem)
    try:
        return asyncio.run(_run(options))
    except (ControlRequestError, RunnerError) as exc:
        failure, quote = failure_of(exc), Quotes(content=options.content)
        if options.command == "stop" and failure.code == "unreachable" and is_stopped(target_of(options)):
            result = Order(batches=[], changed=False)
            _print(options, quote(Document(command="stop", node=None, ok=True, result=result)))
            return 0
        if options.json:
            _print(options, quote(Document(command=options.command, node=None, ok=False, error=failure)))
        else:
            message = failure.message.removeprefix(f"{options.command}: ")
            detail = failure.detail and quote(failure)["detail"]["text"]
            text = "; ".join(filter(None, (message, detail or failure.hint)))
            print_stderr(one_line(f"agentgym-runner ctl {options.command}: {text}", MAX_QUOTED_CHARS))
        return 2 if isinstance(exc, ConfigError) else 1


def failure_of(exc: Exception) -> Failure:
    """Return why a command failed; the reason of a node may quote a server, so it is foreign text."""
    for kind, (code, message) in _WITHHELD.items():
        if isinstance(exc, kind):
            return Failure(code=code, message=message, hint=_SHOWN, detail=str(exc))
    if not isinstance(exc, ControlRequestError):
        return Failure(code="unreachable" if isinstance(exc, BusError) else "invalid", message=str(exc), hint="")
    if exc.is_quote:
        code = exc.code if exc.code in ERRORS else "refused"
        return Failure(code=code, message=ERRORS[code], hint=_SHOWN, detail=exc.text)
    return Failure(code=exc.code or "unreachable", message=str(exc), hint=exc.hint)


def _usage_problem(options: argparse.Namespace) -> str:
    if refused := [name for name in _REFUSED if getattr(options, name, None)]:
        return f"{option_name(refused[0])} is refused: a request names only what the profile of the node has"
    if options.batch_id and not is_ulid(options.batch_id):
        return "--batch-id must be a ULID"
    if options.command in ("pause", "resume", "cancel") and options.all == bool(options.id):
        return "give either an ID or --all"
    return run_problem({name: value for name, value in vars(options).items() if value is not None})


def target_of(options: argparse.Namespace) -> Target:
    """Return the node that the options name; raises ``ConfigError`` if they contradict one another."""
    other_bus = "--nats" if options.nats else "--node" if options.node else ""
    if other_bus and (given := [name for name in ("config", "data_dir") if getattr(options, name)]):
        raise ConfigError(
            f"{option_name(given[0])} chooses a node of this machine and cannot be combined with {other_bus}"
        )
    if options.node and not (options.nats or os.environ.get("NATS_URL")):
        raise ConfigError("--node chooses among the nodes of another bus and needs --nats, or the variable NATS_URL")
    if options.node and vars(options).get("verb") == Ctl.nodes:
        raise ConfigError("list --all lists all nodes of a bus; omit --node")
    if options.remote_command and not (options.nats or "").lower().startswith("ssh:"):
        raise ConfigError("--remote-command is for --nats ssh://…")
    if (options.nats or "").lower().startswith("ssh:"):
        return Target(ssh=parse_ssh_url(options.nats, options.remote_command))
    url = options.nats or (os.environ.get("NATS_URL") if options.node else None)
    return Target(LaunchOptions(options.config, options.data_dir), url, options.node)


async def _run(options: argparse.Namespace) -> int:
    starts = options.command == "submit" and not options.dry_run
    async with connected(target_of(options), starts=starts, is_named=options.verb != Ctl.nodes) as node:
        ctl = Ctl(node, options)
        if options.command == "follow":
            return await _follow(ctl, *await ctl.followed(), steps=True)
        result = await options.verb(ctl)
        _print(options, ctl.document(options.command, result), f"of {node.name or node.connection.address.display_url}")
        if options.dry_run or not (options.wait or options.follow) or not result.batches:
            return 0
        ids = [batch.batch_id for batch in result.batches]
        return await _follow(ctl, result.batches[0].battery_id or ids[0], ids, steps=options.follow)


async def _follow(ctl: Ctl, run_id: str, batch_ids: Sequence[str], *, steps: bool) -> int:
    """Print what happens, one line each, and return the exit code of the run."""
    follower = Follower(ctl.node, run_id, batch_ids, steps=steps)
    async for item in follower.items():
        document = ctl.document("follow", item)
        if ctl.options.json:
            await asyncio.to_thread(_write_line, ascii_json(document))
        elif steps or isinstance(item, BatchItem | GapItem):
            await asyncio.to_thread(_write_line, follow_line(document["result"]))
    return follower.exit_code


def _write_line(line: str) -> None:
    output_stream().write(f"{line}\n")
    output_stream().flush()


def _print(options: argparse.Namespace, document: dict[str, Any], of: str = "") -> None:
    if options.json:
        is_one_of_several = options.wait or options.follow or options.command == "follow"
        _write_line(ascii_json(document, None if is_one_of_several else 2))
    else:
        print_fields(document["result"], of)


_COLUMNS: Final = {
    "batches": "batch_id env agent model status n_done n_planned",
    "rows": "env agent model limits n_success n_rated success_interval",
    "clusters": "id env cause n representative",
    "episodes": "episode_id env agent task_index outcome",
    "envs": "env status transport",
    "endpoints": "endpoint status model",
    "steps": "index reward differences left right",
    "nodes": "node status profile version n_waiting batch_id env n_done n_planned",
}
"""Columns of the tables, beside those of foreign texts."""


def print_fields(fields: dict[str, Any], of: str) -> None:
    """Print a result: lists of objects as tables, other values as lines."""
    for name, value in fields.items():
        match value:
            case [dict() as first, *_]:
                texts = [key for key in first if any(_is_foreign(row[key]) for row in value)]
                columns = [key for key in _COLUMNS[name].split() if key in first] + texts
                print_table(f"{name} {of}", columns, [[_cell(row[key]) or "-" for key in columns] for row in value])
            case dict() if not _is_foreign(value):
                print_fields(value, of)
            case _ if cell := _cell(value):
                print_text(f"{name:<12}  {cell if name == 'lines' else one_line(cell, MAX_QUOTED_CHARS)}")


def follow_line(item: dict[str, Any]) -> str:
    return one_line(_cell(item), MAX_LINE_CHARS)


def _is_foreign(value: object) -> bool:
    return isinstance(value, dict) and value.get("foreign") is True


def _cell(value: Any) -> str:  # noqa: ANN401 - any value of JSON
    """Return a value as text; of an object those that are known, numbers with their names."""
    match value:
        case {"foreign": True}:
            return f"({value['chars']} characters)" if value["text"] is None else str(value["text"])
        case dict():
            cells = {name: _cell(each) for name, each in value.items()}
            named = (text if isinstance(value[name], str) else f"{name} {text}" for name, text in cells.items() if text)
            return "  ".join(named)
        case list():
            return ", ".join(map(_cell, value)) or "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{round(value, 3):g}"
    return "" if value is None else str(value)


def ctl_parser() -> SafeArgumentParser:
    parser = subcommand_parser("ctl", "Drive a running node.", epilog=EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=SafeArgumentParser)

    def add(name: str, verb: Verb | None, summary: str, *, changes: bool = False, of: str = "") -> SafeArgumentParser:
        description = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, help=summary, description=description, allow_abbrev=False)
        command.set_defaults(verb=verb, batch_id=None, all=False, wait=False, follow=False)
        if of:
            command.add_argument("id", metavar="ID", nargs="?" if of == "[ID]" else None, help="see ctl --help")
        add_node_options(command, changes=changes)
        return command

    _add_starting(add)
    _add_reading(add)
    _add_changing(partial(add, changes=True))
    return parser


def _add_starting(add: Callable[..., SafeArgumentParser]) -> None:
    summary = "start batches; the node of the state directory is started where none runs"
    submit = add("submit", Ctl.submit, summary, changes=True)
    goals = submit.add_mutually_exclusive_group(required=True)
    goals.add_argument("--run", metavar="ENV", help="an environment of the node")
    goals.add_argument("--battery", metavar="TIER", help="all environments of a tier of the node's profile, or all")
    add_run_options(submit, dry_run=False)
    again = add("again", Ctl.again, "play a batch or battery again, in new batches", changes=True, of="ID")
    again.add_argument("--errors", action="store_true", help="only the episodes that ended with an error")
    for command in (submit, again):
        command.add_argument("--batch-id", metavar="ULID", help="id of the new batch; repeating it starts nothing new")
        waiting = command.add_mutually_exclusive_group()
        waiting.add_argument("--detach", action="store_true", help="return at once, which is the default")
        waiting.add_argument("--wait", action="store_true", help="wait until all has ended")
        waiting.add_argument("--follow", action="store_true", help="print each step and episode until all has ended")


def _add_reading(add: Callable[..., SafeArgumentParser]) -> None:
    listed = add("list", Ctl.show_list, "list the batches, and what the node can play")
    listed.add_argument("--all", action="store_true", help="list the nodes of the bus instead")
    show = add("show", Ctl.show, "show a batch, a battery or an episode", of="ID")
    show.add_argument("--steps", type=at_least(0), default=MAX_STEPS, metavar="N", help="last steps of an episode")
    add("results", Ctl.results, "sum up a batch or battery, and group its failed episodes", of="ID")
    episodes = add("episodes", Ctl.episodes, "list stored episodes by a query, the newest first")
    add_query_argument(episodes)
    episodes.add_argument("--limit", type=at_least(1, 200), default=50, metavar="N", help="up to 200 (default 50)")
    episodes.add_argument("--before", metavar="ID", help="only those with smaller ids, for the next page")
    compare = add("compare", Ctl.compare, "compare two episodes of the node step by step")
    compare.add_argument("left", metavar="A", help="id of an episode")
    compare.add_argument("right", metavar="B", help="id of an episode")
    logs = add("logs", Ctl.logs, "show the last lines of a log of the node, with --content")
    logs.add_argument("log", metavar="NAME", nargs="?", help="name of the log (default: the first)")
    logs.add_argument("--lines", type=at_least(1, 500), default=50, metavar="N", help="up to 500 (default 50)")
    follow = add("follow", None, "print each step and episode of a batch until it ends", of="[ID]")
    follow.set_defaults(id="last")
    add("health", Ctl.health, "show the node and the health of what it uses")


def _add_changing(add: Callable[..., SafeArgumentParser]) -> None:
    for name, summary in (
        ("pause", "pause a batch, a battery, an episode or all after the running steps"),
        ("resume", "resume what is paused or was interrupted"),
        ("cancel", "cancel a batch, a battery, an episode or all"),
    ):
        command = add(name, COMMANDS[name], summary, of="[ID]")
        command.add_argument("--all", action="store_true", help="all of the node")
    add("step", COMMANDS["step"], "let a paused episode or batch play one step", of="ID")
    move = add("move", Ctl.move, "move what waits to another place in the queue", of="ID")
    move.add_argument("--to", type=at_least(0), default=0, metavar="N", help="number of batches before (default 0)")
    change = add("set", Ctl.set, "change how what has not ended is played", of="ID")
    add_change_options(change)
    for name in ("requests-per-minute", "concurrent-requests"):
        change.add_argument(f"--{name}", type=at_least(1), metavar="N", help="at most N to each model endpoint")
    extend = add("extend", Ctl.extend, "plan more tasks or attempts, of what has ended in a new batch", of="ID")
    extend.add_argument("--repeat", type=at_least(1), metavar="N", help="number of all tasks afterwards")
    extend.add_argument("--attempts", type=at_least(1), metavar="K", help="number of all attempts at a task")
    env = add("env", Ctl.env, "start or stop the server of an environment")
    env.add_argument("action", choices=["start", "stop"])
    env.add_argument("env", metavar="NAME")
    stop = add("stop", Ctl.stop, "stop the node after the running steps")
    stop.add_argument("--drain", action="store_true", help="play all queued batches first")


def add_node_options(
    parser: argparse.ArgumentParser, *, changes: bool, json: str = "print JSON, with foreign text marked and withheld"
) -> None:
    group = parser.add_argument_group("node and output")
    add_state_options(group, json=json)
    add_bus_option(group, "another bus instead of the node of the state directory")
    group.add_argument("--node", metavar="NAME", help="node on that bus, or on that of NATS_URL")
    group.add_argument("--content", action="store_true", help="show texts of models, environments and programs")
    if changes:
        group.add_argument("--dry-run", action="store_true", help="only show what would be changed")
    else:
        parser.set_defaults(dry_run=False)
