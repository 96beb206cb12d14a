"""Generate ``docs/data/events.md`` and ``docs/schemas/*.json`` from the message types.

    python -m scripts.build_event_docs

The output is deterministic; a test compares it with the checked-in files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

import msgspec

from runner.bus.streams import stream_configs
from runner.client.views import Document, Quoted
from runner.events import subjects
from runner.events.codec import MAX_BYTES, MAX_DEPTH, headers_for
from runner.events.control import ARGS, ERRORS, ControlReply, Op
from runner.events.durable import DURABLE_TYPES
from runner.events.live import LiveBatch, LiveItem
from runner.types import Outcome
from scripts.event_texts import (
    CONTROL,
    CTL_RESULTS,
    HEADERS,
    IDS,
    INTRO,
    LIVE,
    MEANINGS,
    OPERATIONS,
    PARTS,
    REPLY,
    RESULTS,
    STREAMS,
)

DOCS = Path(__file__).resolve().parent.parent / "docs"
MIB = 1 << 20
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema: TypeAlias = dict[str, Any]


def main() -> None:
    """Write the document and the schemas, and delete schemas of removed subjects."""
    folder = DOCS / "schemas"
    for old in folder.glob("*.json"):
        old.unlink()
    for name, text in files().items():
        (DOCS / name).write_text(text, "utf-8")


def files() -> dict[str, str]:
    """Return the generated files: path within ``docs`` -> content."""
    schema_files = {f"schemas/{name}.json": _json(schema) for name, schema in schemas().items()}
    return {"data/events.md": "\n".join(_document()).rstrip() + "\n", **schema_files}


def schemas() -> dict[str, Schema]:
    """Return subject without the node's name -> JSON Schema of its messages; control has a request and a reply."""
    result = {subject: _schema(event, subject) for subject, event in DURABLE_TYPES.items()}
    for channel in subjects.LIVE_CHANNELS:
        subject = f"agentgym.live.{channel}.v1"
        batch = msgspec.defstruct("LiveBatch", _fields_of_batch(channel), kw_only=True)
        batch.__doc__ = LiveBatch.__doc__
        result[subject] = _schema(batch, subject)
    result["agentgym.control.request"] = _schema(reduce(or_, map(_request, ARGS)), "agentgym.control.request")
    result["agentgym.ctl.v1"] = _ctl_schema("agentgym.ctl.v1")
    result["agentgym.control.reply"] = _schema(ControlReply, "agentgym.control.reply", _components(RESULTS.values()))
    return result


def _schema(kind: Any, name: str, others: dict[str, Schema] | None = None) -> Schema:  # noqa: ANN401 - a type
    schema = {"$schema": DIALECT, "$id": name, **msgspec.json.schema(kind)}
    schema["$defs"] |= others or {}
    for part, definition in schema["$defs"].items():
        for field, described in definition.get("properties", {}).items():
            if (meaning := MEANINGS.get(f"{part}.{field}")) and _description(described) is None:
                described["description"] = meaning
    return schema


def _components(kinds: Iterable[Any]) -> dict[str, Schema]:
    _, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return {name: each for name, each in definitions.items() if each.get("properties")}


def _fields_of_batch(channel: subjects.LiveChannel) -> list[tuple[str, Any]]:
    hints = get_type_hints(LiveBatch, include_extras=True)
    hints["items"] = list[reduce(or_, _kinds(channel))]  # type: ignore[misc]  # a type created at run time
    return list(hints.items())


def _kinds(channel: subjects.LiveChannel) -> list[Any]:
    return [kind for kind in get_args(LiveItem) if subjects.channel_of(kind.__struct_config__.tag) == channel]


def _request(op: Op) -> Any:  # noqa: ANN401 - a struct type
    args = ARGS[op]
    required = any(field.required for field in msgspec.structs.fields(args))
    field: Any = ("args", args) if required else ("args", args, msgspec.field(default_factory=args))
    fields = [("id", Annotated[str, msgspec.Meta(description="repeated in the reply")]), field]
    return msgspec.defstruct(f"{op}_request", fields, tag_field="op", tag=op, kw_only=True)


def _ctl_document(command: str) -> Any:  # noqa: ANN401 - a struct type
    hints = get_type_hints(Document, include_extras=True)
    fields = [(name, hints[name]) for name in ("schema", "node", "ok", "error")]
    result = ("result", CTL_RESULTS[command] | None)
    name = f"{command.replace(' --', '_')}_document"
    kind = msgspec.defstruct(name, [*fields, result], tag_field="command", tag=command, kw_only=True)
    kind.__doc__ = Document.__doc__
    return kind


def _ctl_schema(name: str) -> Schema:
    """Return the schema of what ``ctl`` prints: fields that are marked as foreign text are wrapped."""
    schema = _schema(reduce(or_, map(_ctl_document, CTL_RESULTS)), name, _components([Quoted]))
    for definition in schema["$defs"].values():
        for field, described in definition.get("properties", {}).items():
            if described.pop("x-foreign", False):
                kept = {key: described[key] for key in ("description", "default") if key in described}
                definition["properties"][field] = kept | {"anyOf": [{"$ref": "#/$defs/Quoted"}, {"type": "null"}]}
    return schema


