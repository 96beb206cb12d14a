from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from runner.bus.connection import BusAddress, NatsConnection
from runner.cli.node import main_nats_info
from runner.cli.watch import json_lines, main_watch, plain_lines
from runner.errors import ConfigError
from runner.events import subjects
from runner.events.codec import encode
from runner.events.live import Heartbeat, LiveBatch
from runner.events.subjects import DurableNames
from runner.subscribe.buffer import DedupBuffer, RawMessage
from runner.subscribe.messages import BusMessage
from runner.util.display_text import MASK, masker
from tests.support.nats_server import NatsAccount, NatsServer
from tests.support.publishing import nats_client
from tests.support.subscriptions import SUBJECT, add_stream, publish_events, status_event, status_headers
from tests.support.watch_process import CANARY, read_line, watch

pytestmark = pytest.mark.long

ORIGINAL = b'{"env":"Maze","success":true,"score":0.25,"rounds":3,"duration_sec":2.5,"model":"m","node":"4090"}'
FIELD_RUNNER = [
    (subjects.FIELD_STATUS, b'{"node":"4090","config":"p","status":"started"}'),
    (subjects.EPISODE_COMPLETED, b'{"episode_id":"e1","env":"Maze","reward":1.0,"rounds":3,"duration_s":2.5}'),
    (subjects.EPISODE_COMPLETED, b'{"episode_id":"e1","env":"Maze","reward":1.0,"rounds":3,"duration_s":2.5}'),
    (subjects.EPISODE_COMPLETED, ORIGINAL),
    (subjects.EPISODE_COMPLETED, ORIGINAL),
    (subjects.BATCH_COMPLETED, b'{"batch_id":"b1","env":"Maze","n_episodes":4,"mean_reward":0.5}'),
]
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@asynccontextmanager
async def secured_bus(folder: Path) -> AsyncIterator[tuple[NatsServer, NatsConnection]]:
    """Run a server with a password and a stream; yield it with a connection."""
    users = {"authorization": {"users": [{"user": "me", "password": CANARY}]}}
    with NatsServer(folder / "nats", config=users) as server:
        address = BusAddress(server.url, user="me", password=CANARY)
        async with await NatsConnection.open(address, name="publisher") as connection:
            await add_stream(connection.client)
            yield server, connection


async def test_json_lines_are_printed_until_interrupted(tmp_path: Path) -> None:
    async with secured_bus(tmp_path) as (server, publisher):
        await publish_events(publisher.client, 1)
        async with watch(tmp_path, "--nats", server.url, "--since", "all", "--json") as process:
            document = json.loads(await read_line(process))
            assert (document["row"], document["id"], document["subject"], document["stream"]) == (
                "event",
                "status:b:1",
                SUBJECT,
                "S",
            )
            assert (document["sequence"], document["data"]["pid"], document["headers"]["ce-source"]) == (1, 1, "n")
            await publish_events(publisher.client, 2)
            assert json.loads(await read_line(process))["data"]["pid"] == 2
            await publisher.client.publish("agentgym.other", b"\x1b[2J \xff \x7f \xc2\x9b31m")
            text = await read_line(process)
            assert json.loads(text)["payload"] == "\x1b[2J \\xff \x7f \x9b31m"
            assert text.strip().isascii()
            assert text.strip().isprintable()
            assert process.stderr is not None
            notices = await process.stderr.readuntil(b"only new ones of those are shown")
            process.send_signal(signal.SIGINT)
            stdout, rest = await process.communicate()
            notices += rest
            assert (process.returncode, stdout) == (130, b"")
            assert b"Traceback" not in notices
            assert CANARY.encode() not in notices


async def test_the_events_of_another_field_runner_are_printed(tmp_path: Path) -> None:
    async with secured_bus(tmp_path) as (server, publisher):
        await add_stream(publisher.client, "THEIRS", subjects=["agentgym.episode.*.v1", "agentgym.eval.>"])
        for subject, payload in FIELD_RUNNER:
            await publisher.client.jetstream().publish(subject, payload)
        for _ in range(2):
            options = ("--nats", server.url, "--since", "all")
            async with watch(tmp_path, *options, "--json") as process, watch(tmp_path, *options) as plain:
                rows = [json.loads(await read_line(process)) for _ in range(5)]
                lines = [await read_line(plain) for _ in range(5)]
            assert {row["row"] for row in rows} == {"event"}
            by_id = {row["id"]: row["data"] for row in rows}
            assert by_id["episode:e1"]["success"] is None and by_id["batch:b1"]["mean_reward"] == 0.5
            others = [data for name, data in by_id.items() if data.get("score") == 0.25]
            assert len({data["episode_id"] for data in others}) == 2
            assert sum("episode_id=e1" in line and "reward=1.0" in line for line in lines) == 1
            assert any("node=4090 config=p status=started" in line for line in lines)


