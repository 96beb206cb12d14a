"""Commands from the user to the node: choose agent, battery or the fields of a run; start, pause and cancel runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.sessions.session import Session
from agentgym_tui.state.batches import UNFINISHED, BatchRun
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.servers import EndpointState, EnvironmentState
from runner.client.node_client import ControlRequestError, NodeClient, RunCommand
from runner.errors import ConfigError
from runner.events.control import AnnotateArgs, ReplayArgs, StartArgs
from runner.types import Budget
from runner.types.notes import MAX_TAG_CHARS, Note
from runner.util.clock import new_ulid

DEFAULT_AGENT: Final = "react"  # the agent of a first run, as of the command line
MODELLESS_AGENTS: Final = frozenset({"oracle", "random", "scripted"})
FALLBACK_AGENT: Final = "oracle"  # the agent that is chosen by default where no agent that uses a model is installed
MAX_TOAST_CHARS: Final = 400  # largest number of characters of an error that a toast shows
MAX_EPISODES: Final = 1_000_000
MAX_TASKS: Final = 5_000  # maximum number of tasks in a request, which has at most 64 KiB
MAX_MODELS_CHARS: Final = 2000  # in the text with several models, and in the path of a file

_MAX_INTEGER: Final = 2**62 - 1
_INTEGER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_DECIMAL: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)


class AgentChoice(NamedTuple):
    """Agent and model of a run: None for the default model of the profile; ``problem``: why no model can be used."""

    agent: str
    model: str | None
    problem: str


def default_agent(store: RunStore) -> AgentChoice:
    """Return ``react``, or another installed agent that uses a model, or the oracle where there is none.

    Even where no model is reachable: only the user may replace such an agent by one without a model.
    """
    return AgentChoice(next(iter(_model_agents(store)), FALLBACK_AGENT), None, model_problem(store))


def model_problem(store: RunStore) -> str:
    """Return why no model can be used; "" where one can."""
    if not store.agents:
        return "waiting for the node's list of agents"
    if not _model_agents(store):
        return "no agent that uses a model is installed"
    if store.endpoints and all(endpoint.status in ("down", "wrong") for endpoint in store.endpoints.values()):
        return "no model is reachable: " + "; ".join(_cause(*named) for named in [*store.endpoints.items()][:3])
    return ""


def _model_agents(store: RunStore) -> list[str]:
    agents = [agent for agent in store.agents if agent not in MODELLESS_AGENTS]
    return sorted(agents, key=lambda agent: agent != DEFAULT_AGENT)


def _cause(name: str, endpoint: EndpointState) -> str:
    scheme, mark, rest = name.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2] if mark else scheme
    return f"{host} {endpoint.status}" + (f": {endpoint.cause}" if endpoint.cause else "")


def startable_agents(store: RunStore) -> list[str]:
    agents = [agent for agent in store.agents if agent != "scripted"]
    return agents if FALLBACK_AGENT in agents else [*agents, FALLBACK_AGENT]


class EnvironmentBattery(NamedTuple):
    """Environments that are run together: those of a tier, or ``everything``; ``excluded`` ones cannot be run now."""

    name: str
    envs: list[str]
    excluded: list[EnvironmentState]


def list_batteries(store: RunStore) -> list[EnvironmentBattery]:
    """Return one battery per tier and, where there are several tiers, one battery of all environments."""
    tiers: dict[str, list[EnvironmentState]] = {}
    for env in store.envs.values():
        if env.tier:
            tiers.setdefault(env.tier, []).append(env)
    if len(tiers) > 1:
        tiers["everything"] = [env for envs in tiers.values() for env in envs]
    batteries = []
    for tier, envs in tiers.items():
        excluded = [env for env in envs if env.status == "down" or (env.status == "wrong" and env.transport == "http")]
        batteries.append(EnvironmentBattery(tier, [env.name for env in envs if env not in excluded], excluded))
    return batteries


def unfinished_batches(store: RunStore, node: str = "") -> list[BatchRun]:
    """Return what runs or waits on a node, "" for all; a batch without a node comes from a reply of the own one."""
    unfinished = [batch for batch in store.batches.values() if batch.status in UNFINISHED]
    return [batch for batch in unfinished if not node or batch.node in ("", node)]


def reachable_batches(store: RunStore, node: str = "") -> list[BatchRun]:
    return [batch for batch in unfinished_batches(store, node) if not store.is_lost(batch)]


def has_unfinished(session: Session) -> bool:
    """Return whether this console may stop runs and some batch is still running or waiting."""
    may_stop = not session.read_only and session.control is not None
    return may_stop and bool(reachable_batches(session.store, session.node))


def can_pause(batch: BatchRun) -> bool:
    return batch.status == "running" or (batch.status == "queued" and not batch.is_held)


def can_resume(batch: BatchRun) -> bool:
    return batch.status in ("paused", "interrupted") or (batch.status == "queued" and batch.is_held)


def control_error_text(error: ControlRequestError) -> str:
    return "\n".join(sanitize_message(text, MAX_TOAST_CHARS) for text in (str(error), error.hint) if text)


class RunCommands:
    """Sends commands to the node of a session. Methods that send raise ``ControlRequestError`` on failure."""

    def __init__(self, session: Session, new_id: Callable[[], str] = new_ulid) -> None:
        self._session, self.new_id = session, new_id
        self.last_run: StartArgs | None = None
        self.last_replay: tuple[str, Literal["errors", "all"]] | None = None
        """The run that was played again since the last run, and what of it."""
        self._models_then: tuple[bool, list[str]] = False, []

    @property
    def control(self) -> NodeClient:
        """Raises ``ControlRequestError`` where commands are not allowed."""
        if self._session.read_only or self._session.control is None:
            raise ControlRequestError(self._session.read_only or "there is no node to control")
        return self._session.control

    def agent_choice(self) -> AgentChoice:
        """Return agent and model of the last run, unless the models are others now, or one can be used only now."""
        last, (had_problem, names) = self.last_run, self._models_then
        choice = default_agent(self._session.store)
        is_new = names != self._session.store.model_names or (had_problem and not choice.problem)
        return choice if last is None or last.agent is None or is_new else AgentChoice(last.agent, last.model, "")

    def single_run(self, envs: Sequence[str]) -> StartArgs:
        choice = self.agent_choice()
        return StartArgs(batch_id=self.new_id(), envs=list(envs), agent=choice.agent, model=choice.model)

    def repeat_run(self, keys: Sequence[str]) -> StartArgs:
        """Raises ``ControlRequestError``, whose hint names the ``keys`` that start a first run, if there was none."""
        if self.last_run is None:
            raise ControlRequestError("nothing has been started from here yet", f"press {' or '.join(keys)}")
        return msgspec.structs.replace(self.last_run, batch_id=self.new_id())

    async def start(self, args: StartArgs) -> list[str]:
        """Start a run and remember it as ``last_run``; return the node's distinct warnings."""
        batches = await self.control.start(args)
        self.last_run, self.last_replay, store = args, None, self._session.store
        self._models_then = bool(model_problem(store)), store.model_names
        self._session.store.apply_batches(batches)
        return list(dict.fromkeys(batch.warning for batch in batches if batch.warning))

    async def pause_or_resume(self, run_id: str, batches: Sequence[BatchRun]) -> tuple[list[BatchRun], str]:
        """Pause what can be paused of a run, or else resume what can be; return those batches, and the effect."""
        command: Literal["pause", "resume"] = "pause" if any(map(can_pause, batches)) else "resume"
        targets = list(filter(can_pause if command == "pause" else can_resume, batches))
        is_running = any(batch.status == "running" for batch in targets)
        if targets:
            await self.control.command(command, batch_id=run_id)
        return targets, "resumed" if command == "resume" else "paused after this step" if is_running else "paused"

    async def replay(self, run_id: str, only: Literal["errors", "all"]) -> str:
        """Play a batch or battery again, or only what ended with an error; return what is played."""
        batches = await self.control.replay(ReplayArgs(batch_id=run_id, only=only, new_batch_id=self.new_id()))
        self._session.store.apply_batches(batches)
        self.last_replay = run_id, only
        what = ", those that ended with an error" if only == "errors" else ""
        n = sum(batch.n_planned for batch in batches)
        return f"playing {n:,} episode{'s' * (n != 1)} again{what}"

    async def step(self, episode: Episode) -> None:
        await self.control.command("step", episode_id=episode.episode_id)

    async def cancel(self, batches: Sequence[BatchRun]) -> None:
        """Cancel one batch by its id, or several by that of their battery."""
        several = dict.fromkeys(batch.battery_id or batch.batch_id for batch in batches)
        for run_id in several if len(batches) > 1 else [batches[0].batch_id]:
            await self.control.command("cancel", batch_id=run_id)

    async def command_all(self, command: RunCommand) -> None:
        await self.control.command_all(command)


