"""An episode with hostile text and a secret in every field that a page shows."""

from __future__ import annotations

from typing import Any

import msgspec

from runner.store import EpisodeRecord
from runner.types import Action, ErrorInfo, Span, ToolCall
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory

SECRET = "sesame-street-1"
HOSTILE = f"\x1b]0;x\x07</script><!--<script>\u202e\u2028&amp;\x9b2J\x00 {SECRET}"


def hostile_episode() -> EpisodeRecord:
    messages: list[Any] = [{"role": role, "content": f"{role} {HOSTILE}"} for role in ("system", "user")]
    reply = {"role": "assistant", "content": f"assistant {HOSTILE}", "reasoning_content": HOSTILE}
    step = make_step(
        0,
        chats=[[*messages, reply]],
        action=Action(HOSTILE, [ToolCall("c", HOSTILE, HOSTILE)], valid=False),
        observation=[{"role": HOSTILE, "content": HOSTILE}],
        endpoint=HOSTILE,
        model=HOSTILE,
        warnings=(HOSTILE,),
        world=[[HOSTILE, [HOSTILE, "red", "solid"]]],
        reward=-0.5,
        done=True,
    )
    names = dict.fromkeys(("env", "agent", "model", "data_label", "limits", "currency"), HOSTILE)
    header = episode_header(**names)
    error = ErrorInfo(type=HOSTILE, message=HOSTILE, traceback=HOSTILE)
    record = finished_record(header, make_trajectory(header, [step], error_info=error))
    span = Span(
        id=1, parent=None, name=HOSTILE, category=HOSTILE, track="", start_ns=5, end_ns=9, attributes={"index": 0}
    )
    inner = msgspec.structs.replace(span, id=2, parent=1, attributes={HOSTILE: HOSTILE})
    return msgspec.structs.replace(record, spans=[inner, span], evaluation={HOSTILE: HOSTILE}, cost=0.5)
