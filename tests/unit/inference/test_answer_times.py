"""Split of an answer into queue, prefill and decode."""

from __future__ import annotations

import json
from typing import Any

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


def test_what_the_answer_reports_is_exact() -> None:
    times = answer_times(5.0, 2.0, (0.5, 3.0), SERVER)
    assert times == AnswerTimes(total_s=5.0, queue_s=1.5, prefill_s=0.5, decode_s=3.0)


def test_a_server_that_reports_more_than_the_answer_took_is_not_believed() -> None:
    assert answer_times(5.0, 2.0, (4.0, 3.0), None) == AnswerTimes(total_s=5.0, decode_s=3.0)


def test_the_time_to_the_first_token_is_split_as_the_servers_means() -> None:
    times = answer_times(5.0, 2.0, (None, None), SERVER)
    assert times == AnswerTimes(total_s=5.0, queue_s=1.5, prefill_s=0.5, decode_s=3.0, about=True)


def test_an_answer_that_is_not_streamed_is_split_as_the_servers_means() -> None:
    times = answer_times(4.0, None, (None, None), SERVER)
    assert times == AnswerTimes(total_s=4.0, queue_s=1.5, prefill_s=0.5, decode_s=2.0, about=True)


@pytest.mark.parametrize(
    ("ttft_s", "server", "expected"),
    [
        (None, None, AnswerTimes(total_s=4.0)),
        (1.0, None, AnswerTimes(total_s=4.0, decode_s=3.0)),
        (1.0, ServerTimes(decode_s=9.0), AnswerTimes(total_s=4.0, decode_s=3.0)),
        (1.0, ServerTimes(queue_s=9.0), AnswerTimes(total_s=4.0, queue_s=1.0, prefill_s=0.0, decode_s=3.0, about=True)),
        (None, ServerTimes(queue_s=0.0, prefill_s=0.0, decode_s=0.0), AnswerTimes(total_s=4.0)),
    ],
)
def test_parts_without_a_source_are_unknown(
    ttft_s: float | None, server: ServerTimes | None, expected: AnswerTimes
) -> None:
    assert answer_times(4.0, ttft_s, (None, None), server) == expected


@given(
    SECONDS,
    OPTIONAL,
    st.tuples(OPTIONAL, OPTIONAL),
    st.none() | st.builds(ServerTimes, queue_s=OPTIONAL, prefill_s=OPTIONAL, decode_s=OPTIONAL),
)
def test_the_parts_are_never_negative_or_more_than_the_answer(
    total_s: float, ttft_s: float | None, reported: tuple[float | None, float | None], server: ServerTimes | None
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


async def test_the_usage_of_an_answer_has_its_exact_times() -> None:
    timings = {"prompt_ms": 0.001, "predicted_ms": 0.002}
    with RudeModel(completion_response("up", timings=timings)) as server:
        times = (await infer(inference_manager(server.url))).usage.times
    assert times is not None
    assert [times.prefill_s, times.decode_s] == pytest.approx([1e-6, 2e-6])
    assert not times.about
    assert times.queue_s == pytest.approx(times.total_s - 3e-6)


async def test_the_trace_has_the_parts_of_an_answer_as_spans_in_its_request() -> None:
    spans = SpanList()
    with RudeModel(completion_response("up", timings={"prompt_ms": 0.001, "predicted_ms": 0.002})) as server:
        await infer(inference_manager(server.url), tracer=Tracer(collectors=[spans]))
    by_name = {span.name: span for span in spans.spans}
    request = next(span for name, span in by_name.items() if name.startswith("chat "))
    queue, prefill, decode = (by_name[name] for name in ("queue", "prefill", "decode"))
    assert {span.parent for span in (queue, prefill, decode)} == {request.id}
    assert request.start_ns <= queue.start_ns
    assert (queue.end_ns, prefill.end_ns) == (prefill.start_ns, decode.start_ns)
    assert decode.end_ns <= request.end_ns
    assert (prefill.end_ns - prefill.start_ns, decode.end_ns - decode.start_ns) == (1000, 2000)


async def test_an_answer_that_is_not_split_has_no_spans_of_its_parts() -> None:
    spans = SpanList()
    with RudeModel(completion_response("up")) as server:
        await infer(inference_manager(server.url), tracer=Tracer(collectors=[spans]))
    assert not {"queue", "prefill", "decode"} & {span.name for span in spans.spans}
