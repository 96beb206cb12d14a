"""Foreign text in documents for programs: withheld unless it is requested, and then made safe."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from runner.cli.ctl import find_batches, follow_line, print_fields
from runner.cli.terminal import ascii_json
from runner.client.blocking import BlockingNodeClient
from runner.client.follow import step_item
from runner.client.node_client import ControlRequestError, NodeClient
from runner.client.views import Document, Failure, Quotes, foreign_fields
from runner.events.control import BatchState, NodeList
from runner.types import Action, TimeStep, ToolCall
from scripts.event_texts import CTL_RESULTS
from tests.support.console.samples import START

MARK = "needle"
FOREIGN = st.text(max_size=40).map(lambda text: f"\x1b[31m{text}{MARK}\u202e{text}")
OWN_TEXTS = {
    *("id", "batch_id", "battery_id", "extends", "episode_id", "representative", "episodes", "boot"),
    *("env", "envs", "agent", "agents", "model", "models", "batteries", "node", "profile", "endpoint", "egress"),
    *("version", "transport", "mode", "data_label", "shapes", "names", "outcome", "outcomes", "status", "flags"),
    *("error_type", "code", "limits", "Failure.message", "Failure.hint", "FailureCluster.cause", "GapItem.text"),
}
"""Fields of ids, names of the profile, words and sentences of this project."""


def state(batch_id: str, battery_id: str | None = None, text: str | None = None) -> BatchState:
    return BatchState(
        batch_id=batch_id,
        battery_id=battery_id,
        env="Maze",
        agent="oracle",
        model=None,
        status="queued",
        n_done=0,
        n_planned=1,
        waiting_for=text,
        interruption=text,
        warning=text,
    )


def parts(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield a type and those that it is made of, without the fields of structs."""
    yield kind
    match kind:
        case inspect.Metadata():
            yield from parts(kind.type)
        case inspect.UnionType(types) | inspect.TupleType(types):
            yield from (each for one in types for each in parts(one))
        case inspect.CollectionType():
            yield from parts(kind.item_type)
        case inspect.DictType(key_type, value_type):
            yield from (*parts(key_type), *parts(value_type))


def is_text(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.StrType | inspect.AnyType | inspect.RawType)


def structs_in(kind: inspect.Type, found: dict[type[msgspec.Struct], inspect.StructType]) -> None:
    for part in parts(kind):
        if isinstance(part, inspect.StructType) and part.cls not in found:
            found[part.cls] = part
            for field in part.fields:
                structs_in(field.type, found)


STRUCTS: dict[type[msgspec.Struct], inspect.StructType] = {}
for each in (*CTL_RESULTS.values(), Failure):
    structs_in(inspect.type_info(each), STRUCTS)


def sample(kind: inspect.Type, text: str) -> Any:  # noqa: ANN401 - any JSON
    """Return a value of a type with ``text`` in each foreign field."""
    match kind:
        case inspect.StructType():
            fields = {field.name: sample(field.type, text) for field in kind.fields}
            return fields | ({kind.tag_field: kind.tag} if kind.tag_field else {})
        case inspect.Metadata(inspect.CollectionType(), extra_json_schema={"x-foreign": True}):
            return [text]
        case inspect.Metadata(extra_json_schema={"x-foreign": True}):
            return text
        case inspect.Metadata():
            return sample(kind.type, text)
        case inspect.UnionType(types):
            return sample(next(each for each in types if not isinstance(each, inspect.NoneType)), text)
        case inspect.CollectionType():
            return [sample(kind.item_type, text)]
        case inspect.TupleType(types):
            return [sample(each, text) for each in types]
        case inspect.DictType(key_type, value_type):
            return {sample(key_type, text): sample(value_type, text)}
        case inspect.LiteralType(values):
            return values[0]
        case inspect.EnumType():
            return next(iter(kind.cls))
        case inspect.DateTimeType():
            return START
    return {inspect.StrType: "own", inspect.IntType: 1, inspect.FloatType: 1.0, inspect.BoolType: True}[type(kind)]