def split_tags(text: str) -> list[str]:
    return list(dict.fromkeys(text.replace(",", " ").split()))


async def annotate(session: Session, args: AnnotateArgs) -> Sequence[Note]:
    """Change the tags and notes of an episode or a step, show its tags, and return all that the episode has."""
    if session.read_only or session.control is None:
        raise ControlRequestError(session.read_only or "there is no node that keeps the notes of this episode")
    args.author = os.environ.get("USER", "")[:MAX_TAG_CHARS] or None
    notes = await session.control.annotate(args)
    episode_id, tags = args.episode_id, tags_of(notes)
    others = {known: each for known, each in session.store.tags.items() if known != episode_id}
    session.store.apply_tags({**others, episode_id: tags} if tags else others)
    return notes


def tags_of(notes: Sequence[Note]) -> tuple[str, ...]:
    return tuple(sorted({note.text for note in notes if note.kind == "tag"}))


class FormField(NamedTuple):
    id: str  # in ``StartArgs`` or in its budget
    title: str
    minimum: int
    maximum: int
    help: str
    default: str = ""  # "" if the field may be empty
    fraction: bool = False
    word: str = ""  # that may replace the number
    empty: str = ""  # what an empty field means; "" where the profile supplies the number
    zero: bool = False  # whether a fraction may be 0


