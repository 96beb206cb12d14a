"""Split of an answer into queue, prefill and decode."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.inference.chat_format import ModelReply, parse_reply
from runner.tracing import SpanList, Tracer
from runner.types import AnswerTimes
from runner.types.phases import ServerTimes, answer_times
from tests.support.inference import infer, inference_manager
from tests.support.rude_model import RudeModel, chat_completion, completion_response

SERVER = ServerTimes(queue_s=3.0, prefill_s=1.0, decode_s=4.0)
SECONDS = st.floats(0.0, 1e6)
OPTIONAL = st.none() | SECONDS
Reported: TypeAlias = tuple[float | None, float | None]
UNKNOWN = (None, None)
NO_TIME = ServerTimes(queue_s=0.0, prefill_s=0.0, decode_s=0.0)


@pytest.mark.parametrize(
    ("total_s", "ttft_s", "reported", "server", "expected"),
    [
        pytest.param(5.0, 2.0, (0.5, 3.0), SERVER, (1.5, 0.5, 3.0, False), id="what the answer reports is exact"),
        pytest.param(5.0, 2.0, (4.0, 3.0), None, (None, None, 3.0, False), id="more than the answer took"),
        pytest.param(5.0, 2.0, UNKNOWN, SERVER, (1.5, 0.5, 3.0, True), id="the first token as the server's means"),
        pytest.param(4.0, None, UNKNOWN, SERVER, (1.5, 0.5, 2.0, True), id="an unstreamed answer as the means"),
        pytest.param(4.0, None, UNKNOWN, None, (None, None, None, False), id="no source"),
        pytest.param(4.0, 1.0, UNKNOWN, None, (None, None, 3.0, False), id="only a stream"),
        pytest.param(4.0, 1.0, UNKNOWN, ServerTimes(decode_s=9.0), (None, None, 3.0, False), id="no means before"),
        pytest.param(4.0, 1.0, UNKNOWN, ServerTimes(queue_s=9.0), (1.0, 0.0, 3.0, True), id="a mean above the start"),
        pytest.param(4.0, None, UNKNOWN, NO_TIME, (None, None, None, False), id="means of zero"),
    ],
)
def test_an_answer_is_split_by_what_it_reports_or_by_the_servers_means(
    total_s: float, ttft_s: float | None, reported: Reported, server: ServerTimes | None, expected: tuple[Any, ...]
) -> None:
    queue_s, prefill_s, decode_s, about = expected
    parts = AnswerTimes(total_s=total_s, queue_s=queue_s, prefill_s=prefill_s, decode_s=decode_s, about=about)
    assert answer_times(total_s, ttft_s, reported, server) == parts


@given(
    SECONDS,
    OPTIONAL,
    st.tuples(OPTIONAL, OPTIONAL),
    st.none() | st.builds(ServerTimes, queue_s=OPTIONAL, prefill_s=OPTIONAL, decode_s=OPTIONAL),
)
def test_the_parts_are_never_negative_or_more_than_the_answer(
    total_s: float, ttft_s: float | None, reported: Reported, server: ServerTimes | None
) -> None:
    times = answer_times(total_s, ttft_s, reported, server)
    parts = [part for part in (times.queue_s, times.prefill_s, times.decode_s) if part is not None]
    assert all(part >= 0.0 for part in parts)
    assert sum(parts) <= total_s * 1.06 + 1e-6


TIMINGS = {"prompt_n": 5, "prompt_ms": 380.5, "predicted_n": 6, "predicted_ms": 1330.6, "predicted_per_second": 4.5}


def reply_with(**fields: Any) -> ModelReply:  # noqa: ANN401
    return parse_reply(json.dumps(chat_completion({"role": "assistant", "content": "up"}, **fields)).encode())


def test_the_timings_of_llama_cpp_and_the_durations_of_ollama_are_read() -> None:
    reply = reply_with(timings=TIMINGS)
    assert [reply.prefill_s, reply.decode_s] == pytest.approx([0.3805, 1.3306])
    reply = reply_with(prompt_eval_duration=250_000_000, eval_duration=2_000_000_000)
    assert [reply.prefill_s, reply.decode_s] == pytest.approx([0.25, 2.0])


@pytest.mark.parametrize(
    "timings", [{}, [], None, {"prompt_ms": -1, "predicted_ms": 1}, {"prompt_ms": "1", "predicted_ms": True}]
)
def test_timings_that_are_not_numbers_are_ignored(timings: object) -> None:
    reply = reply_with(timings=timings)
    assert (reply.prefill_s, reply.decode_s) == (None, None)


async def test_usage_and_trace_have_the_parts_of_an_answer() -> None:
    spans = SpanList()
    with RudeModel(completion_response("up", timings={"prompt_ms": 0.001, "predicted_ms": 0.002})) as server:
        times = (await infer(inference_manager(server.url), tracer=Tracer(collectors=[spans]))).usage.times
    assert times is not None and not times.about
    assert [times.prefill_s, times.decode_s] == pytest.approx([1e-6, 2e-6])
    assert times.queue_s == pytest.approx(times.total_s - 3e-6)
    by_name = {span.name: span for span in spans.spans}
    request = next(span for name, span in by_name.items() if name.startswith("chat "))
    queue, prefill, decode = (by_name[name] for name in ("queue", "prefill", "decode"))
    assert {span.parent for span in (queue, prefill, decode)} == {request.id}
    assert request.start_ns <= queue.start_ns
    assert (queue.end_ns, prefill.end_ns) == (prefill.start_ns, decode.start_ns)
    assert decode.end_ns <= request.end_ns
    assert (prefill.end_ns - prefill.start_ns, decode.end_ns - decode.start_ns) == (1000, 2000)
    plain = SpanList()
    with RudeModel(completion_response("up")) as server:
        await infer(inference_manager(server.url), tracer=Tracer(collectors=[plain]))
    assert not {"queue", "prefill", "decode"} & {span.name for span in plain.spans}  # an answer that is not split
