"""Control requests: their parsing, a handler for each operation, and errors of limited length, masked and displayable.

Nothing here depends on the bus.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Final, assert_never

import msgspec

from runner import plugins
from runner.batch.running_episode import CommandName
from runner.batch.spec import (
    DEFAULT_AGENT,
    NODE_FILES,
    BatchRequest,
    BatchSpec,
    ResolvedBatch,
    check_limits,
    extended,
    extension,
    fit_batch,
    resolve_batch,
    resolve_spec,
)
from runner.batch.stopping import first_part
from runner.config import Profile
from runner.envs.names import UnplayableName
from runner.errors import RunnerError, catch_foreign, log_failure
from runner.events.control import (
    ARGS,
    AnnotateArgs,
    Args,
    BatchState,
    ControlError,
    ControlReply,
    ControlRequest,
    EpisodeArgs,
    EpisodeEntry,
    EpisodesArgs,
    ExtendArgs,
    FailureCluster,
    ListArgs,
    LogLines,
    LogsArgs,
    MoveArgs,
    NoArgs,
    NodeHealth,
    NodeList,
    Op,
    ReplayArgs,
    ResultsArgs,
    ResultSummary,
    RunResults,
    SentHistory,
    ServerArgs,
    SetArgs,
    ShutdownArgs,
    StartArgs,
    TargetArgs,
)
from runner.inference.profile_models import Models, NoModel
from runner.node.batch_player import BatchPlayer
from runner.node.batch_queue import (
    MAX_QUEUED,
    BatchQueue,
    QueuedBatch,
    QueueFull,
    Status,
    extension_entry,
    queue_entries,
)
from runner.node.env_servers import EnvServerManager
from runner.node.file_chunks import EpisodeFiles
from runner.node.logs import node_logs, read_last_lines
from runner.query.episodes import episode_condition, episode_lookups
from runner.query.syntax import QueryError
from runner.results.clusters import find_clusters
from runner.results.summary import Selection, summarize_results
from runner.store.episode_file import shared_fields
from runner.store.index_schema import EpisodeRow
from runner.store.notes import InvalidNote, Notes
from runner.types import Budget, is_result_unknown
from runner.types.notes import Note, NoteChange
from runner.util.clock import is_ulid, new_ulid
from runner.util.display_text import mask, one_line, sanitize

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024
QUICK_BYTES = 1024
"""Size up to which the event loop checks keys: 64 KiB would take milliseconds, which a flood would use."""
MAX_ECHO_CHARS = 200
"""Maximum characters of a request id or an error message in a reply; either may repeat text of the request."""
MAX_HINT_CHARS = 400
"""Maximum characters of a hint in a reply; a hint may list all endpoints or environments."""


_ARGS_DECODERS: dict[Op, msgspec.json.Decoder[Args]] = {op: msgspec.json.Decoder(kind) for op, kind in ARGS.items()}
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class RequestRejected(RunnerError):
    published_error_type = "refused"

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class _RequestId(msgspec.Struct):
    """The id of a request, decoded separately because even the reply to an invalid request needs it."""

    id: str = ""


def parse_request_id(payload: bytes) -> str:
    """Raises ``RequestRejected`` if the request is too large, ``msgspec.MsgspecError`` if it is no object."""
    if len(payload) > MAX_REQUEST_BYTES:
        text = f"a request may have at most {MAX_REQUEST_BYTES} bytes; this one has {len(payload)}"
        raise RequestRejected("bad_request", text)
    return msgspec.json.decode(payload, type=_RequestId).id


def find_problem(payload: bytes) -> BaseException | None:
    """Return why a request is invalid, or None; the keys of a long one are left to the thread of ``handle``."""
    try:
        request = parse_request(payload, max_checked=QUICK_BYTES)
        parse_args(request.op, request.args)
    except (RequestRejected, *_DECODE_ERRORS) as exc:
        return exc
    return None


def parse_request(payload: bytes, *, max_checked: int = MAX_REQUEST_BYTES) -> ControlRequest:
    """Return a request with a valid id; up to ``max_checked`` bytes have no duplicate keys. Arguments are not decoded.

    Raises:
        RequestRejected: if the request is too large, an object has a key twice, or its id is too long or contains text
            that a reply must mask or escape.
        msgspec.MsgspecError, UnicodeDecodeError: if the request is not the JSON of a ``ControlRequest``.
    """
    request_id = parse_request_id(payload)
    if len(request_id) > MAX_ECHO_CHARS or safe_echo(request_id) != request_id:
        text = f"an id must have at most {MAX_ECHO_CHARS} characters, all of them visible"
        raise RequestRejected("bad_request", text)
    request = msgspec.json.decode(payload, type=ControlRequest)
    text = str(payload, "utf-8")  # msgspec does not read the texts of unknown fields
    if len(payload) <= max_checked:
        # Parsers differ in which of two values they take, so a proxy and the node could read different requests.
        # Only the keys matter, and the longest numbers would be slow.
        json.loads(text, object_pairs_hook=_unique_keys, parse_int=len, parse_float=len)
    return request


def _unique_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise RequestRejected("bad_request", f"the request has the key {twice!r} twice", "send each key once")


def parse_args(op: Op, args: msgspec.Raw) -> Args:
    """Raises ``msgspec.MsgspecError`` if the arguments are invalid for the operation."""
    return _ARGS_DECODERS[op].decode(args)


def reject(payload: bytes, problem: BaseException | None) -> bytes:
    """Return the JSON reply to a request that is rejected; ``problem`` None: its sender has too many waiting."""
    problem = problem or RequestRejected(
        "busy", "too many of your requests are waiting", "wait for the replies, then send this request again"
    )
    request_id = ""
    with catch_foreign(lambda _: None):  # an unreadable id has been reported as the problem
        request_id = safe_echo(parse_request_id(payload))
    return msgspec.json.encode(ControlReply(id=request_id, ok=False, error=to_control_error(problem)))


def to_control_error(exc: BaseException) -> ControlError:
    """Logs the exception if it is unexpected."""
    match exc:
        case RequestRejected():
            return ControlError(code=exc.code, message=safe_echo(str(exc)), hint=exc.hint)
        case QueueFull():
            hint = f"wait until batches have ended, or cancel some; at most {MAX_QUEUED} can wait"
            return ControlError(code="queue_full", message=safe_echo(str(exc)), hint=hint)
        case UnplayableName():
            return ControlError(code="refused", message=safe_echo(exc.problem), hint=safe_hint(exc.hint))
        case RunnerError():
            return ControlError(code="refused", message=safe_echo(str(exc)))
        case _ if isinstance(exc, _DECODE_ERRORS):
            message = safe_echo(f"the request cannot be read: {exc}")
            return ControlError(code="bad_request", message=message, hint="see docs/data/events.md")
    log_failure(logger, "answering a request")(exc)
    return ControlError(code="internal", message=safe_echo(f"{type(exc).__name__}: {exc}"), hint="see the node's log")


def safe_hint(hint: str) -> str:
    return one_line(mask(hint), MAX_HINT_CHARS)


def names_hint(what: str, names: Sequence[str]) -> str:
    return safe_hint(f"its {what}: {', '.join(names)}" if names else f"it has no {what}")


def safe_echo(text: str) -> str:
    return one_line(mask(text), MAX_ECHO_CHARS)


MAX_BATCHES = 200
MAX_CLUSTERS = 50
MAX_LISTED_WAITING, MAX_LISTED_OTHERS = 200, 200
CHANGEABLE = ("concurrency", "workers", "budget")
"""Arguments that may differ when an interrupted batch is resumed."""
MAX_WAIT_S: Final = 1.0
"""Seconds that a request waits for the episodes to be read; others wait with it."""
NEED_INDEX: Final[frozenset[Op]] = frozenset(
    {"cancel", "replay", "episode", "annotate", "send_history", "results", "episodes"}
)
"""Operations that use all stored episodes, so that a node which has not read all of them rejects them."""

LIVE: Final[tuple[Status, ...]] = ("queued", "running")
_COMMANDS: Final[dict[Op, CommandName]] = {"cancel": "cancel", "pause": "pause", "resume": "resume", "step": "step"}


def split_models(args: StartArgs) -> list[StartArgs]:
    """Raises ``RequestRejected`` if the request is invalid."""
    if not args.envs:
        raise RequestRejected("bad_request", "envs is empty", "name at least one environment of the profile")
    if args.models and (args.model is not None or len(set(args.models)) < len(args.models)):
        raise RequestRejected("bad_request", "models names a model twice, or model is given, too", "name each once")
    if (n_batches := len(args.envs) * max(len(args.models), 1)) > MAX_BATCHES:
        text = f"the request is for {n_batches} batches; one request starts at most {MAX_BATCHES}"
        raise RequestRejected("bad_request", text, "send several")
    can_adapt = args.attempts == 1 and args.repeat > 1 and not args.tasks
    if args.until_width is not None and not (can_adapt and 0 < args.until_width <= 1):
        raise RequestRejected(
            "bad_request",
            "until_width is a width above 0 and at most 1, and needs one attempt and at least 2 consecutive tasks",
            "set repeat to the maximum number of tasks, and attempts to 1",
        )
    if not args.models:
        return [args]
    return [msgspec.structs.replace(args, model=model, models=[]) for model in args.models]


def check_same(args: StartArgs, specs: Sequence[BatchSpec], *, resumes: bool = False) -> None:
    """Reject a start request that differs from the known batch with its id; values it omits do not differ.

    If it ``resumes`` an interrupted batch, the arguments in ``CHANGEABLE`` may differ.
    """
    first = min(specs, key=lambda spec: spec.task_index)  # the first part of adaptive repeats has the whole budget
    if args.tasks:
        given = {env.lower(): tuple(tasks) for env, tasks in args.tasks.items()}
        if any(spec.tasks != given.get(spec.env.lower()) for spec in specs):
            raise _differs(args, ["tasks"])
        args = msgspec.structs.replace(args, repeat=first.repeat, task_index=first.task_index)
    existing = msgspec.structs.asdict(first) | {
        "envs": {spec.env.lower() for spec in specs},
        "agent": first.agent.lower(),
        "models": {spec.model for spec in specs},
        "max_rounds": first.limits.max_rounds,
        "max_duration_sec": first.limits.max_duration_s,
        "until_width": None if first.adaptive is None else first.adaptive.width,
        "repeat": first.repeat if first.adaptive is None else first.adaptive.repeat,
    }
    requested = msgspec.structs.asdict(args) | {
        "envs": {env.lower() for env in args.envs},
        "agent": (args.agent or DEFAULT_AGENT).lower(),
        "models": {*args.models} or None,
    }
    ignored = ("tasks", *(CHANGEABLE if resumes else ()))
    compared = {name: value for name, value in requested.items() if name in existing and name not in ignored}
    if different := [name for name, value in compared.items() if value not in (None, existing[name])]:
        raise _differs(args, different)


def _differs(args: StartArgs, names: Sequence[str]) -> RequestRejected:
    return _differs_from(args.batch_id, f" in {', '.join(names)}")


def _differs_from(batch_id: str, where: str = "") -> RequestRejected:
    text = f"batch {batch_id} already exists and differs{where}"
    return RequestRejected("refused", text, "use a new batch_id for a different request")


class ControlHandler(msgspec.Struct, frozen=True):
    """Handles control requests; thread-safe.

    Attributes:
        indexing: returns how far the node has read its episodes, or None if they are read after so many seconds.
        send_history: sends the earlier events to the external broker and returns their number; None without one.
        shutdown: requests the end of the node; its argument ``drain`` is whether to run the queued batches first.
    """

    profile: Profile
    files: EpisodeFiles
    notes: Notes
    queue: BatchQueue
    batch_player: BatchPlayer
    servers: EnvServerManager
    models: Models
    health: Callable[[], NodeHealth]
    stopping: Callable[[], bool]
    send_history: Callable[[], int | None]
    shutdown: Callable[[bool], object]
    indexing: Callable[[float], str | None] = lambda wait_s: None

    def handle(self, payload: bytes, *, commands: bool = True) -> bytes:
        """Return the JSON reply to a request; invalid requests get an error reply.

        Without ``commands``, every operation except ``health`` is rejected.
        """
        problems: list[BaseException] = []
        with catch_foreign(problems.append):
            request = parse_request(payload)
            if not commands and request.op != "health":
                text = "this node accepts no commands on this bus"
                raise RequestRejected("no_control", text, "set nats.control in its profile")
            if request.op in NEED_INDEX and (indexing := self.indexing(MAX_WAIT_S)) is not None:
                raise RequestRejected("indexing", f"this node still reads its episodes: {indexing}", "try again later")
            result = msgspec.Raw(msgspec.json.encode(self._dispatch(request)))
            return msgspec.json.encode(ControlReply(id=request.id, ok=True, result=result))
        return reject(payload, problems[0])

    def _dispatch(self, request: ControlRequest) -> object:
        args = parse_args(request.op, request.args)
        match args:
            case StartArgs():
                return self._start(args)
            case TargetArgs():
                return self._command(_COMMANDS[request.op], args)
            case MoveArgs():
                return self._move(args)
            case SetArgs():
                return self._set(args)
            case ExtendArgs():
                return self._extend(args)
            case ReplayArgs():
                return self._replay(args)
            case ResultsArgs():
                return self._results(args.batch_id)
            case EpisodesArgs():
                return self._episodes(args)
            case LogsArgs():
                return self._logs(args)
            case EpisodeArgs():
                return self.files.chunk(args.episode_id, args.offset)
            case AnnotateArgs():
                return self._annotate(args)
            case ServerArgs():
                return (self.servers.start if request.op == "server_start" else self.servers.stop)(args.env)
            case ShutdownArgs():
                self.shutdown(args.drain)
                return {}
            case NoArgs() if request.op == "send_history":
                return self._send_history()
            case ListArgs():
                return self._list(args.batch_id)
            case NoArgs():
                return self.health()
            case _:
                assert_never(args)

    def _start(self, args: StartArgs) -> list[BatchState]:
        self._check_start("batch_id", args.batch_id)
        requests = split_models(args)
        if existing := self._batches(args.batch_id):
            resumes = args.resume and any(batch.status == "interrupted" for batch in existing)
            check_same(args, [batch.spec for batch in existing], resumes=resumes)
            return [self._state(batch) for batch in (self._resume(args, existing) if resumes else existing)]
        resolved = [self._resolve(request, env) for request in requests for env in args.envs]
        if len({(batch.spec.env, batch.spec.model) for batch in resolved}) < len(resolved):
            hint = "use repeat or attempts to run more episodes of it"
            raise RequestRejected("bad_request", "envs names an environment twice", hint)
        for batch in resolved[:: len(args.envs)]:
            self._require_model(batch.spec)
        specs = list(map(_accept, resolved))
        if args.until_width is not None:
            specs = [first_part(spec, args.until_width) for spec in specs]
        return self._enqueue(args.batch_id, specs)

    def _check_start(self, name: str, batch_id: str) -> None:
        if not is_ulid(batch_id):
            raise RequestRejected("bad_request", f"{name} must be a ULID", "create a new ULID for each start request")
        if self.stopping():
            raise RequestRejected("stopping", "this node is stopping", "start it again, or use another node")

    def _enqueue(self, requested_id: str, specs: list[BatchSpec]) -> list[BatchState]:
        batches = queue_entries(requested_id, specs)
        self.queue.add(*batches)
        self.batch_player.wake()
        return [self._state(batch) for batch in batches]

    def _move(self, args: MoveArgs) -> dict[str, str]:
        moved = {batch.batch_id for batch in self._known(args.batch_id)}
        if not self.queue.move(moved, args.to):
            text = f"batch {args.batch_id!r} does not wait"
            raise RequestRejected("not_queued", text, "the reply to list has its state")
        return {}

    def _set(self, args: SetArgs) -> list[BatchState]:
        left = [batch for batch in self._known(args.batch_id) if not batch.has_ended]
        if not left:
            text = f"batch {args.batch_id!r} has ended"
            raise RequestRejected("not_running", text, "again and extend start new batches")
        specs = {batch.batch_id: self._with(args, batch.spec) for batch in left}
        return self._change(args, self._known(args.batch_id), specs)

    def _with(self, args: SetArgs, spec: BatchSpec) -> BatchSpec:
        """Return a spec with what a request changes; raises ``ConfigError`` if the profile does not allow it."""
        if args.workers == "ray" and find_spec("ray") is None:
            raise RequestRejected("refused", "Ray is not installed", "install the extra ray on the machine of the node")
        given = {name: value for name, value in msgspec.structs.asdict(args).items() if value is not None}
        check_limits(self.profile, BatchRequest(env=spec.env, **_only(given, "max_rounds", "max_duration_sec")))
        limits = msgspec.structs.replace(
            spec.limits,
            max_rounds=given.get("max_rounds", spec.limits.max_rounds),
            max_duration_s=given.get("max_duration_sec", spec.limits.max_duration_s),
        )
        changes = _only(given, "concurrency", "workers", "requests_per_minute", "concurrent_requests")
        if args.budget is not None:
            new = {name: value for name, value in msgspec.structs.asdict(args.budget).items() if value is not None}
            changes["budget"] = msgspec.structs.replace(spec.budget or Budget(), **new)
        changed = msgspec.structs.replace(spec, limits=limits, **changes)
        return _accept(resolve_spec(self.profile, changed))

    def _extend(self, args: ExtendArgs) -> list[BatchState]:
        if self.stopping():
            raise RequestRejected("stopping", "this node is stopping", "start it again, or use another node")
        specs: dict[str, BatchSpec] = {}
        added: list[QueuedBatch] = []
        family = self._family(args.batch_id)
        for root in [batch for batch in family if batch.extends is None]:
            if not root.has_ended:
                spec = extended(root.spec, args.repeat, args.attempts)
                specs[root.batch_id] = _accept(resolve_spec(self.profile, spec))
                continue
            run = [root, *self.queue.extensions([root.batch_id])]
            played, done = [each.spec for each in run], self.batch_player.stored.done(run)
            if (new := extension(played, args.repeat, args.attempts, done)) is not None:
                added.append(extension_entry(root, _accept(resolve_spec(self.profile, new)), len(run)))
        for each in added[:1]:
            self._require_model(each.spec)
        return self._change(args, family, specs, added)

    def _change(
        self,
        args: SetArgs | ExtendArgs,
        batches: Sequence[QueuedBatch],
        specs: dict[str, BatchSpec],
        added: Sequence[QueuedBatch] = (),
    ) -> list[BatchState]:
        """Give batches new specs and queue others, but for a dry run; return all as they are afterwards."""
        changed = {
            each.batch_id: specs[each.batch_id] for each in batches if specs.get(each.batch_id, each.spec) != each.spec
        }
        if not (args.dry_run or self.batch_player.change(changed, added)):
            raise RequestRejected("not_running", "the batch is about to end", "try again in a moment")
        now = [self.queue.get(each.batch_id) or each for each in (*batches, *added)]
        return [self._state(msgspec.structs.replace(each, spec=specs.get(each.batch_id, each.spec))) for each in now]

    def _family(self, batch_id: str) -> list[QueuedBatch]:
        """Return the batches with this id, what they extend, and what extends them."""
        ids = {batch.extends or batch.batch_id for batch in self._known(batch_id)}
        return [*(batch for each in ids if (batch := self.queue.get(each)) is not None), *self.queue.extensions(ids)]

    def _replay(self, args: ReplayArgs) -> list[BatchState]:
        new_id = new_ulid() if args.new_batch_id is None else args.new_batch_id
        self._check_start("new_batch_id", new_id)
        batches = self._known(args.batch_id)
        specs = [msgspec.structs.replace(batch.spec, adaptive=None) for batch in batches]
        if args.only == "errors":
            specs = list(filter(None, map(self.batch_player.stored.spec_of_errors, batches)))
        if not specs:
            raise RequestRejected("nothing_left", f"no episode of batch {args.batch_id!r} ended with an error")
        specs = [_accept(resolve_spec(self.profile, spec)) for spec in specs]
        if existing := self._batches(new_id):
            if sorted(map(_plan, specs)) != sorted(_plan(batch.spec) for batch in existing) or new_id == args.batch_id:
                raise _differs_from(new_id)
            return [self._state(batch) for batch in existing]
        self._require_model(specs[0])
        return self._enqueue(new_id, specs)

    def _results(self, batch_id: str) -> RunResults:
        index = self.batch_player.workspace.index
        ids = {batch.batch_id for batch in self._known(batch_id)}
        ids |= {batch.batch_id for batch in self.queue.extensions(ids)}
        selected = msgspec.json.encode(sorted(ids)).decode()
        rows = summarize_results(index, Selection(batches=selected))
        clause = "WHERE batch_id IN (SELECT value FROM json_each(?)) AND failure IS NOT NULL ORDER BY episode_id"
        clusters = find_clusters(index.rows(clause, (selected,)))
        return RunResults(
            rows=[ResultSummary(**shared_fields(row, ResultSummary)) for row in rows],
            clusters=[
                FailureCluster(id=each.id, **shared_fields(each, FailureCluster)) for each in clusters[:MAX_CLUSTERS]
            ],
            n_clusters=len(clusters),
        )

    def _episodes(self, args: EpisodesArgs) -> list[EpisodeEntry]:
        workspace = self.batch_player.workspace
        lookups = episode_lookups(workspace.data_dir)
        try:
            condition = episode_condition(args.query, now=workspace.clock.now(), lookups=lookups)
        except QueryError as exc:
            raise RequestRejected(
                "bad_request", f"the query is invalid: {exc}", "see agentgym-runner episodes"
            ) from exc
        older = "" if args.before is None else " AND episode_id < :before"
        clause = f"WHERE ({condition.sql}){older} ORDER BY episode_id DESC LIMIT :n_listed"
        values = {**condition.parameters, "before": args.before, "n_listed": args.limit}
        rows = workspace.index.rows(clause, values)
        return [EpisodeEntry(**shared_fields(row, EpisodeEntry) | _unknown_result(row)) for row in rows]

    def _logs(self, args: LogsArgs) -> LogLines:
        logs = {path.name: path for path in node_logs(self.batch_player.workspace.data_dir)}
        if (path := logs.get(args.log or next(iter(logs)))) is None:
            raise RequestRejected("not_found", f"there is no log {args.log!r}", names_hint("logs", [*logs]))
        return LogLines(names=[*logs], lines=[sanitize(mask(each)) for each in read_last_lines(path, args.n_lines)])

    def _annotate(self, args: AnnotateArgs) -> list[Note]:
        if not (self.batch_player.plays(args.episode_id) or self.files.has(args.episode_id)):
            text = f"this node has no episode {args.episode_id!r}"
            raise RequestRejected("not_found", text, "check the id and the node")
        try:
            notes = self.notes.change(args.episode_id, msgspec.convert(args, NoteChange, from_attributes=True))
        except InvalidNote as exc:
            raise RequestRejected("bad_request", str(exc)) from exc
        self.queue.on_change()  # other consoles read the tags again when the queue is reported
        return notes

    def _send_history(self) -> SentHistory:
        if (n := self.send_history()) is None:
            hint = "set NATS_URL, or nats.url in its profile, and restart it"
            raise RequestRejected("no_egress", "this node has no external broker", hint)
        return SentHistory(n=n)

    def _batches(self, batch_id: str) -> list[QueuedBatch]:
        batch = self.queue.get(batch_id)
        return [*([batch] if batch else []), *self.queue.in_battery(batch_id)]

    def _known(self, batch_id: str) -> list[QueuedBatch]:
        if batches := self._batches(batch_id):
            return batches
        raise RequestRejected("not_found", f"there is no batch {batch_id!r}", "the reply to list names the batches")

    def _resume(self, args: StartArgs, existing: list[QueuedBatch]) -> list[QueuedBatch]:
        """Queue the interrupted batches again, with what the request changes."""
        specs: dict[str, BatchSpec] = {}
        problems: list[RunnerError] = []
        changes = {name: value for name in CHANGEABLE if (value := getattr(args, name)) is not None}
        for batch in existing:
            if batch.status == "interrupted":
                specs[batch.batch_id] = msgspec.structs.replace(batch.spec, **changes)
                try:
                    specs[batch.batch_id] = _accept(resolve_spec(self.profile, specs[batch.batch_id]))
                except RunnerError as exc:
                    problems.append(exc)
        if len(problems) == len(specs):  # else the others play, and a batch that cannot be played ends with its reason
            raise problems[0]
        self._queue_again(specs)
        return self._batches(args.batch_id)

    def _queue_again(self, specs: dict[str, BatchSpec]) -> None:
        self._require_model(next(iter(specs.values())))
        self.queue.queue_again(specs)
        self.batch_player.wake()

    def _release(self, batch: QueuedBatch, *, again: bool) -> bool:
        """Let a held batch start, or queue an interrupted one ``again``; return False if it is neither.

        Raises ``RunnerError`` if the node cannot play it.
        """
        if self.queue.hold(batch.batch_id, held=False):
            self.batch_player.wake()
            return True
        if not again or batch.status != "interrupted":
            return False
        self._queue_again({batch.batch_id: _accept(resolve_spec(self.profile, batch.spec))})
        return True

    def _require_model(self, spec: BatchSpec) -> None:
        try:
            self.models.require(spec.model)
        except NoModel as exc:
            hint = "; ".join(filter(None, [exc.hint, "or choose an agent that uses no model, such as oracle"]))
            raise RequestRejected("no_model", str(exc), safe_hint(hint)) from exc

    def _resolve(self, args: StartArgs, env: str) -> ResolvedBatch:
        if args.agent is not None and args.agent not in plugins.registered_names(plugins.AGENTS):
            hint = names_hint("agents", plugins.registered_names(plugins.AGENTS))
            raise RequestRejected("unknown_agent", f"this node has no agent {args.agent!r}", hint)
        if args.model is not None and args.model not in self.models.names:
            hint = names_hint("models", self.models.names)
            raise RequestRejected("unknown_model", f"this node has no model {args.model!r}", hint)
        if ":" in env and self.profile.find_entry(env) is None:
            text = f"{env!r} is not in the profile {self.profile.id}"
            raise RequestRejected("refused", text, "the reply to list names its environments")
        tasks = {name.lower(): tuple(numbers) for name, numbers in args.tasks.items()}.get(env.lower())
        if args.tasks and not tasks:
            raise RequestRejected("bad_request", f"tasks has no tasks of {env!r}", "name tasks of each environment")
        fields = shared_fields(args, BatchRequest) | {"env": env, "tasks": tasks}
        return resolve_batch(self.profile, BatchRequest(**fields))

    def _command(self, name: CommandName, target: TargetArgs) -> dict[str, str]:
        if (target.batch_id is not None) + (target.episode_id is not None) + target.everything != 1:
            raise RequestRejected("bad_request", "give either batch_id, episode_id or everything")
        if target.episode_id is not None:
            if not self.batch_player.command_episode(name, target.episode_id):
                raise RequestRejected("not_found", f"episode {target.episode_id!r} is not running")
            return {}
        if target.everything:
            if name == "step":
                raise RequestRejected("bad_request", f"{name} needs an episode or a batch")
            batches = self.queue.ready() if name == "pause" else self.queue.with_status("queued")
        else:
            batches = self._known(target.batch_id or "")
        released = [self._release(each, again=not target.everything) for each in batches if name == "resume"]
        if not (self.batch_player.command(name, target.batch_id, batches) or any(released)):
            what = "nothing runs or waits" if target.everything else f"batch {target.batch_id!r} is not running"
            hint = "has all batches" if target.everything else "has its state"
            raise RequestRejected("not_running", f"{name}: {what}", f"the reply to list {hint}")
        return {}

    def _state(self, batch: QueuedBatch) -> BatchState:
        session, status = self.batch_player.session(batch.batch_id), batch.status
        waiting = None if session is None else session.waiting
        shown = batch.described(BatchState) | {
            "waiting_for": (self.indexing(0.0) or self.batch_player.storage.problem) if status in LIVE else None,
            "paused": batch.held,
            "warning": batch.spec.notice if status in LIVE else None,
        }
        if waiting is not None:
            shown |= {"waiting_for": waiting.server, "waiting_s": waiting.left_s}
        if session is not None and (session.is_paused or status == "cancelled"):
            shown["status"] = "paused" if session.is_paused else "running"  # what was cancelled still ends
        if session is not None and shown["status"] in ("running", "paused"):
            shown["n_done"] = session.n_done
        elif status == "interrupted":  # a killed node has not saved how many episodes have finished
            shown["n_done"] = self.batch_player.workspace.n_finished(batch.batch_id)
        return BatchState(**shown)

    def _list(self, batch_id: str | None) -> NodeList:
        listed = self.queue.listed(n_waiting=MAX_LISTED_WAITING, n_others=MAX_LISTED_OTHERS)
        if batch_id is not None:
            listed = self._batches(batch_id)
        batteries: dict[str, list[str]] = {}
        for tier, entry in self.profile.tiered_entries():
            batteries.setdefault(tier, []).append(entry.name)
        return NodeList(
            batches=list(map(self._state, listed)),
            envs=[env for envs in batteries.values() for env in envs],
            batteries=batteries,
            agents=plugins.registered_names(plugins.AGENTS),
            models=self.models.names,
            storage=self.batch_player.storage_problem,
            queue=self.queue.notice,
            n_waiting=len(self.queue.with_status("queued")),
        )


def _only(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _plan(spec: BatchSpec) -> tuple[str, str, str, list[tuple[int, int]]]:
    return spec.env, spec.agent, spec.model or "", [(each.task_index, each.attempt) for each in spec.plan()]


def _unknown_result(row: EpisodeRow) -> dict[str, None]:
    is_unknown = is_result_unknown(row.transport, row.outcome, unscored=row.unscored)
    return dict.fromkeys(("outcome", "success")) if is_unknown else {}


def _accept(batch: ResolvedBatch) -> BatchSpec:
    """Return what is stored of a batch that fits the open files of a node, with what will differ from its request."""
    return msgspec.structs.replace(batch.spec, notice=fit_batch(batch, NODE_FILES).warning)
