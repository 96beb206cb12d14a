"""The environment's evaluation of an episode as blocks of text: verdict, reason, event log and further details.

An evaluation is any JSON object. Those of ARE (``runner.envs.are``) are shown by their parts, all others as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from agentgym_tui.presenters.chat_blocks import (
    MAX_TEXT,
    Block,
    BlockKind,
    as_json,
    content_text,
    note_block,
    text_block,
)
from agentgym_tui.presenters.number_format import format_count, pluralize
from agentgym_tui.safe_text import mask_secrets
from runner.types import is_unscored

MAX_EVENTS: Final = 2_000
"""Maximum number of events shown; the JSON view has all events of the episode file."""

MAX_ARGUMENTS: Final = 500
"""Maximum number of characters shown of the arguments of an event."""

MIN_DATE_S: Final = 365 * 86_400
MAX_DATE_S: Final = 253_402_300_800
"""Simulated seconds from which an event's time is shown as a date, and those of the year 10000."""

OWN_VALIDATION: Final = "scenario"
"""Name of the judge if the scenario's own validation rated, which uses no model."""

_SHOWN_KEYS: Final = frozenset(
    (
        *("success", "rationale", "exception", "judge", "judge_calls", "rated", "scenario", "duration", "simulated_s"),
        *("memory_mib", "memory_limit_mib", "n_oracle_events"),
        *("missed", "missed_dropped", "events", "events_dropped"),
    )
)
_VERDICTS: Final[dict[bool | None, tuple[BlockKind, str]]] = {
    True: ("passed", "✓ success"),
    False: ("failed", "✗ not solved"),
    None: ("warning", "? not rated: the judge failed"),
}


def evaluation_blocks(evaluation: Mapping[str, Any] | None, *, running: bool = False) -> list[Block]:
    """Return the blocks that show an evaluation.

    Args:
        evaluation: the environment's evaluation (untrusted); None if there is none.
        running: whether the episode still runs, so that it is not evaluated yet.
    """
    if evaluation is None:
        return [
            note_block("the episode is evaluated when it ends" if running else "the environment gave no evaluation")
        ]
    if not _is_verdict(evaluation):
        return [text_block("result", "evaluation", _masked(as_json(evaluation, indent=2)))]
    further = {key: value for key, value in evaluation.items() if key not in _SHOWN_KEYS}
    return [
        _verdict_block(evaluation),
        *_reason_blocks(evaluation),
        *_event_blocks(evaluation),
        *([text_block("result", "further details", _masked(as_json(further, indent=2)))] if further else []),
    ]


def _is_verdict(evaluation: Mapping[str, Any]) -> bool:
    success = evaluation.get("success", "")
    return (success is None or isinstance(success, bool)) and "judge" in evaluation


def _verdict_block(evaluation: Mapping[str, Any]) -> Block:
    kind, title = _VERDICTS[evaluation["success"]]
    judge = content_text(evaluation["judge"])
    if judge == OWN_VALIDATION:
        judge = "the scenario's own validation, without a model"
    lines = [f"{'judge:' if evaluation['success'] is None else 'rated by'} {judge}"]
    if is_unscored(evaluation):
        lines.append("unscored: without an oracle event, idle play can succeed; success rates leave this episode out")
    if costs := list(_judge_costs(evaluation.get("judge_calls"))):
        lines.append(" · ".join(costs))
    if facts := list(_facts(evaluation)):
        lines.append(" · ".join(facts))
    return text_block(kind, title, _masked("\n".join(lines)))


def _judge_costs(calls: object) -> Iterator[str]:
    if not isinstance(calls, dict):
        return
    if (n_calls := _number(calls.get("calls"))) is not None:
        yield f"{n_calls} call{'' if n_calls == '1' else 's'} of the judge's model"
    tokens = calls.get("tokens")
    counts = [_number(tokens.get(key)) for key in ("prompt", "completion")] if isinstance(tokens, dict) else [None]
    if None not in counts:
        yield f"{' + '.join(filter(None, counts))} tokens"
    if isinstance(cost := calls.get("cost"), int | float) and _number(cost) is not None:
        yield f"cost {cost:.4g}"


