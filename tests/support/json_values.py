"""Random JSON values that resemble the replies of a model server."""

from __future__ import annotations

from hypothesis import strategies as st

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("stop"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "index"]
            )
            | st.sampled_from(["usage", "prompt_tokens", "error", "finish_reason", "id", "model", "text", "reasoning"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)
