"""``agentgym-runner watch``: print the messages of a bus as lines, for pipes and small terminals."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from runner.bus.address import BusAddress, address_from_environ, address_of_node
from runner.bus.connection import NatsConnection
from runner.bus.errors import BusError
from runner.cli.arguments import add_state_options, subcommand_parser
from runner.cli.run_session import read_state
from runner.cli.terminal import print_stderr
from runner.client.target import wait_for_node_files
from runner.errors import ConfigError, RunnerError, catch_foreign
from runner.events.codec import DurableRow, LiveRow, RawRow, decode_item
from runner.events.live import LiveBatch, LiveItem
from runner.events.subjects import LIVE_SUBJECTS, PATTERN, DurableNames
from runner.subscribe.messages import BusMessage, Notice, Since
from runner.subscribe.subscription import Subscription
from runner.util.display_text import SecretMasker, mask, masker, one_line

MAX_LINE = 600
MAX_VALUE = 120
MAX_CLOCK_SKEW_S = 2.0
"""Seconds between the clocks of sender and receiver above which the difference is printed."""
ALL_SUBJECTS = "agentgym.>"

EPILOG = """Without --nats, watch connects to the node of the state directory. Credentials for another bus come from the
variables NATS_USER and NATS_PASSWORD, NATS_TOKEN, NATS_NKEY or NATS_CREDS (files), and NATS_CA, NATS_CERT, NATS_KEY,
NATS_TLS_FIRST. Notices, such as lost connections and gaps, go to standard error. Ctrl-C exits with code 130."""

_SINCE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def plain_lines(message: BusMessage, mask: SecretMasker) -> Iterator[str]:
    at = message.time.astimezone().strftime("%H:%M:%S") if message.time else "-"
    position = "-" if message.sequence is None else f"#{message.sequence}"
    for kind, fields in _contents(message):
        known = ((name, value) for name, value in {**fields, **_clock(message)}.items() if value is not None)
        parts = (f"{name}={_format_value(value)}" for name, value in known)
        yield one_line(mask(" ".join([at, position, kind, *parts])), MAX_LINE)


def json_lines(message: BusMessage, mask: SecretMasker) -> Iterator[str]:
    document: dict[str, Any] = {
        "subject": message.subject,
        "stream": message.stream,
        "sequence": message.sequence,
        "time": message.time,
        "headers": message.headers,
        **_document(message),
    }
    plain = msgspec.to_builtins(document)
    text = json.dumps(plain)
    if mask.may_change(text):
        text = json.dumps(_mask_strings(plain, mask))
    yield text.replace("\x7f", "\\u007f")


def _mask_strings(value: Any, mask: SecretMasker) -> Any:  # noqa: ANN401 - any JSON value
    """Return a value with secrets masked in all its strings; masking the encoded text could break the JSON."""
    match value:
        case str():
            return mask(value)
        case dict():
            return {name: _mask_strings(item, mask) for name, item in value.items()}
        case list():
            return [_mask_strings(item, mask) for item in value]
    return value


def _document(message: BusMessage) -> dict[str, Any]:
    match message.decoded:
        case DurableRow() as row:
            return {"row": "event", "id": row.id, "type": row.type, "data": row.event}
        case LiveRow() as row:
            items, unusable = _read(row)
            batch = LiveBatch(node=row.batch.node, boot=row.batch.boot, dropped=row.batch.dropped, items=items)
            return {"row": "live", "data": batch, "raw": [_raw(raw) for raw in unusable]}
        case RawRow() as row:
            return {"row": "raw", **_raw(row)}


def _read(row: LiveRow) -> tuple[list[LiveItem], list[RawRow]]:
    items = [decode_item(item) for item in row.batch.items]
    unusable = [item for item in items if isinstance(item, RawRow)]
    return [item for item in items if not isinstance(item, RawRow)], [*row.raw, *unusable]


def _raw(row: RawRow) -> dict[str, Any]:
    return {"reason": row.reason, "size": row.size, "payload": row.payload.decode("utf-8", "backslashreplace")}


def _contents(message: BusMessage) -> Iterator[tuple[str, Mapping[str, Any]]]:
    match message.decoded:
        case DurableRow() as row:
            yield row.type, msgspec.to_builtins(row.event)
        case LiveRow() as row:
            items, unusable = _read(row)
            for item in items:
                fields = msgspec.to_builtins(item)
                yield f"{row.batch.node} {fields.pop('kind')}", fields
            for raw in unusable:
                yield f"{row.batch.node} ?", _raw(raw)
        case RawRow() as row:
            yield message.subject, _raw(row)


def _clock(message: BusMessage) -> dict[str, str]:
    ahead_s = message.ahead_s or 0.0
    if abs(ahead_s) <= MAX_CLOCK_SKEW_S:
        return {}
    return {"clock" if ahead_s > 0 else "late": f"{abs(ahead_s):.0f}s"}


def _format_value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def main_watch(argv: Sequence[str]) -> int:
    """Print the messages of a bus until interrupted, or until the reader of the output closes the pipe."""
    options = build_parser().parse_args(argv)
    failures: list[BaseException] = []
    with catch_foreign(failures.append):
        asyncio.run(_watch(options))
    for failure in failures:
        if isinstance(failure, RunnerError | OSError):
            raise failure
        # A traceback could quote untrusted data of the bus.
        reason = one_line(mask(str(failure)))
        raise RunnerError(f"watching the bus failed: {type(failure).__name__}: {reason}") from failure
    return 0


async def _watch(options: argparse.Namespace) -> None:
    profile, data_dir = read_state(options, creates=True)
    names = DurableNames.of(profile.nats)
    lines = json_lines if options.json else plain_lines
    mask_text = masker()
    async with await _connect(options.nats, data_dir) as connection:
        # The broker of a node also carries control requests, which are left out.
        patterns = options.subject or [*names.all(), ALL_SUBJECTS if options.nats else LIVE_SUBJECTS]
        async with Subscription(connection, patterns=patterns, since=options.since, names=names) as subscription:
            while True:
                items = await subscription.next_batch()
                text = ""
                for item in items:
                    if isinstance(item, Notice):
                        print_stderr(f"-- {one_line(mask(item.text), MAX_LINE)}")
                    else:
                        text += "".join(f"{line}\n" for line in lines(item, mask_text))
                if text:
                    await asyncio.to_thread(print, text, end="", flush=True)  # a full pipe may block


async def _connect(url: str | None, data_dir: Path) -> NatsConnection:
    """Return a connection, which may still retry to connect; only rejected credentials and TLS problems raise."""

    def read_address() -> BusAddress | None:
        return address_from_environ(url, os.environ) if url else address_of_node(data_dir)

    if not url:
        await wait_for_node_files(data_dir, read_address)
    address = read_address()
    if address is None:
        raise ConfigError(
            f"No node has run in {data_dir}; start one with `agentgym-runner node`, or name a bus with --nats"
        )
    connection = await NatsConnection.open(address, name="agentgym-watch", read_address=read_address, required=False)
    state = connection.state
    if state.kind in ("auth", "tls"):
        await connection.close()
        raise BusError(state.kind, state.reason)
    return connection


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser("watch", "Print the messages of a bus, one line each.", epilog=EPILOG)
    parser.add_argument("--nats", metavar="URL", help="another bus instead of the node's broker")
    parser.add_argument(
        "--since",
        type=_since,
        default="now",
        metavar="1h|all|SEQ",
        help="start this far back, at the beginning, or at a sequence",
    )
    parser.add_argument(
        "--subject",
        type=_subject,
        action="append",
        metavar="PATTERN",
        help="only matching subjects, with the NATS wildcards * and >; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document per line")
    add_state_options(parser)
    return parser


def _since(text: str) -> Since:
    if text == "now":
        return "now"
    if text == "all":
        return "all"
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if (ago := _SINCE.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be now, all, a time such as 30s, 10m, 1h or 2d, or a sequence from 1"
        )
    try:
        return timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    except OverflowError:
        return "all"


def _subject(text: str) -> str:
    if PATTERN.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a subject: words joined by dots, * for one word, > at the end"
        )
    return text