def _facts(evaluation: Mapping[str, Any]) -> Iterator[str]:
    if name := content_text(evaluation.get("scenario")):
        yield f"scenario {name}"
    for key, text in (("duration", "took {} s"), ("simulated_s", "{} s simulated")):
        if (number := _number(evaluation.get(key))) is not None:
            yield text.format(number)
    if (used := _number(evaluation.get("memory_mib"))) is not None:
        limit = _number(evaluation.get("memory_limit_mib"))
        yield f"worker memory {used} MiB" + (
            f", limit {limit} MiB above the loaded package" if limit is not None else ""
        )


def _reason_blocks(evaluation: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the reason of the verdict: the rationale, else the exception, else the missed oracle events."""
    if rationale := content_text(evaluation.get("rationale")).strip():
        yield text_block("result", "rationale", _masked(rationale))
    elif exception := content_text(evaluation.get("exception")).strip():
        yield text_block("error", "exception", _masked(exception))
    elif isinstance(missed := evaluation.get("missed"), list) and missed:
        total = _number(evaluation.get("n_oracle_events"))
        of_all = "" if total is None else f" of {total}"
        n_missed = format_count(len(missed) + _count(evaluation.get("missed_dropped")))
        title = f"missed oracle events: {n_missed}{of_all}"
        yield text_block("failed", title, _masked("\n".join(map(_missed_text, missed[:MAX_EVENTS]))))


def _event_blocks(evaluation: Mapping[str, Any]) -> Iterator[Block]:
    events = evaluation.get("events")
    if not isinstance(events, list):
        return
    n_omitted = max(len(events) - MAX_EVENTS, 0)
    n_dropped = n_omitted + _count(evaluation.get("events_dropped"))
    count = pluralize(len(events) - n_omitted, "event")
    parts = [
        "event log",
        count,
        *([f"{format_count(n_dropped)} left out"] if n_dropped else []),
    ]
    yield text_block("observation", " · ".join(parts), _masked("\n".join(map(_event_text, events[:MAX_EVENTS]))))


def _missed_text(event: object) -> str:
    if not isinstance(event, dict):
        return content_text(event)
    reason = content_text(event.get("reason"))
    return _call_text(event) + (f": {reason}" if reason else "")


def _event_text(event: object) -> str:
    if not isinstance(event, dict):
        return content_text(event)[:MAX_ARGUMENTS]
    error = content_text(event.get("error"))
    kind = "nested" if event.get("nested") is True else content_text(event.get("type")).lower()
    return f"{_time_text(event.get('time')):>8}  {kind:<9}  {_call_text(event)}" + (
        f"  ✗ {error[:MAX_ARGUMENTS]}" if error else ""
    )


def _time_text(value: object) -> str:
    """Return simulated seconds as such, and as date and time if they count from 1970, as in most own scenarios."""
    if (seconds := _number(value)) is None:
        return ""
    if isinstance(value, int | float) and MIN_DATE_S <= value < MAX_DATE_S:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{seconds} s"


def _call_text(event: Mapping[str, Any]) -> str:
    app, function, arguments = (content_text(event.get(key)) for key in ("app", "function", "args"))
    name = " · ".join(part for part in (app, function) if part)
    cut = "…" if len(arguments) > MAX_ARGUMENTS else ""
    return f"{name} {arguments[:MAX_ARGUMENTS]}{cut}" if arguments not in ("", "{}") else name


def _count(value: object) -> int:
    return value if type(value) is int and 0 < value < 1e15 else 0


def _number(value: object) -> str | None:
    """Format a number; None for any other JSON, and for a number that no clock or counter reaches."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        return None
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _masked(text: str) -> str:
    return mask_secrets(text[: 2 * MAX_TEXT])
