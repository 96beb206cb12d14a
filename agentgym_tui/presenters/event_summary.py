"""What a message of a bus says in a line; read only of messages that are looked at."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from agentgym_tui.presenters.cells import Cell, Tone
from agentgym_tui.presenters.number_format import counted, percent, quantity, reward
from agentgym_tui.safe_text import Safe, is_hostile, join, line, own
from agentgym_tui.state.bus_message import Message
from runner.events import codec
from runner.events.codec import DurableNames, decode
from runner.events.decoded import DurableRow, ForeignRow, LiveRow, RawRow
from runner.events.durable import BatchCompleted, DurableEvent, EpisodeCompleted, FieldStatus
from runner.events.limits import check_limits

SHOWN: Final = 200
"""Characters of a foreign payload in a row."""

MAX_KINDS: Final = 6
MAX_KNOWN: Final = 1_000
NAMES: Final = DurableNames()

_LIVE: Final = re.compile(r"agentgym\.live\.[a-z]+\.v1\.([^.]+)")
_TYPES: Final = frozenset(NAMES.all())


class Facts(NamedTuple):
    """What is known of a message: ``node`` and ``episode_id`` are hostile text; ``changed``: some of it was."""

    node: str
    summary: Cell
    episode_id: str = ""
    changed: bool = False


class _Item(msgspec.Struct):
    kind: str
    episode_id: str = ""
    env: str = ""
    outcome: str = ""


class _Batch(msgspec.Struct):
    node: str
    items: list[_Item]
    dropped: int = 0


class _Named(msgspec.Struct):
    episode_id: str = ""


class FactBook:
    """The facts of the messages that were looked at last, by their numbers."""

    def __init__(self) -> None:
        """Start empty."""
        self._known: dict[int, Facts] = {}

    def of(self, message: Message) -> Facts:
        """Those of a message."""
        if (known := self._known.get(message.number)) is not None:
            return known
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        facts = facts_of(message)
        return self._known.setdefault(message.number, facts._replace(changed=_is_hostile(message, facts)))


def facts_of(message: Message) -> Facts:
    """Read a message as far as a line needs it; whatever it is, this does not fail."""
    node = next((value for key, value in message.headers.items() if key.lower() == "ce-source"), "")
    if (live := _LIVE.fullmatch(message.subject)) is not None:
        return _live(message, node or live[1])
    if is_ours(message):
        return _durable(message, node)
    return Facts(node, Cell(_text(message), "plain"), _named(message))


def is_ours(message: Message) -> bool:
    """Whether its subject or its type says that it is one of ours, so that it has to decode."""
    if message.subject in _TYPES or _LIVE.fullmatch(message.subject):
        return True
    return any(key.lower() == "ce-type" and value.strip() in _TYPES for key, value in message.headers.items())


def trouble_of(message: Message) -> str:
    """Why it, or a part of it, does not decode though it should; hostile text, "" where it does, or need not."""
    if not is_ours(message):
        return ""
    match decode(message.subject, message.headers, message.payload, NAMES):
        case RawRow() as row:
            return row.reason
        case LiveRow() as row:
            raw = [*row.raw, *(read for item in row.batch.items if isinstance(read := codec.read(item), RawRow))]
            return f"{len(raw)} of its items: {raw[0].reason}" if raw else ""
    return ""


def _is_hostile(message: Message, facts: Facts) -> bool:
    """Whether cleaning changes what a row shows, or the beginning of what it stands for."""
    head = message.payload[: 4 * SHOWN].decode("utf-8", "replace")
    return any(map(is_hostile, (message.subject, facts.node, head)))


def _live(message: Message, node: str) -> Facts:
    try:
        check_limits(message.payload)
        batch = _BATCH.decode(message.payload)
    except (ValueError, RecursionError):
        return Facts(node, _malformed(message))
    named = (item.episode_id for item in batch.items if item.episode_id)
    return Facts(batch.node, Cell(_items(batch)), next(named, ""))


def _items(batch: _Batch) -> Safe:
    """Such as ``3 timestep, 120 token``."""
    kinds = Counter(item.kind for item in batch.items)
    shown = [line(kind, 40) if n == 1 else join([own(f"{n:,} "), line(kind, 40)]) for kind, n in kinds.most_common()]
    parts = [join(shown[:MAX_KINDS], ", "), *([own("…")] if len(shown) > MAX_KINDS else [])]
    said = next((item for item in batch.items if item.env or item.outcome), None)
    parts += [line(f"{said.env} {said.outcome}".strip(), 80)] if said else []
    parts += [own(f"{quantity(batch.dropped)} dropped before")] if batch.dropped else []
    return join(filter(None, parts), " · ") or own("nothing")


def _durable(message: Message, node: str) -> Facts:
    match decode(message.subject, message.headers, message.payload, NAMES):
        case DurableRow(event=event):
            named = event.episode_id if isinstance(event, EpisodeCompleted) else ""
            return Facts(event.node, Cell(join(_said(event), " · "), _tone(event)), named)
        case ForeignRow(event=episode):
            return Facts(node, Cell(join([line(episode.env, 60), own(f"reward {reward(episode.score)}")], " · ")))
    return Facts(node, _malformed(message), _named(message))


def _said(event: DurableEvent) -> Iterator[Safe]:
    match event:
        case EpisodeCompleted():
            yield line(f"{event.env} {event.outcome}", 80)
            yield own(f"reward {reward(event.reward)}")
            yield counted(event.rounds, "round")
            yield line(f"{event.agent} {event.model or ''}".strip(), 80)
        case BatchCompleted():
            yield line(f"{event.env} {event.status}", 80)
            yield counted(event.n_episodes, "episode")
            rate = event.success_rate
            yield own(f"success {percent(None if rate is None else 100 * rate)}")
            yield own(f"mean reward {reward(event.mean_reward)}")
        case FieldStatus():
            yield line(f"{event.role} {event.status}", 60)
            yield line(event.config, 60)


def _tone(event: DurableEvent) -> Tone:
    if isinstance(event, EpisodeCompleted):
        return "good" if event.success else "plain"
    return "plain"


def _malformed(message: Message) -> Cell:
    reason = trouble_of(message) or "not as the others of its subject"
    return Cell(join([own("✗ malformed: "), line(reason, 120)]), "bad")


def _text(message: Message) -> Safe:
    """The beginning of a payload that is no message of ours."""
    head = message.payload[: 4 * SHOWN]
    try:
        text = head.decode()
    except UnicodeDecodeError as exc:
        if len(head) == message.n_bytes or exc.start < len(head) - 3:
            return own(f"{counted(message.n_bytes, 'byte')}, no text")
        text = head[: exc.start].decode()
    return line(text, SHOWN) if text else own("empty")


def _named(message: Message) -> str:
    """The episode that a payload names, "" for none."""
    try:
        check_limits(message.payload)
        return _NAMED.decode(message.payload).episode_id
    except (ValueError, RecursionError):
        return ""


_BATCH = msgspec.json.Decoder(_Batch)
_NAMED = msgspec.json.Decoder(_Named)
