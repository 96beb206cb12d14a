"""A node with a hostile text in every string of its replies and events: what reaches the output of the clients."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.cli import main
from runner.events.control import ERRORS, Op
from tests.support.escapes import foreign_characters
from tests.support.examples import examples
from tests.support.hostile_node import ENV, EPISODE, FORGED, IDS, OTHER, SECRETS, HostileNode
from tests.support.mcp_process import McpProcess
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.long

SCHEMA = jsonschema.Draft202012Validator(json.loads(Path("docs/schemas/agentgym.ctl.v1.json").read_text()))
_NAMES: Final = {
    "BatchCompleted": "env",
    "BatchState": "agent, batch_id, battery_id, env, extends, model",
    "EnvHealth": "env, transport",
    "EpisodeCompleted": "env, episode_id",
    "EpisodeEntry": "agent, batch_id, env, episode_id, error_type, flags, models, outcome",
    "EpisodeRecord": "env",
    "FailureCluster": "cause, env, episodes, flags key, id, representative",
    "Heartbeat": "profile, status, version",
    "LogLines": "names",
    "ModelHealth": "endpoint, model",
    "NodeHealth": "boot, egress, node, profile, version",
    "NodeList": "agents, batteries, batteries key, envs, models",
    "ResultSummary": "agent, data_label, env, limits, mode, model, outcomes key",
    "ServerInfo": "env",
}
"""Fields with names, ids and classes. Every other text that a node sends is foreign, as is one of a new field."""
NAMES: Final = {f"{struct}.{field}" for struct, fields in _NAMES.items() for field in fields.split(", ")}
READING: Final = [
    ["list"],
    ["show", "last"],
    ["show", EPISODE],
    ["results", "last"],
    ["episodes", "env:maze"],
    ["compare", EPISODE, OTHER],
    ["logs"],
    ["logs", "node.log"],
    ["health"],
]
FOLLOWING: Final = [["follow", "last"], ["submit", "--run", ENV, "--wait"], ["again", "last", "--follow"]]
ORDERS: Final = [
    ["env", "start", ENV],
    ["pause", "last"],
    ["again", "last"],
    ["submit", "--run", ENV, "--wait"],
    ["stop"],
]
DRY_RUN: Final = ["submit", "--run", ENV, "--dry-run"]
CHANGING: Final = [
    ["env", "start", ENV],
    ["env", "stop", ENV],
    *([verb, "last"] for verb in ("pause", "resume", "step", "cancel", "move", "again")),
    *([verb, "--all"] for verb in ("pause", "resume", "cancel")),
    ["set", "last", "--concurrency", "2"],
    ["extend", "last", "--repeat", "5"],
    ["submit", "--run", ENV],
    DRY_RUN,
    ["stop"],
    ["stop", "--drain"],
]
_BREAKS: Final = {9: None, 10: None}
MODES: Final = [[], ["--json"], ["--content"], ["--json", "--content"]]


@pytest.fixture(scope="module")
def running_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileNode]:
    folder = tmp_path_factory.mktemp("hostile")
    with NatsServer(folder, config={"max_payload": 4 << 20}) as server, HostileNode(server.url) as node:
        yield node


@pytest.fixture
def node(running_node: HostileNode, monkeypatch: pytest.MonkeyPatch) -> HostileNode:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    running_node.reset()
    return running_node


class Printed:
    """What a command printed, which is checked for what must not be there."""

    def __init__(
        self, node: HostileNode, words: Sequence[str], capsys: pytest.CaptureFixture[str], *, names_node: bool = True
    ) -> None:
        self.code = main(["ctl", *words, "--nats", node.url, *(("--node", node.name) if names_node else ())])
        out, err = capsys.readouterr()
        assert self.code in (0, 1)
        self.documents: list[Any] = []
        if "--json" in words:
            assert not foreign_characters(out.replace("\n", ""))
            self.documents = [json.loads(text) for text in ([out] if out[:2] == "{\n" else out.splitlines())]
            self.quoted = check_documents(node, self.documents, is_shown="--content" in words)
        else:
            is_log = words[0] == "logs" and "--content" in words
            self.quoted = []
            assert not foreign_characters(out.translate(_BREAKS if is_log else {10: None}))
            assert is_log or FORGED not in [line[: len(FORGED)] for line in out.splitlines()]
            assert "--content" in words or fields(node, out) <= NAMES
            assert not any(secret in out for secret in SECRETS.values())
        assert len(err.splitlines()) <= 1 and not foreign_characters(err.replace("\n", ""))
        assert "--content" in words or fields(node, err) <= NAMES
        assert not any(secret in err for secret in SECRETS.values())
        self.out, self.err = out, err


def check_documents(node: HostileNode, documents: Sequence[Any], *, is_shown: bool) -> list[Any]:
    """Check documents, and return the wrapped texts that they have."""
    for document in documents:
        SCHEMA.validate(document)
    found, bare = split(documents)
    assert fields(node, json.dumps(bare)) <= NAMES
    assert not any(secret in json.dumps(documents) for secret in SECRETS.values())
    assert not foreign_characters("".join(strings(bare)))
    for each in found:
        assert each["foreign"] is True and (each["text"] is not None) is is_shown
        assert not foreign_characters((each["text"] or "").translate(_BREAKS))
    results = [document["result"] for document in documents if (document["result"] or {}).get("kind") != "gap"]
    for each in filter(lambda quoted: quoted["chars"], split(results)[0]):
        assert bool(fields(node, each["text"] or "")) is is_shown
        assert each["chars"] == originals(node)[each["sha256"]]
    return found


def originals(node: HostileNode) -> dict[str, int]:
    """Return the number of characters of each text of a node by its hash."""
    sent = node.texts.text
    texts = [sent(field) for field in node.texts.fields.values()]
    texts.append(f"{sent('ErrorInfo.type')}: {sent('ErrorInfo.message')}")
    call = f"{sent('ToolCall.name')} {sent('ToolCall.arguments')}"
    texts += [f"{sent(f'{kind}.text')}\n{call}" for kind in ("Action", "LiveAction")]
    return {hashlib.sha256(text.encode()).hexdigest(): len(text) for text in texts}


def fields(node: HostileNode, text: str) -> set[str]:
    """Return the fields whose marks a text has."""
    return {node.texts.fields[mark] for mark in re.findall(r"needle\d{3}x", text)}


def split(value: Any) -> tuple[list[Any], Any]:  # noqa: ANN401 - any JSON
    """Return the wrapped texts of a document, and it without them."""
    if isinstance(value, dict) and "foreign" in value:
        return [value], None
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    parts = {key: split(item) for key, item in items}
    found = [each for quoted, _ in parts.values() for each in quoted]
    return found, [[key, bare] for key, (_, bare) in parts.items()] if items else value


def strings(value: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if isinstance(value, list):
        yield from (text for item in value for text in strings(item))
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("words", READING + CHANGING, ids=" ".join)
def test_foreign_text_is_withheld_or_wrapped_and_no_text_acts_on_a_terminal(
    node: HostileNode, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for mode in MODES:
        printed = Printed(node, [*words, *mode], capsys)
        assert printed.code == 0
        assert bool(printed.quoted) is ("--json" in mode and words[0] not in ("episodes", "stop") and words != DRY_RUN)


@pytest.mark.parametrize("mode", MODES, ids=" ".join)
@pytest.mark.parametrize("words", [["follow", "last"], ["submit", "--run", ENV, "--follow"]], ids=" ".join)
def test_what_is_followed_is_withheld_or_wrapped(
    node: HostileNode, words: list[str], mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = Printed(node, [*words, *mode], capsys)
    kinds = [document["result"].get("kind") for document in printed.documents]
    assert printed.code == 0 and printed.out.count("step") >= 2
    assert "--json" not in mode or kinds[-4:] == ["step", "step", "episode", "batch"]


@pytest.mark.parametrize("mode", [[], ["--json"]], ids=str)
def test_steps_of_a_hostile_episode_are_a_gap(
    node: HostileNode, mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    field = "EpisodeCompleted.episode_id"
    node.reset(IDS | {field: node.texts.text(field)})
    node.texts.text(field)  # gets the same mark, as the first field
    node.change = lambda op, reply: b"x" if op == "episode" else reply
    printed = Printed(node, ["follow", "last", *mode], capsys)
    assert printed.code == 0 and "its file cannot be read" in printed.out


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60), words=st.sampled_from(READING + CHANGING), mode=st.sampled_from(MODES))
def test_no_text_at_all_is_shown_where_it_must_not_be(
    node: HostileNode, text: str, words: list[str], mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    node.reset(text=f"{text}\n{FORGED}{text}")
    assert Printed(node, [*words, *mode], capsys).code == 0


@pytest.mark.parametrize("code", [*ERRORS, ""])
def test_the_words_of_a_refusal_are_foreign(node: HostileNode, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    node.error = code
    for mode in MODES:
        printed = Printed(node, ["health", *mode], capsys)
        assert printed.code == 1


@pytest.mark.parametrize("words", READING + CHANGING + FOLLOWING, ids=" ".join)
def test_ids_may_be_hostile_too(node: HostileNode, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    node.reset({})
    for mode in MODES:
        Printed(node, [*words, *mode], capsys)


@pytest.mark.parametrize("words", READING + ORDERS, ids=" ".join)
def test_replies_that_are_none_end_a_command_with_a_code(
    node: HostileNode, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(N_ODD):
        node.change = partial(odd_reply, number)
        assert Printed(node, [*words, "--json"], capsys).documents
        node.change = partial(odd_reply, number, only="list")
        assert Printed(node, [*words, "--json"], capsys).documents


def odd_reply(number: int, op: Op, reply: bytes, only: Op | None = None) -> bytes:
    """Return what a node may send in place of a reply; without ``only``, the list of its batches stays."""
    head = reply.partition(b'"result": ')[0]
    odd = [
        *(b"", b"{", b"null", b"[]", b'"\xff\xfe"', b"[" * 100_000, b'{"id": "x", "ok": true, "result": {}}'),
        *(reply[: len(reply) // 2], reply + b"x", reply + b" " * (2 << 20), reply.replace(b"needle", b"\\ud800needle")),
        *(head + b'"result": ' + result.encode() + b"}" for result in ODD_RESULTS),
    ]
    assert len(odd) == N_ODD
    return odd[number] if (op != "list" if only is None else op == only) else reply


ODD_RESULTS: Final = ["null", "5", '"x"', "[]", "{}", "[{}]", '{"batches": 5}', '[[["x"]]]', "1" * 5000, "1e999", "NaN"]
N_ODD: Final = 11 + len(ODD_RESULTS)


@pytest.mark.parametrize("field", ["outcome", "schema", "episode_id", "started_at", "timesteps", "spans"])
def test_a_damaged_episode_is_not_quoted(node: HostileNode, field: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = node.texts.text(f"EpisodeRecord.{field}")
    for odd in (text, {text: text}, [text], [{text: text}]):
        node.record = {field: odd}
        for words, mode in itertools.product((["show", EPISODE], ["compare", EPISODE, OTHER]), MODES):
            assert Printed(node, [*words, *mode], capsys).code == 1


def test_an_episode_in_endless_parts_is_given_up(node: HostileNode, capsys: pytest.CaptureFixture[str]) -> None:
    parts: list[bytes] = []

    def first_byte(op: Op, reply: bytes) -> bytes:
        if op != "episode":
            return reply
        parts.append(reply)
        return re.sub(rb'"total": \d+(.*)"data": "[^"]*"', rb'"total": 60000000\1"data": "eA=="', reply)

    node.change = first_byte
    assert Printed(node, ["show", EPISODE, "--json"], capsys).code == 1
    assert 1 < len(parts) < 1_000


@pytest.mark.parametrize("mode", [[], ["--json"]], ids=str)
def test_the_heartbeats_of_a_bus_are_made_safe(
    node: HostileNode, mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    node.names = ["\x1b]52;c;cHdu\x07\x9b31m\u202e\u200b", "n1"]
    printed = Printed(node, ["list", "--all", *mode], capsys, names_node=False)
    assert printed.code == 0 and "202e" in printed.out
    node.names = node.names[:1]
    printed = Printed(node, ["health", *mode], capsys, names_node=False)
    assert printed.code == 1 and "valid" in printed.out + printed.err


def test_a_node_that_does_not_answer_is_named(node: HostileNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.change = lambda op, reply: None
    printed = Printed(node, ["health", "--json"], capsys)
    assert (printed.code, printed.documents[0]["error"]["code"]) == (1, "unreachable")


@pytest.mark.parametrize("options", [(), ("--content",)], ids=str)
def test_tools_withhold_and_wrap_as_the_command_does(node: HostileNode, options: tuple[str, ...]) -> None:
    run, pair = {"id": "last"}, {"left": EPISODE, "right": OTHER}
    calls: list[tuple[str, dict[str, Any]]] = [
        *((name, run) for name in ("show", "results", "pause", "resume", "cancel", "again")),
        *(("list", {}), ("episodes", {}), ("show", {"id": EPISODE}), ("compare", pair), ("submit", {"run": ENV})),
    ]
    arguments = ("--nats", node.url, "--node", node.name, "--allow-orders", *options)
    with McpProcess(*arguments, **SECRETS) as process:
        for tool, given in calls:
            document = process.call(tool, **given)
            assert document["ok"] and bool(check_documents(node, [document], is_shown=bool(options))) is (
                tool != "episodes"
            )
        items, ended = list[Any](), False
        while not ended:
            document = process.call("follow", id="last", cursor=len(items), wait_s=30)
            items, ended = items + document["result"]["items"], document["result"]["ended"]
        assert [item["kind"] for item in items][-4:] == ["step", "step", "episode", "batch"]
        assert check_documents(node, [document | {"result": item} for item in items], is_shown=bool(options))
        for code in ("refused", "not_found", ""):
            node.error = code
            assert check_documents(node, [process.call("results", id="last")], is_shown=bool(options))
        node.reset()
        for number in range(N_ODD):
            node.change = partial(odd_reply, number)
            for tool, given in calls:
                check_documents(node, [process.call(tool, **given)], is_shown=bool(options))
        node.reset()
        assert process.call("list")["ok"] and process.end() == 0
