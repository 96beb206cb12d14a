"""Which actions of the seven environments are valid, and which of these an environment refuses, here and on servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import pytest

from runner.agents.baselines import single_chat
from runner.envs.base import is_lost_click, is_refusal
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.server import ServerAddress
from runner.episode.loop import EpisodeTrace, StepPlayer, TokenStream
from runner.plugins import ENVS, load
from runner.tracing import Tracer
from runner.types import Action, Chat, Environment, Mode, TimeStep, ToolCall, ToolSchema
from runner.types.protocols import maybe_await
from tests.support.episodes import episode_header
from tests.support.fakes import UpAgent
from tests.support.recordings import load_rows
from tests.support.serving import serve_environments

Kind: TypeAlias = str
"""``done``, ``invalid`` or ``refused``."""
MODES: tuple[Mode, ...] = ("strict", "compat")


def call(name: str, **arguments: object) -> Action:
    return Action(tool_calls=[ToolCall("call_0", name, msgspec.json.encode(arguments).decode())])


def text(command: str) -> Action:
    return Action(text=command)


TABLE: dict[str, list[tuple[Action, Kind]]] = {
    "Maze": [
        (call("move", direction="up"), "done"),  # into a wall: the maze has an answer, but no word of refusal
        (text("move left"), "done"),
        (call("move", direction="UP"), "invalid"),
        (call("move", direction=5), "invalid"),
        (call("move", direction="up", speed=2), "invalid"),
        (call("move"), "invalid"),
        (call("fly", direction="up"), "invalid"),
        (Action(tool_calls=[ToolCall("call_0", "move", "{")]), "invalid"),
        (text("move UP"), "invalid"),
    ],
    "Wordle": [
        (call("guess", word="panic"), "done"),
        (text("p a n i c"), "done"),
        (call("guess", word="aaaaa"), "refused"),
        (text("bbbbb"), "refused"),
        (call("guess", word="PANIC"), "invalid"),
        (call("guess", word=["panic"]), "invalid"),
    ],
    "BabyAI": [
        (call("turn", direction="left"), "done"),
        (call("check_available_actions"), "done"),
        (text("turn right"), "done"),
        (call("go_to", target="purple box", number=9), "refused"),
        (text("drop"), "refused"),
        (text("toggle"), "refused"),
        (call("turn", direction="around"), "invalid"),
        (call("pickup", object="elephant", number=1), "invalid"),
        (call("pickup", object="grey key", number="1"), "invalid"),  # executed all the same
        (text("fly to the moon"), "invalid"),
    ],
    "TextCraft": [
        (call("get", count=1, item="acacia logs"), "done"),
        (call("inventory"), "done"),
        (call("get", count=1, item="unicorn"), "refused"),
        (call("craft", count=1, item="beacon", ingredients="1 nether star"), "refused"),
        (call("craft", count=4, item="acacia planks", ingredients="acacia logs"), "refused"),
        (text("get 1 unicorn"), "refused"),
        (call("get", count="1", item="acacia logs"), "invalid"),  # executed all the same
        (call("get", count=-1, item="acacia logs"), "invalid"),
        (text("dance"), "invalid"),
        (text("craft 4 acacia planks using 1 acacia logs"), "done"),
    ],
    "ALFWorld": [
        (call("go_to", receptacle="cabinet 1"), "done"),
        (text("look"), "done"),
        (call("go_to", receptacle="cabinet 99"), "refused"),
        (text("take spoon 9 from cabinet 1"), "refused"),
        (call("go_to", receptacle="the kitchen"), "invalid"),
        (call("look", where="here"), "invalid"),
        (text("dance"), "invalid"),
    ],
    "WebShop": [
        (call("click", element="Buy Now"), "refused"),
        (call("search", keywords="body lotion skin type"), "done"),
        (text("click[no such thing]"), "refused"),
        (call("click", element="{item}"), "done"),
        (call("click", element="{value}"), "done"),
        (call("click", element="{value}"), "done"),
        (call("click", element="{name}"), "refused"),
        (call("click", element="{title}"), "refused"),
        (call("click", element=3), "invalid"),
        (text("buy it"), "invalid"),
        (text("click[Description]"), "done"),
        (text("click[< Prev]"), "done"),
        (text("click[Buy Now]"), "done"),
    ],
    "SQLGym": [
        (call("query", sql="SELECT 1"), "done"),
        (call("query", sql="SELECT nothing FROM nowhere"), "refused"),
        (text("SELEC 1"), "refused"),
        (call("query", sql=1), "invalid"),
        (call("query", sql="SELECT 1", limit=3), "invalid"),
    ],
}


class Player(UpAgent):
    """Plays given actions; what stands in braces is read from the page of the shop."""

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self._actions = iter(actions)
        self._words: dict[str, str] = {}

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> Any:  # noqa: ANN401 - as in the protocol
        pieces = str(observation[0]["content"]).split(" [SEP] ") if observation else []
        if len(pieces) > 6 and pieces[3].startswith("Page "):
            self._words["{item}"] = next(piece for piece in pieces[4:] if piece.isalnum() and piece.isupper())
        if "Buy Now" in pieces:
            title = next(index for index, piece in enumerate(pieces) if piece.startswith("Price: ")) - 1
            self._words |= {"{name}": pieces[4], "{value}": pieces[5], "{title}": pieces[title]}
        return single_chat(observation, "")[0], self._filled(next(self._actions))

    def _filled(self, action: Action) -> Action:
        data = msgspec.json.encode(action).decode()
        for hole, word in self._words.items():
            data = data.replace(hole, word)
        return msgspec.json.decode(data, type=Action)


async def play(environment: Environment, actions: Sequence[Action]) -> list[TimeStep]:
    """Play steps of task 0 through the door of the runner, with a new start where the task has ended."""
    stream = TokenStream(lambda: 0.0, lambda step, delta: None)
    trace = EpisodeTrace(Tracer("off"), episode_header(), {})
    runner = StepPlayer(environment, Player(actions), trace, lambda: 0.0, stream)
    steps: list[TimeStep] = []
    observation = await maybe_await(environment.reset(task_index=0))
    for index in range(len(actions)):
        steps.append(await runner.run_step(index, observation))
        observation = steps[-1].observation
        if steps[-1].done:
            observation = await maybe_await(environment.reset(task_index=0))
    return steps


def kind(step: TimeStep) -> Kind:
    assert step.valid or not step.refused
    return "invalid" if not step.valid else "refused" if step.refused else "done"


async def check(environment: Environment, table: Sequence[tuple[Action, Kind]]) -> None:
    steps = await play(environment, [action for action, _ in table])
    found = [(action, kind(step)) for (action, _), step in zip(table, steps, strict=True)]
    assert found == list(table)


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with serve_environments([*TABLE]) as urls:
        yield urls


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", TABLE)
async def test_embedded(env: str, mode: Mode) -> None:
    environment: Any = load(ENVS, env)
    await check(environment(mode=mode), TABLE[env])


@pytest.mark.parametrize("env", TABLE)
async def test_on_a_server(env: str, urls: dict[str, str]) -> None:
    environment = HttpEnvironment(env=env, address=ServerAddress(urls[env]))
    await check(environment, TABLE[env])
    await environment.cleanup()


async def test_a_call_outside_its_schema_is_executed_all_the_same() -> None:
    environment: Any = load(ENVS, "TextCraft")
    (step,) = await play(environment(), [call("get", count="1", item="acacia logs")])
    assert step.observation[0]["content"] == "Got 1 acacia logs"


@pytest.mark.parametrize("task", range(0, 40, 10))
async def test_the_text_of_a_page_shows_which_clicks_hit_nothing(task: int) -> None:
    shop: Any = load(ENVS, "WebShop")()
    shop.reset(task_index=task)
    planner = shop.oracle(0)
    for _ in range(12):
        page = shop._visit.page.text
        for piece in page.split(" [SEP] "):
            if piece.lower() not in shop.clickables:
                assert is_lost_click(f"click[{piece}]", page, page) is (piece not in option_names(shop)[1:])
        for link in shop.clickables:
            if link in option_values(shop):
                assert not is_lost_click(f"click[{link}]", page, page)
        if shop.step(Action(text=planner.next_action()))[2]:
            break


def option_names(shop: Any) -> list[str]:  # noqa: ANN401
    """Return the names of options of the page that the text does not mark as names, after a first one."""
    product, has_options = shop._visit.product, "buy now" in shop.clickables
    names = list(product.options) if product is not None and has_options else []
    return [*names[:1], *(name for name in names[1:] if f" {name}: " not in shop.instruction)]


def option_values(shop: Any) -> set[str]:  # noqa: ANN401
    product = shop._visit.product
    return set() if product is None else {value for values in product.options.values() for value in values}


def test_recorded_replies_of_babyai_without_a_view_are_refusals() -> None:
    views = ("In front of you in this room", "You can take the following actions", "No change in state.")
    steps = [step for episode in load_rows("babyai_rules.jsonl") for step in episode["steps"]]
    replies = [step["observation"] for step in steps if step["observation"] is not None]  # None: the task had ended
    assert [is_refusal("BabyAI", reply) for reply in replies] == [not reply.startswith(views) for reply in replies]
    assert sum(not reply.startswith(views) for reply in replies) > 20