def quoted_in(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return [value] if "foreign" in value else [each for item in value.values() for each in quoted_in(item)]
    return [each for item in value for each in quoted_in(item)] if isinstance(value, list) else []


def texts_in(value: Any) -> list[str]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return [each for item in value.items() for part in item for each in texts_in(part)]
    if isinstance(value, list):
        return [each for item in value for each in texts_in(item)]
    return [value] if isinstance(value, str) else []


def test_every_text_of_a_result_is_marked_as_foreign_or_known_to_be_ours() -> None:
    unmarked = {
        f"{kind.cls.__name__}.{field.name}"
        for kind in STRUCTS.values()
        for field in kind.fields
        if field.name not in foreign_fields(kind.cls) | OWN_TEXTS and any(map(is_text, parts(field.type)))
    }
    assert unmarked <= OWN_TEXTS, (
        "mark the field with FOREIGN where others write its text, else add its name to OWN_TEXTS"
    )
    assert {"BatchState", "EnvHealth", "FailureCluster", "StepText", "StepItem", "Failure"} <= {
        kind.__name__ for kind in STRUCTS if foreign_fields(kind)
    }


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
@given(text=FOREIGN)
def test_foreign_text_is_a_size_and_a_hash_unless_it_is_requested_and_then_safe(
    kind: type[msgspec.Struct], text: str
) -> None:
    value = msgspec.convert(sample(STRUCTS[kind], text), kind)
    withheld = Quotes(content=False)(Document(command="list", node="n", ok=True, result=value))
    assert MARK not in ascii_json(withheld)
    shown = quoted_in(Quotes(content=True)(value))
    assert len(shown) >= len(foreign_fields(kind))
    for each in shown:
        assert MARK in each["text"] and each["foreign"] is True
        assert not {"\x1b", "\u202e"} & set(each["text"])
        assert each["chars"] == len(text)
        assert each["sha256"] == hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@pytest.mark.parametrize("command", CTL_RESULTS)
@pytest.mark.parametrize("content", [False, True])
def test_texts_are_printed_as_lines_and_tables_with_content_only(command: str, content: bool) -> None:
    kinds = [STRUCTS[kind] for kind in get_args(CTL_RESULTS[command]) or (CTL_RESULTS[command],)]
    for kind in kinds:
        value = Quotes(content=content)(msgspec.convert(sample(kind, f"{MARK}\x1b[31m"), kind.cls))
        text = printed(value) if command != "follow" else follow_line(value)
        assert text.count(MARK) == (len(quoted_in(value)) if content else 0)
        assert "\x1b" not in text and (content or text.count("characters)") == len(quoted_in(value)))


def printed(document: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)) as output:
        print_fields(document, "of n")
        return output.buffer.getvalue().decode()


def test_an_action_has_its_text_and_its_tool_calls() -> None:
    calls = [ToolCall(id="1", name="go", arguments='{"to": 3}')]
    step = TimeStep(chats=[], action=Action(text="I go.", tool_calls=calls), observation=[], reward=0, done=True)
    assert step_item("e", step).action == 'I go.\ngo {"to": 3}'


@given(FOREIGN)
def test_names_from_the_bus_are_safe_lines_wherever_they_are_printed(name: str) -> None:
    listed = NodeList(batches=[state(name)], envs=[name], agents=[], models=[], batteries={name: [name], "foreign": []})
    document = Quotes(content=True)(listed)
    assert not {"\x1b", "\u202e", "\n"} & set("".join(texts_in(document)))
    text = printed(document)
    assert MARK in text and not {"\x1b", "\u202e"} & set(text)


@pytest.mark.parametrize("text", ["nothing", "", "a", "c"])
def test_an_id_names_what_begins_or_ends_with_it_alone(text: str) -> None:
    listed = NodeList(batches=[state("ABC", "BATTERY"), state("AXC", "BATTERY")], envs=[], agents=[], models=[])
    assert find_batches(listed, "ab")[0] == "ABC"
    assert [each.batch_id for each in find_batches(listed, "batt")[1]] == ["ABC", "AXC"]
    assert find_batches(listed, "last")[0] == "BATTERY"
    with pytest.raises(ControlRequestError) as raised:
        find_batches(listed, text)
    assert raised.value.code == ("not_found" if text in ("nothing", "") else "ambiguous")


def test_the_blocking_client_has_every_request() -> None:
    requests = {name for name in vars(NodeClient) if not name.startswith("_")}
    assert requests <= vars(BlockingNodeClient).keys()
