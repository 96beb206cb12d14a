"""Values of any shape from agents and environments become episode files that can be read again."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.episode.loop import EpisodeContext, EpisodeLoop
from runner.store import EpisodeRecord, EpisodeStore, open_index
from runner.types import Action, Agent, Chat, Environment, Limits, SpanLevel, ToolCall
from tests.support.episodes import RecordedEpisode
from tests.support.examples import examples
from tests.support.fakes import Counter, UpAgent, user

TEXTS = st.text(st.sampled_from("ab\ud800\x00\x1b"), max_size=4)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    TEXTS,
    st.binary(max_size=3),
    st.builds(object),
    st.datetimes(),
)
KEYS = TEXTS | st.integers(0, 3) | st.none() | st.tuples(st.integers(0, 1))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
MESSAGES = st.fixed_dictionaries({"role": VALUES, "content": VALUES}, optional={"tool_calls": VALUES})
CHATS = st.lists(MESSAGES | VALUES, max_size=2) | VALUES
CALLS = st.builds(ToolCall, id=SCALARS, name=SCALARS | st.just("up"), arguments=VALUES | st.just("{}"))
ACTIONS = st.builds(Action, text=VALUES | st.just("up"), tool_calls=st.lists(CALLS | VALUES, max_size=2) | VALUES)
SCHEMAS = st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": VALUES})}) | VALUES, max_size=2)


class ConfigurableEnvironment(Counter):
    """Returns the configured values, and those of ``Counter`` where none is configured."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(goal=2)
        self._values = values

    def reset(self, **kwargs: Any) -> Chat:  # noqa: ANN401
        return self._values.get("reset", super().reset(**kwargs))  # type: ignore[no-any-return]

    def step(self, action: Action) -> Any:  # noqa: ANN401
        self.count += 1
        return self._values.get("step", ([user("at")], 0.0, self.count > 1))

    def get_tool_schemas(self) -> Any:  # noqa: ANN401
        return self._values.get("schemas", super().get_tool_schemas())

    def get_episode_id(self) -> Any:  # noqa: ANN401
        return self._values.get("name", "e")

    def parse(self, text: str) -> Any:  # noqa: ANN401
        return self._values.get("parsed", super().parse(text))

    def get_evaluation_details(self) -> Any:  # noqa: ANN401
        return self._values.get("details", {})


class ConfigurableAgent(UpAgent):
    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        self._values = values
        self.last_response_flow_id = values.get("flow")

    def act(self, observation: Chat, tool_schemas: Any) -> Any:  # noqa: ANN401
        return self._values.get("chats", [observation]), self._values.get("action", Action(text="up"))


class EpisodeFactory:
    limits = Limits(max_rounds=2)
    tracing_level: SpanLevel = "full"
    records_world: bool = True

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def build_environment(self) -> Environment:
        return ConfigurableEnvironment(self._values)

    def build_agent(self) -> Agent:
        return ConfigurableAgent(self._values)


def play_and_load(folder: Path, values: dict[str, Any]) -> EpisodeRecord:
    store = EpisodeStore(folder)
    index = open_index(store)
    episode = RecordedEpisode(store, index)
    reporter = episode.reporter
    context = EpisodeContext(
        episode.header, tracer=episode.spans.tracer, emit=reporter.emit, on_reset=reporter.on_reset
    )

    async def run_episode() -> None:
        await EpisodeLoop(EpisodeFactory(values), {}, context).run()

    asyncio.run(run_episode())
    index.close()
    return store.load(episode.header.episode_id)


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "reset": CHATS,
            "step": st.tuples(CHATS, st.just(1.0) | VALUES, VALUES) | VALUES,
            "schemas": SCHEMAS | VALUES,
            "name": VALUES,
            "parsed": ACTIONS | VALUES,
            "details": VALUES,
            "flow": VALUES,
            "chats": st.lists(CHATS, max_size=2) | VALUES,
            "action": ACTIONS | VALUES,
        },
    )
)
def test_every_stored_episode_can_be_read_again(values: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        record = play_and_load(Path(folder), values)
        assert len(record.timesteps) == record.rounds <= 2


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({"schemas": None}, "environment_fault", "get_tool_schemas should return a list of OpenAI functions; got None"),
        ({"schemas": [{}]}, "environment_fault", "get_tool_schemas should return OpenAI functions; got {} as one"),
        (
            {"action": cast(Any, Action)(text=5)},
            "agent_fault",
            "should return an Action of text and tool calls; got Action(text=5",
        ),
        (
            {"action": Action(tool_calls=[cast(Any, ToolCall)("c", "up", {"n": 1})])},
            "agent_fault",
            "arguments={'n': 1}",
        ),
        ({"parsed": "up"}, "environment_fault", "parse should return Action or InvalidAction; got 'up'"),
    ],
)
def test_an_invalid_value_is_attributed_to_the_component_that_returned_it(
    tmp_path: Path, values: dict[str, Any], kind: str, message: str
) -> None:
    record = play_and_load(tmp_path, values)
    assert record.error is not None
    assert record.error.type == kind
    assert message in record.error.message


@pytest.mark.parametrize("values", [{"details": [1]}, {"details": {"a": object()}}, {"flow": "abc"}, {"flow": 2**64}])
def test_invalid_optional_values_are_dropped_and_logged(
    tmp_path: Path, values: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    record = play_and_load(tmp_path, values)
    assert (record.error, record.rounds) == (None, 2)
    assert record.evaluation in (None, {})
    assert record.trace_last_response_flow_id is None
    assert "should be" in caplog.text


@pytest.mark.parametrize("depth", [100, 960, 2000])
def test_deeply_nested_values_can_be_read_again(tmp_path: Path, depth: int) -> None:
    content: Any = "core"
    for _ in range(depth):
        content = [content]
    assert play_and_load(tmp_path, {"reset": [{"role": "user", "content": content}]}).rounds == 2
