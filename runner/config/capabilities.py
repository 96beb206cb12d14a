"""What one model endpoint takes, as a profile sets it and as runs learn it from refusals."""

# Annotations are no text here, for the reason given in ``profile.py``.

from typing import Annotated, Final, Literal, NamedTuple, Self, TypeAlias

import msgspec

_STREAMING: Final = {
    (True, True): "",
    (True, False): "no streaming without tools",
    (False, True): "no streaming with tools",
    (False, False): "no streaming",
}
"""What is not streamed, by whether answers are streamed with and without tools."""

OptionalField: TypeAlias = Literal["temperature", "max_tokens", "stream_options", "token_ids"]


class LessonKey(NamedTuple):
    """What capabilities hold for: an endpoint, a model, and requests with or without tools."""

    endpoint: str
    model: str
    with_tools: bool


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The shape of the requests that an endpoint takes for one model, with or without tools.

    Attributes:
        rename: other names under which the endpoint takes fields, such as ``max_completion_tokens``.
        tools: ``text``: tools are described in the prompt and not sent, and calls are read from the answer's text.
        system: ``folded``: the system prompt is the beginning of the first user message.
        reasoning: turns whose reasoning is sent back to the model that wrote it: none, those with tool calls, or all.
        context_tokens: size of the context; None if only the profile's ``agent.context_tokens`` is known.
    """

    omit: tuple[OptionalField, ...] = ()
    rename: dict[OptionalField, str] = {}
    tools: Literal["native", "text"] = "native"
    stream: bool = True
    system: Literal["own", "folded"] = "own"
    reasoning: Literal["none", "calls", "all"] = "calls"
    context_tokens: Annotated[int, msgspec.Meta(ge=16, description="a whole number of at least 16")] | None = None

    def describe(self, without_tools: Self | None = None) -> str:
        """Return what differs from the usual shape in a few words; "" if nothing does.

        With the capabilities ``without_tools`` of the same endpoint, the words also show where it streams.
        """
        parts = [
            "tools as text" if self.tools == "text" else "",
            _STREAMING[self.stream, (without_tools or self).stream],
            "folded system" if self.system == "folded" else "",
            *(f"{name} as {new}" for name, new in self.rename.items()),
            *(f"no {name}" for name in self.omit),
            "" if self.reasoning == "calls" else f"reasoning of {self.reasoning} turns sent back",
            f"context {self.context_tokens:,}" if self.context_tokens else "",
        ]
        return ", ".join(filter(None, parts))
