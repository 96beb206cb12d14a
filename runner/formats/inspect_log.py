"""Reads logs of Inspect 0.3; branches of a sample are attempts of one task.

A log is a zip file with a JSON member per sample, or one JSON document with the list ``samples``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from runner.errors import StoreError
from runner.formats.drafts import Draft, Transcript
from runner.formats.foreign_values import message_of, name_of, number_of, time_of, tokens_of
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
from runner.types import ErrorInfo, Message, Outcome, Tokens
from runner.util.json_accessors import as_dict, as_list, as_text

_HEADERS: Final = ("header.json", "_journal/start.json")
_SAMPLES: Final = "samples/"
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_ARRAY: Final = re.compile(rb"\s*:\s*\[")
_ATTACHMENT: Final = "attachment://"
_GRADES: Final = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_MAX_RESOLVED: Final = 64 << 20
"""Largest number of characters of all attachments that messages of a sample refer to."""


def sample_items(path: Path, limits: Limits) -> Iterator[Found]:
    """Raises ``StoreError`` if the file or its header cannot be read."""
    if _is_json(path):
        yield from _json_samples(path, limits)
        return
    members = read_directory(path)
    header = _header(path, members, limits)
    for number, member in enumerate(_sample_members(path), 1):
        place = Place(path, number, member.offset, member.n_packed, "sample")
        try:
            yield Item(place, _joined(header, _read(path, member, limits)))
        except StoreError as exc:
            yield Malformed(place, str(exc))


def read_sample(place: Place, limits: Limits) -> bytes:
    """Raises ``StoreError`` if the file has changed."""
    if _is_json(place.path):
        return _joined(_json_header(place.path), read_place(place, limits))
    members = _sample_members(place.path)
    member = next((each for each in members if each.offset == place.start), None)
    if member is None:
        raise StoreError(f"{place.path} has changed; reload it")
    return _joined(_header(place.path, read_directory(place.path), limits), _read(place.path, member, limits))


def _is_json(path: Path) -> bool:
    return not read_head(path, 2).startswith(b"PK")


def _json_samples(path: Path, limits: Limits) -> Iterator[Found]:
    """Yield an item per sample of a document, in which ``samples`` follows what describes the run."""
    if (start := _samples_start(read_head(path, limits.item_bytes))) is not None:
        yield from map(partial(_json_sample, _json_header(path)), array_items(path, limits, start))


def _samples_start(head: bytes) -> int | None:
    depth = 0
    for match in _TOKENS.finditer(head):
        if depth == 1 and match[0] == b'"samples"' and (array := _ARRAY.match(head, match.end())) is not None:
            return array.end() - 1
        depth += (match[0] in (b"[", b"{")) - (match[0] in (b"]", b"}"))
    return None


def _json_sample(header: bytes, found: Found) -> Found:
    place = found.place._replace(unit="sample")
    return Item(place, _joined(header, found.data)) if isinstance(found, Item) else found._replace(place=place)


def _json_header(path: Path) -> bytes:
    return _header_fields(as_dict(first_object(read_head(path)).get("eval")))


def _header_fields(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode({name: as_text(fields.get(name)) for name in ("task", "model", "created")})


def _sample_members(path: Path) -> list[Member]:
    members = read_directory(path).values()
    return sorted(each for each in members if each.name.startswith(_SAMPLES) and each.name.endswith(".json"))


def _header(path: Path, members: Any, limits: Limits) -> bytes:  # noqa: ANN401
    """Other fields than task and model may change after the samples were written."""
    member = next((members[name] for name in _HEADERS if name in members), None)
    if member is None:
        raise StoreError(f"{path} has no header")
    try:
        fields = as_dict(as_dict(decode_item(_read(path, member, limits), limits)).get("eval"))
    except ValueError as exc:
        raise StoreError(f"the header of {path} cannot be read: {exc}") from exc
    return _header_fields(fields)


def _read(path: Path, member: Member, limits: Limits) -> bytes:
    return read_member(path, member, max_bytes=limits.item_bytes)


def _joined(header: bytes, sample: bytes) -> bytes:
    return b'{"eval":' + header + b',"sample":' + sample + b"}"


def decode_sample(value: object, place: Place) -> Iterator[Draft]:
    """Yield the episode of a sample, then those of its branches, which are not rated."""
    fields = as_dict(value)
    header, sample = as_dict(fields.get("eval")), as_dict(fields.get("sample"))
    events = [as_dict(event) for event in as_list(sample.get("events"))]
    outputs = [as_dict(event.get("output")) for event in events if event.get("event") == "model"]
    answers = {as_text(_reply_of(output).get("id")): output for output in outputs}
    resolve = _Attachments(as_dict(sample.get("attachments")))
    main = Draft(transcript=_transcript(as_list(sample.get("messages")), answers, resolve), **_result(sample))
    yield _named(main, header, sample)
    for messages in _branches(events, as_list(as_dict(sample.get("events_data")).get("messages"))):
        branch = Draft(transcript=_transcript(messages, answers, resolve), rated=False)
        yield _named(branch, header, sample)


def _named(draft: Draft, header: dict[str, Any], sample: dict[str, Any]) -> Draft:
    id, epoch = sample.get("id"), sample.get("epoch")
    events = (time_of(as_dict(event).get("timestamp")) for event in as_list(sample.get("events")))
    times = sorted(filter(None, events))  # older logs have no others, or only the time of the header
    model = as_text(header.get("model"))
    return msgspec.structs.replace(
        draft,
        id=name_of(sample.get("uuid")) or str(id)[:200],
        env=as_text(header.get("task")),
        task=id if type(id) is int else as_text(id),
        attempt=epoch - 1 if draft.rated and type(epoch) is int and epoch > 0 else None,
        agent="inspect",
        model=model or None,
        started_at=time_of(sample.get("started_at")) or (times[0] if times else time_of(header.get("created"))),
        ended_at=time_of(sample.get("completed_at")) or (times[-1] if times else None),
        duration_s=number_of(sample.get("total_time")),
    )


class _Attachments:
    """Replaces references to attachments of a sample by their texts, up to a bound of all together."""

    def __init__(self, attachments: dict[str, Any]) -> None:
        self._attachments, self._n_left = attachments, _MAX_RESOLVED

    def __call__(self, text: str) -> str:
        if not text.startswith(_ATTACHMENT):
            return text
        content = as_text(self._attachments.get(text.removeprefix(_ATTACHMENT)))
        self._n_left -= len(content)
        return content if content and self._n_left >= 0 else text


def _transcript(messages: list[Any], answers: dict[str, dict[str, Any]], resolve: _Attachments) -> Transcript:
    transcript = Transcript()
    for value in messages:
        message: Message = message_of(value)
        message["content"] = resolve(message["content"] or "")
        if message["role"] == "assistant":
            transcript.add_reply(message, **_answer_fields(answers.get(as_text(as_dict(value).get("id")))))
        else:
            transcript.add(message)
    return transcript


def _reply_of(output: dict[str, Any]) -> dict[str, Any]:
    return as_dict(as_dict(next(iter(as_list(output.get("choices"))), None)).get("message"))


def _answer_fields(output: dict[str, Any] | None) -> dict[str, Any]:
    if output is None:
        return {}
    model = name_of(output.get("model"))
    return {
        "endpoint": "inspect",
        "model": model or None,
        "tokens": _tokens(as_dict(output.get("usage"))),
        "model_s": max(0.0, number_of(output.get("time")) or 0.0),
    }


def _tokens(usage: dict[str, Any]) -> Tokens | None:
    """Inspect counts cached tokens apart from the others of the prompt."""
    counts = tokens_of(usage, "input_tokens", "output_tokens", "input_tokens_cache_read", "reasoning_tokens")
    return None if counts is None else msgspec.structs.replace(counts, prompt=counts.prompt + counts.cached)


def _result(sample: dict[str, Any]) -> dict[str, Any]:
    scores = as_dict(sample.get("scores"))
    values = [as_dict(score).get("value") for score in scores.values()]
    value = next((each for each in values if _score(each) is not None), None)
    limit, error = as_dict(sample.get("limit")), as_dict(sample.get("error"))
    usage = [counts for each in as_dict(sample.get("model_usage")).values() if (counts := _tokens(as_dict(each)))]
    success = value if isinstance(value, bool) else value == "C" if isinstance(value, str) else None
    limit_outcome = Outcome.TIMEOUT if limit.get("type") in ("time", "working") else Outcome.TRUNCATED
    return {
        "reward": _score(value),
        "success": success,
        "outcome": limit_outcome if limit and not success else None,
        "tokens": sum(usage, Tokens()) if usage else None,
        "error": _error(error),
        "evaluation": {"scores": scores, "target": sample.get("target")} if scores else None,
    }


def _score(value: object) -> float | None:
    if isinstance(value, bool):
        return float(value)
    return _GRADES.get(value) if isinstance(value, str) else number_of(value)


def _error(error: dict[str, Any]) -> ErrorInfo | None:
    if not error:
        return None
    return ErrorInfo(type="EvalError", message=as_text(error.get("message")), traceback=as_text(error.get("traceback")))


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