FORM_FIELDS: Final = (
    FormField("repeat", "tasks", 1, MAX_EPISODES, "in order", "1"),
    FormField("attempts", "attempts", 1, MAX_EPISODES, "of each task", "1"),
    FormField("task_index", "first task", 0, _MAX_INTEGER, "counted from 0", "0"),
    FormField("seed", "seed", 0, _MAX_INTEGER, "of the agent", "0"),
    FormField("concurrency", "concurrency", 1, 256, "episodes at once"),
    FormField("workers", "workers", 0, 256, "processes, or ray", word="ray"),
    FormField("max_rounds", "rounds", 1, 100_000, "limit per episode"),
    FormField("max_duration_sec", "seconds", 0, 1_000_000, "limit per episode", fraction=True),
    FormField("until_width", "stop early", 0, 1, "95% interval width", fraction=True, empty="all tasks"),
    FormField("cost", "cost", 0, 10**9, "budget of a batch", fraction=True, empty="no limit"),
    FormField("tokens", "tokens", 1, 10**18, "budget of a batch", empty="no limit"),
    FormField("errors_in_a_row", "errors", 1, 10**9, "in a row: stop", empty="no limit"),
)
PROFILE_FIELDS: Final = (
    FormField("temperature", "temperature", 0, 100, "", fraction=True, empty="the server's", zero=True),
    FormField("max_tokens", "max tokens", 1, 10**9, "", empty="the server's"),
    FormField("concurrent_requests", "requests", 1, 10_000, "", empty="at once: no limit"),
    FormField("concurrent", "concurrency", 1, 256, "", "1"),
    FormField("max_rounds", "rounds", 1, 15, "", "15"),
    FormField("max_duration_sec", "seconds", 0, 300, "", "300", fraction=True),
)
"""Settings of a profile, by their keys; a profile that has more than the maximum keeps it as its own one."""
_BUDGET: Final = ("cost", "tokens", "errors_in_a_row")


class Parsed(NamedTuple):
    """A start request, or the errors of the fields by their ids, or by ``envs``, ``models`` and ``tasks``."""

    args: StartArgs | None
    errors: Mapping[str, str]