def _document() -> Iterator[str]:
    rows = [(f"`{name}`", HEADERS[name]) for name in headers_for("", "", "", datetime.now(UTC))]
    headers = "\n".join(_table(("header", "meaning"), rows))
    yield INTRO.format(max_bytes=MAX_BYTES, max_depth=MAX_DEPTH, headers=headers)
    for subject, event in DURABLE_TYPES.items():
        yield from _section(f"### `{subject}`", event, f"Its id is {IDS[subject]}.")
    yield LIVE
    items = [
        (f"[{channel}](../schemas/agentgym.live.{channel}.v1.json) `{kind.__struct_config__.tag}`", kind)
        for channel in subjects.LIVE_CHANNELS
        for kind in _kinds(channel)
    ]
    yield from _objects("channel, item", [(name, _definitions(kind)[kind.__name__]) for name, kind in items])
    yield PARTS
    no_parts = {"LiveBatch", *(kind.__name__ for kind in get_args(LiveItem))}
    parts = [(name, each) for name, each in _definitions(LiveBatch).items() if name not in no_parts]
    yield from _objects("part", [(f"`{name}`", each) for name, each in parts if "properties" in each])
    yield from _control()
    yield from _streams()


def _control() -> Iterator[str]:
    yield CONTROL
    rows = [(f"`{op}`", OPERATIONS.get(op) or _one_line(ARGS[op].__doc__ or ""), _result(op)) for op in ARGS]
    yield from _table(("operation", "what it does", "result"), rows)
    yield "\n### Arguments\n"
    by_args = [(args, [op for op in ARGS if ARGS[op] is args]) for args in dict.fromkeys(ARGS.values())]
    arguments = [(", ".join(f"`{op}`" for op in ops), *row) for args, ops in by_args for row in _rows(args)]
    yield from _table(("operation", "argument", "type", "meaning"), arguments)
    yield f"\n{REPLY}"
    yield from _table(("code", "meaning"), [(f"`{code}`", meaning) for code, meaning in ERRORS.items()])
    yield ""
    parts = _definitions(LiveBatch)
    yield from _objects(
        "result", [(f"`{name}`", each) for name, each in _components(RESULTS.values()).items() if name not in parts]
    )


def _result(op: Op) -> str:
    if not (result := _type(msgspec.json.schema(RESULTS[op]))).startswith("NoArgs"):
        return result
    return "an empty object"


def _streams() -> Iterator[str]:
    yield "## Streams of a node's own broker\n"
    columns = ("stream", "subjects", "storage", "when full", "maximum age", "maximum size", "duplicate window")
    rows = []
    for config in stream_configs(subjects.DURABLE):
        assert config.storage and config.max_age and config.max_bytes and config.duplicate_window
        names = "<br>".join(f"`{subject}`" for subject in config.subjects or [])
        full = "refuses new messages" if config.discard == "new" else "drops the oldest"
        max_age, size = f"{config.max_age / 3600:g} h", f"{config.max_bytes // MIB} MiB"
        remembered = f"{config.duplicate_window / 60:g} min"
        rows.append((f"`{config.name}`", names, config.storage.value, full, max_age, size, remembered))
    yield from _table(columns, rows)
    yield STREAMS


def _section(title: str, kind: type, suffix: str) -> Iterator[str]:
    """Yield the description and the table of fields of one message."""
    description = _definitions(kind)[kind.__name__].get("description", "")
    yield f"{title}\n\n{_one_line(description)} {suffix}\n"
    yield from _table(("field", "type", "meaning"), _rows(kind))
    yield ""


def _definitions(kind: Any) -> dict[str, Schema]:  # noqa: ANN401
    definitions: dict[str, Schema] = msgspec.json.schema(kind)["$defs"]
    return definitions


def _rows(kind: type) -> list[tuple[str, str, str]]:
    """Return name, type and meaning of each field of one JSON object."""
    definition = _definitions(kind)[kind.__name__]
    required = definition.get("required", [])
    return [
        (
            f"`{field}`" if field in required else f"`{field}` (optional)",
            _type(schema),
            _meaning(kind.__name__, field, schema),
        )
        for field, schema in definition["properties"].items()
    ]


def _objects(title: str, named: Iterable[tuple[str, Schema]]) -> Iterator[str]:
    """Yield a row for each JSON object, with the names of its fields; an optional one has a question mark."""
    rows = []
    for name, definition in named:
        required = definition.get("required", ())
        named_fields = [field for field in definition["properties"] if field != "kind"]
        fields = [f"`{field}`{'' if field in required else '?'}" for field in named_fields]
        meaning, _, _ = definition.get("description", "").partition("Attributes:")
        rows.append((name, _one_line(meaning), ", ".join(fields)))
    yield from _table((title, "meaning", "fields"), rows)
    yield ""


def _description(schema: Schema) -> str | None:
    return next(filter(None, (each.get("description") for each in (schema, *schema.get("anyOf", ())))), None)


def _meaning(name: str, field: str, schema: Schema) -> str:
    meaning = _description(schema) or MEANINGS.get(f"{name}.{field}")
    return str(meaning) if meaning or field != "kind" else "kind of the item"


def _type(schema: Schema) -> str:
    """Return a readable name of a schema's type."""
    match schema:
        case {"$ref": "#/$defs/Outcome"}:
            return _type({"enum": list(Outcome)})
        case {"$ref": reference}:
            return str(reference).rpartition("/")[2]
        case {"discriminator": _}:
            return "live item"
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"anyOf": choices}:
            return " or ".join(_type(choice) for choice in choices)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"format": "date-time"}:
            return "time"
        case {"contentEncoding": "base64"}:
            return "base64"
        case {"type": kind}:
            return str(kind)
    return "any"


def _one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _json(schema: Schema) -> str:
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    main()