async def test_plain_lines_are_safe(tmp_path: Path) -> None:
    async with (
        secured_bus(tmp_path) as (server, publisher),
        watch(tmp_path, "--nats", server.url, "--since", "1h", "--subject", SUBJECT) as process,
    ):
        await publisher.client.jetstream().publish(SUBJECT, status_event(7), headers=status_headers(7))
        assert "status=idle" in await read_line(process)
        await publisher.client.jetstream().publish(SUBJECT, f"\x1b[31m\u202e{CANARY}\nx".encode())
        line = await read_line(process)
        assert "␛[31m" in line
        assert line.strip().isprintable()
        assert CANARY not in line
        assert "not JSON" in line


async def test_a_closed_pipe_ends_watch(bus: NatsAccount, tmp_path: Path) -> None:
    async with nats_client(bus) as client:
        await add_stream(client)
        await publish_events(client, 1)
        async with watch(tmp_path, "--nats", bus.url, "--since", "all") as process:
            await read_line(process)
            assert process.stdout is not None
            process.stdout._transport.close()  # type: ignore[attr-defined]
            number = 2
            while process.returncode is None:
                await publish_events(client, number)
                number += 1
                await asyncio.sleep(0.05)
            assert process.stderr is not None
            assert process.returncode == 0
            assert b"Traceback" not in await process.stderr.read()


async def test_a_wrong_password_is_named(tmp_path: Path) -> None:
    async with (
        secured_bus(tmp_path) as (server, _),
        watch(tmp_path, "--nats", server.url, password="wrong-" + CANARY) as process,
    ):
        stdout, stderr = await process.communicate()
        assert (process.returncode, stdout) == (2, b"")
        assert b"does not accept the credentials" in stderr
        assert CANARY.encode() not in stderr


async def test_watch_waits_for_a_bus_that_starts_later(tmp_path: Path) -> None:
    async with secured_bus(tmp_path) as (server, publisher):
        await publish_events(publisher.client, 1)
        server.kill()
        async with watch(tmp_path, "--nats", server.url, "--since", "all", "--json") as process:
            assert process.stderr is not None
            assert b"cannot be reached" in await process.stderr.readline()
            server.start()
            assert json.loads(await read_line(process))["data"]["pid"] == 1


