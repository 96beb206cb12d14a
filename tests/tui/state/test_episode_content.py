from __future__ import annotations

import json

import pytest

from agentgym_tui.state.episode_content import Spans, raw_spans_size, spans_size


@pytest.mark.parametrize("n_attributes", [0, 3, 1_000])
def test_raw_spans_are_charged_about_the_size_of_decoded_spans(n_attributes: int) -> None:
    attributes = {f"{number:x}": number for number in range(n_attributes)}
    fields = {"id": 1, "parent": None, "name": "", "category": "", "track": "", "start_ns": 0, "end_ns": 1}
    spans, raw_spans = Spans(), [json.dumps({**fields, "attributes": attributes}).encode()] * 10
    spans.append_raw(raw_spans, raw_spans_size(raw_spans))
    raw_size = spans.size
    assert raw_size > spans_size(spans.all) / 2
