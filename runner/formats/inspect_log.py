"""Reads logs of Inspect 0.3; branches of a sample are attempts of one task.

A log is a zip file with a JSON member per sample, or one JSON document with the list ``samples``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from runner.errors import StoreError
from runner.formats.drafts import Draft, Transcript
from runner.formats.foreign_values import error_of, int_of, message_of, name_of, number_of, task_of, time_of, tokens_of
from runner.formats.format import Format, Head, first_object
from runner.formats.reading import (
    Found,
    Item,
    Limits,
    Malformed,
    Place,
    array_items,
    decode_item,
    read_head,
    read_place,
)
from runner.store.archive import Member, read_directory, read_member
from runner.types import Message, Outcome, Tokens
from runner.util.json_accessors import as_dict, as_list, as_text

_HEADERS: Final = ("header.json", "_journal/start.json")
_SAMPLES: Final = "samples/"
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_ARRAY: Final = re.compile(rb"\s*:\s*\[")
_ATTACHMENT: Final = "attachment://"
_GRADES: Final = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_USAGE: Final = ("input_tokens", "output_tokens", "input_tokens_cache_read", "reasoning_tokens")
_MAX_RESOLVED: Final = 64 << 20
"""Largest number of characters of all attachments that messages of a sample refer to."""


def sample_items(path: Path, limits: Limits) -> Iterator[Found]:
    """Raises ``StoreError`` if the file or its header cannot be read."""
    if _is_zip(path):
        header = _header(path, limits)
        for number, member in enumerate(_samples(path), 1):
            place = Place(path, number, member.offset, member.n_packed, "sample")
            try:
                yield Item(place, _joined(header, read_member(path, member, max_bytes=limits.item_bytes)))
            except StoreError as exc:
                yield Malformed(place, str(exc))
    elif (start := _samples_start(read_head(path, limits.item_bytes))) is not None:
        header = _header(path, limits)
        for found in array_items(path, limits, start):
            place = found.place._replace(unit="sample")
            yield Item(place, _joined(header, found.data)) if isinstance(found, Item) else found._replace(place=place)


def read_sample(place: Place, limits: Limits) -> bytes:
    """Raises ``StoreError`` if the file has changed."""
    if not _is_zip(place.path):
        return _joined(_header(place.path, limits), read_place(place, limits))
    member = next((each for each in _samples(place.path) if each.offset == place.start), None)
    if member is None:
        raise StoreError(f"{place.path} has changed; reload it")
    return _joined(_header(place.path, limits), read_member(place.path, member, max_bytes=limits.item_bytes))


def _is_zip(path: Path) -> bool:
    return read_head(path, 2) == b"PK"


def _samples(path: Path) -> list[Member]:
    members = read_directory(path).values()
    return sorted(each for each in members if each.name.startswith(_SAMPLES) and each.name.endswith(".json"))


def _samples_start(head: bytes) -> int | None:
    """Return where the list of samples of a document begins, which follows what describes the run."""
    depth = 0
    for match in _TOKENS.finditer(head):
        if depth == 1 and match[0] == b'"samples"' and (array := _ARRAY.match(head, match.end())) is not None:
            return array.end() - 1
        depth += (match[0] in (b"[", b"{")) - (match[0] in (b"]", b"}"))
    return None


def _header(path: Path, limits: Limits) -> bytes:
    """Return the fields that do not change after the samples were written."""
    if _is_zip(path):
        members = read_directory(path)
        member = next((members[name] for name in _HEADERS if name in members), None)
        if member is None:
            raise StoreError(f"{path} has no header")
        try:
            header = as_dict(decode_item(read_member(path, member, max_bytes=limits.item_bytes), limits))
        except ValueError as exc:
            raise StoreError(f"the header of {path} cannot be read: {exc}") from exc
    else:
        header = first_object(read_head(path))
    fields = as_dict(header.get("eval"))
    return msgspec.json.encode({name: as_text(fields.get(name)) for name in ("task", "model", "created")})


def _joined(header: bytes, sample: bytes) -> bytes:
    return b'{"eval":' + header + b',"sample":' + sample + b"}"


def decode_sample(value: object, place: Place) -> Iterator[Draft]:
    """Yield the episode of a sample, then those of its branches, which are not rated."""
    fields = as_dict(value)
    header, sample = as_dict(fields.get("eval")), as_dict(fields.get("sample"))
    events = [as_dict(event) for event in as_list(sample.get("events"))]
    outputs = [as_dict(event.get("output")) for event in events if event.get("event") == "model"]
    answers = {as_text(_reply_of(output).get("id")): output for output in outputs}
    attachments, n_left = as_dict(sample.get("attachments")), [_MAX_RESOLVED]

    def transcript_of(messages: list[Any]) -> Transcript:
        transcript = Transcript()
        for each in messages:
            message = _resolved(message_of(each), attachments, n_left)
            transcript.add(message, **_answer_fields(answers.get(as_text(as_dict(each).get("id")))))
        return transcript

    names, epoch = _names(header, sample, events), int_of(sample.get("epoch"))
    yield Draft(
        transcript=transcript_of(as_list(sample.get("messages"))),
        attempt=epoch - 1 if epoch is not None and epoch > 0 else None,
        **names,
        **_result(sample),
    )
    for messages in _branches(events, as_list(as_dict(sample.get("events_data")).get("messages"))):
        yield Draft(transcript=transcript_of(messages), rated=False, **names)


def _names(header: dict[str, Any], sample: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    id = sample.get("id")
    times = sorted(filter(None, (time_of(event.get("timestamp")) for event in events)))
    # older logs have no other times than those of events, or only that of the header
    return {
        "id": name_of(sample.get("uuid")) or str(id)[:200],
        "env": as_text(header.get("task")),
        "task": task_of(id),
        "agent": "inspect",
        "model": as_text(header.get("model")) or None,
        "started_at": time_of(sample.get("started_at")) or (times[0] if times else time_of(header.get("created"))),
        "ended_at": time_of(sample.get("completed_at")) or (times[-1] if times else None),
        "duration_s": number_of(sample.get("total_time")),
    }


def _resolved(message: Message, attachments: dict[str, Any], n_left: list[int]) -> Message:
    """Replace a reference to an attachment by its text, up to a bound of all together."""
    if (content := message["content"] or "").startswith(_ATTACHMENT):
        text = as_text(attachments.get(content.removeprefix(_ATTACHMENT)))
        n_left[0] -= len(text)
        message["content"] = text if text and n_left[0] >= 0 else content
    return message


def _reply_of(output: dict[str, Any]) -> dict[str, Any]:
    return as_dict(as_dict(next(iter(as_list(output.get("choices"))), None)).get("message"))


def _answer_fields(output: dict[str, Any] | None) -> dict[str, Any]:
    if output is None:
        return {}
    return {
        "endpoint": "inspect",
        "model": name_of(output.get("model")) or None,
        "tokens": tokens_of(output.get("usage"), *_USAGE, is_cached_apart=True),
        "model_s": max(0.0, number_of(output.get("time")) or 0.0),
    }


def _result(sample: dict[str, Any]) -> dict[str, Any]:
    scores, limit = as_dict(sample.get("scores")), as_dict(sample.get("limit"))
    values = [as_dict(score).get("value") for score in scores.values()]
    value = next((each for each in values if _score(each) is not None), None)
    usage = [tokens_of(each, *_USAGE, is_cached_apart=True) for each in as_dict(sample.get("model_usage")).values()]
    success = value if isinstance(value, bool) else value == "C" if isinstance(value, str) else None
    limit_outcome = Outcome.TIMEOUT if limit.get("type") in ("time", "working") else Outcome.TRUNCATED
    return {
        "reward": _score(value),
        "success": success,
        "outcome": limit_outcome if limit and not success else None,
        "tokens": sum(filter(None, usage), Tokens()) if any(usage) else None,
        "error": error_of({"type": "EvalError", **as_dict(sample.get("error"))}) if sample.get("error") else None,
        "evaluation": {"scores": scores, "target": sample.get("target")} if scores else None,
    }


def _score(value: object) -> float | None:
    if isinstance(value, bool):
        return float(value)
    return _GRADES.get(value) if isinstance(value, str) else number_of(value)


def _branches(events: list[dict[str, Any]], pool: list[Any]) -> Iterator[list[Any]]:
    """Yield the messages of each branch: input and reply of the last model call within a span of the type branch."""
    spans = {as_text(each.get("id")): each for each in events if each.get("event") == "span_begin"}
    branches = {id: id for id, span in spans.items() if span.get("type") == "branch"}
    last: dict[str, dict[str, Any]] = {}
    for event in events if branches else ():
        if event.get("event") == "model" and (branch := _branch_of(as_text(event.get("span_id")), spans, branches)):
            last[branch] = event
    for event in last.values():
        yield [*_input_of(event, pool), _reply_of(as_dict(event.get("output")))]


def _branch_of(span: str, spans: dict[str, dict[str, Any]], known: dict[str, str]) -> str:
    """Return the id of the branch that has a span, or an empty text; ``known`` has and keeps the answers."""
    passed = []
    while span in spans and span not in known:
        passed.append(span)
        known[span] = ""  # a span within itself is in no branch
        span = as_text(spans[span].get("parent_id"))
    branch = known.get(span, "")
    known.update(dict.fromkeys(passed, branch))
    return branch


def _input_of(event: dict[str, Any], pool: list[Any]) -> list[Any]:
    """Those in the pool are named by ranges, and at most twice as many are taken."""
    given, n_left = [*as_list(event.get("input"))], 2 * len(pool)
    for reference in as_list(event.get("input_refs")):
        pair = as_list(reference)
        if len(pair) == 2 and all(type(each) is int and each >= 0 for each in pair):
            named = pool[pair[0] : min(pair[1], pair[0] + n_left)]
            given += named
            n_left -= len(named)
    return given


def is_inspect(head: Head) -> bool:
    """Return whether a zip file has samples or a header, or is damaged and named as a log; or a document is a log."""
    if head.kind == "json":
        return isinstance(head.first.get("eval"), dict) and {"version", "status"} <= head.first.keys()
    if head.kind == "zip" and not head.names:
        return head.path.suffix == ".eval"
    is_log = any(name in head.names for name in _HEADERS)
    return head.kind == "zip" and (is_log or any(name.startswith(_SAMPLES) for name in head.names))


FORMAT = Format(
    name="inspect",
    title="Inspect log",
    signature="a zip file with `header.json` or `_journal/start.json`, and `samples/`; or an object with "
    "`version`, `status`, `eval` and `samples`",
    matches=is_inspect,
    decode=decode_sample,
    items=sample_items,
    read=read_sample,
)
