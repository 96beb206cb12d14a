from __future__ import annotations

import json

import pytest

from agentgym_tui.state.episode_content import Spans, raw_spans_size, spans_size


@pytest.mark.parametrize("n_attributes", [0, 3, 1_000])
def test_spans_count_about_as_much_before_they_are_read_as_after(n_attributes: int) -> None:
    attributes = {f"{number:x}": number for number in range(n_attributes)}
    known = {"id": 1, "parent": None, "name": "", "category": "", "track": "", "start_ns": 0, "end_ns": 1}
    spans, heard = Spans(), [json.dumps({**known, "attributes": attributes}).encode()] * 10
    spans.append_raw(heard, raw_spans_size(heard))
    before = spans.size
    assert before > spans_size(spans.all) / 2