def parse_form(
    texts: Mapping[str, str],
    *,
    envs: Sequence[str],
    agent: str,
    model: str | None,
    batch_id: str,
    models: str = "",
    tasks: str = "",
    allow_longer: bool = False,
) -> Parsed:
    """Parse the texts of the fields, by their ids.

    ``model`` is None for that of the profile; ``models`` are several names with commas between. The request has the
    tasks of the file ``tasks``, never its path.
    """
    values: dict[str, int | float | str | None] = {}
    errors: dict[str, str] = {}
    for field in FORM_FIELDS:
        try:
            values[field.id] = _parse_number(field, texts.get(field.id, "").strip())
        except ConfigError as exc:
            errors[field.id] = str(exc)
    repeat, attempts = values.get("repeat"), values.get("attempts")
    if isinstance(repeat, int) and isinstance(attempts, int) and repeat * attempts > MAX_EPISODES:
        errors["attempts"] = f"more than {MAX_EPISODES:,} episodes"
    if values.get("until_width") is not None and (repeat == 1 or attempts != 1):
        errors["until_width"] = "needs 2 tasks" if repeat == 1 else "needs 1 attempt"
    if not envs:
        errors["envs"] = "choose one"
    several = [name.strip() for name in models.split(",")] if models.strip() else []
    if "" in several or len(set(several)) < len(several):
        errors["models"] = "an empty or repeated name"
    found: dict[str, tuple[int, ...]] = {}
    try:
        found = _read_tasks(tasks, envs) if tasks.strip() else {}
    except ConfigError as exc:
        errors["tasks"] = sanitize_message(str(exc), 300)
    if errors:
        return Parsed(None, errors)
    limits = {name: values.pop(name) for name in _BUDGET}
    chosen = {"batch_id": batch_id, "envs": list(envs), "agent": agent, "model": None if several else model}
    budget = limits if any(limits.values()) else None
    given = {"tasks": found, "models": several, "budget": budget, "allow_longer": allow_longer}
    return Parsed(msgspec.convert({**values, **chosen, **given}, StartArgs), {})


def _parse_number(field: FormField, text: str) -> int | float | str | None:
    """Return the number, the word of the field, or None for an empty optional one; raises ``ConfigError``."""
    if field.word and text == field.word:
        return text
    if not text and not field.default:
        return None
    if (_DECIMAL if field.fraction else _INTEGER).fullmatch(text) is None:
        raise ConfigError("must be a number" if field.fraction else "must be a whole number")
    value = float(text) if field.fraction else int(text)
    if field.fraction and value == 0 and not field.zero:
        raise ConfigError("more than 0")
    if not field.minimum <= value <= field.maximum:
        raise ConfigError(f"at least {field.minimum}" if value < field.minimum else f"at most {field.maximum:,}")
    return value


def parse_settings(fields: Sequence[FormField], texts: Mapping[str, str]) -> dict[str, int | float | None]:
    """Return the numbers of fields by their ids; the ``ConfigError`` of the first that is not valid has its title."""
    numbers: dict[str, int | float | None] = {}
    for field in fields:
        try:
            number = _parse_number(field, texts[field.id])
        except ConfigError as exc:
            raise ConfigError(f"{field.title}: {exc}") from exc
        numbers[field.id] = None if isinstance(number, str) else number
    return numbers


def _read_tasks(path: str, envs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the tasks in a file for each of the environments, all of which must have some; raises ``ConfigError``."""
    from runner.formats.task_files import read_tasks

    found = read_tasks(Path(path.strip()).expanduser(), envs[0] if len(envs) == 1 else None)
    if sum(map(len, found.values())) > MAX_TASKS:
        raise ConfigError(f"the file has more than {MAX_TASKS:,} tasks; play them with agentgym-runner --tasks")
    names = {env.lower(): env for env in envs}
    if other := sorted(found.keys() - names.keys()):
        raise ConfigError(f"the file has tasks of {', '.join(other)}, which is not chosen")
    if missing := [names[name] for name in names.keys() - found.keys()]:
        raise ConfigError(f"the file has no task of {', '.join(missing)}")
    return {names[name]: tasks for name, tasks in found.items()}


def default_text(field: FormField, defaults: Mapping[str, float | str | None]) -> str:
    """Return the placeholder of a field: for an empty optional field, the value that the profile supplies."""
    if field.default or field.empty:
        return field.empty
    return f"{number_text(defaults[field.id]) or 'auto'} (profile)" if field.id in defaults else "profile"


def form_texts(args: StartArgs | None) -> dict[str, str]:
    """Return the texts of the form fields for the same start request; the default texts where ``args`` is None."""
    if args is None:
        return {field.id: field.default for field in FORM_FIELDS}
    limits = args.budget or Budget()
    return {field.id: number_text(getattr(limits if field.id in _BUDGET else args, field.id)) for field in FORM_FIELDS}


def number_text(value: float | str | None) -> str:
    if value is None:
        return ""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