def test_without_a_node_there_is_nothing_to_watch(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No node has run in"):
        main_watch(["--data-dir", str(tmp_path)])


@pytest.mark.parametrize(
    "options", [["--since", "yesterday"], ["--since", "0"], ["--since", "-5m"], ["--subject", "a b"], ["--subject", ""]]
)
def test_invalid_options_exit_with_usage(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main_watch([*options, "--nats", "nats://127.0.0.1:1"])
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


async def bus_message(subject: str, payload: bytes, hours: float = 0.0) -> BusMessage:
    headers = status_headers(1, AT + timedelta(hours=hours)) if subject == SUBJECT else {}
    message = DedupBuffer(DurableNames()).decode(RawMessage(subject, headers, payload, "S", 3, AT))
    assert message is not None
    return message


async def test_every_live_item_has_a_line() -> None:
    items = [Heartbeat(at=AT), Heartbeat(at=AT)]
    payload = encode(LiveBatch(node="n", boot="b", dropped=0, items=[*items]))
    payload = payload.replace(b"]}", b',{"kind":"new","at":"2026-01-02T03:04:05Z"}]}')
    message = await bus_message(subjects.live_subject("health", "n"), payload)
    lines = list(plain_lines(message, masker()))
    assert [line.split()[1:4] for line in lines] == [["#3", "n", "heartbeat"]] * 2 + [["#3", "n", "?"]]
    (document,) = json_lines(message, masker())
    assert len(json.loads(document)["data"]["items"]) == 2
    assert "new" in json.loads(document)["raw"][0]["payload"]


@pytest.mark.parametrize("value", ["1e999", "9" * 5_000, "[" * 900 + "]" * 900, "null"])
async def test_malformed_spans_and_steps_are_shown_raw(value: str) -> None:
    span = f'{{"kind":"span","at":"2026-01-02T03:04:05Z","episode_id":"e","seq":0,"span":{value}}}'
    payload = f'{{"node":"n","boot":"b","dropped":0,"items":[{span}]}}'.encode()
    message = await bus_message(subjects.live_subject("span", "n"), payload)
    (line,) = plain_lines(message, masker())
    assert "n ? reason=" in line
    (document,) = json_lines(message, masker())
    assert json.loads(document)["data"]["items"] == []
    assert value in json.loads(document)["raw"][0]["payload"]


async def test_headers_that_are_not_text_are_shown() -> None:
    message = await bus_message(SUBJECT, status_event(1))
    (document,) = json_lines(msgspec.structs.replace(message, headers={"a": "\udcff"}), masker())
    assert json.loads(document)["headers"] == {"a": "\udcff"}


@pytest.mark.parametrize(("hours", "expected"), [(1.0, "clock=3600s"), (-1.0, "late=3600s"), (0.0, "")])
async def test_clock_differences_are_printed(hours: float, expected: str) -> None:
    (line,) = plain_lines(await bus_message(SUBJECT, status_event(1), hours), masker())
    assert expected in line
    assert ("clock" in line or "late" in line) == bool(expected)


async def test_secrets_are_masked_in_strings_and_leave_the_document_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_TOKENS", "12345678")
    monkeypatch.setenv("API_KEY", CANARY)
    payload = status_event(12345678).replace(b'"p"', json.dumps(f"{CANARY} 12345678").encode())
    (text,) = json_lines(await bus_message(SUBJECT, payload), masker())
    data = json.loads(text)["data"]
    assert (data["pid"], data["config"]) == (12345678, "*** ***")


SECRETS = ["p/a:s@s", "both \" and '", "back\\slash", "two\nlines", "ünï-\U0001f511-\x7f"]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("quote", [str, repr, json.dumps], ids=["plain", "repr", "json"])
async def test_secrets_are_masked_however_json_writes_them(secret: str, quote: Callable[[str], str]) -> None:
    message = await bus_message(SUBJECT, status_event(1))
    quoted = quote(secret)
    quotes = quoted[0] if quote is not str else ""
    message = msgspec.structs.replace(message, headers={"a": quoted})
    (document,) = json_lines(message, masker({"TOKEN": secret}))
    assert json.loads(document)["headers"] == {"a": quotes + MASK + quotes}
    (document,) = json_lines(message, masker({}, ["absent"]))
    assert json.loads(document)["headers"] == {"a": quoted}


async def test_user_information_in_urls_is_masked() -> None:
    message = await bus_message(SUBJECT, status_event(1))
    message = msgspec.structs.replace(message, headers={"a": "nats://me:pass@host"})
    (document,) = json_lines(message, masker({}))
    assert json.loads(document)["headers"] == {"a": f"nats://{MASK}@host"}


def _write_node_file(folder: Path) -> None:
    node = {
        "node": "n1",
        "boot": "b",
        "pid": 1,
        "url": "nats://127.0.0.1:4999",
        "credential_file": str(folder / "nats" / "credential.json"),
        "started_at": "2026-01-02T03:04:05Z",
        "version": "1",
    }
    (folder / "node.json").write_text(json.dumps(node))
    (folder / "nats").mkdir()
    (folder / "nats" / "credential.json").write_text(json.dumps({"user": "u", "password": CANARY}))


def test_nats_info_prints_the_address_of_the_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_node_file(tmp_path)
    assert main_nats_info(["--data-dir", str(tmp_path)]) == 0
    printed, warned = capsys.readouterr()
    assert "nats://127.0.0.1:4999" in printed
    assert str(tmp_path / "nats" / "credential.json") in printed
    assert "is not running" in warned
    assert main_nats_info(["--data-dir", str(tmp_path), "--json"]) == 0
    json_output = capsys.readouterr().out
    assert json.loads(json_output) == {
        "url": "nats://127.0.0.1:4999",
        "credential_file": str(tmp_path / "nats" / "credential.json"),
        "node": "n1",
        "running": False,
    }
    assert CANARY not in printed + json_output


@pytest.mark.parametrize(
    ("text", "expected"), [(None, "No node has run in"), ("{", "cannot be read"), ("[]", "cannot be read")]
)
def test_nats_info_without_a_usable_node_file_is_an_error(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "node.json").write_text(text)
    with pytest.raises(ConfigError, match=expected):
        main_nats_info(["--data-dir", str(tmp_path)])
