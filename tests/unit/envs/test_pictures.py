"""Pictures of the environments in known states, as text without colors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.envs.alfworld import ALFWorld
from runner.envs.are.environment import InboxPainter
from runner.envs.babyai import BabyAI
from runner.envs.gymnasium import GymnasiumEnvironment, draw_text
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.server import ServerAddress
from runner.envs.maze import Maze
from runner.envs.sqlgym import SQLGym
from runner.envs.textcraft import TextCraft
from runner.envs.webshop import WebShop
from runner.envs.wordle import Wordle
from runner.episode.world import pack_cells
from runner.types import Action, CellRun, Cells, SupportsCells, unpack_cells
from runner.types.cells import MAX_ROWS
from tests.support.rude_env_server import ReceivedRequest, RudeServer, json_response
from tests.support.serving import serve_environments

ENVIRONMENTS = (ALFWorld, BabyAI, Maze, SQLGym, TextCraft, WebShop, Wordle)


def drawn(environment: Any, texts: Iterable[str] = ()) -> Cells:  # noqa: ANN401 - has ``render_cells``
    for text in texts:
        environment.step(Action(text=text))
    cells = environment.render_cells()
    assert isinstance(cells, Cells)
    pack_cells(cells)
    return cells


def runs_of(cells: Cells) -> list[CellRun]:
    return [run for row in cells.rows for run in row]


def test_maze_shows_walls_the_way_walked_position_and_goal() -> None:
    maze = Maze()
    maze.reset(task_index=0)
    assert drawn(maze, ["move right", "move up", "move right", "move down"]).text == dedent(
        """\
        ██████████████████████████
        ██· · ·     ██          ██
        ██████● ██████████  ██████
        ██████  ██████████  ██████
        ██████  ██████████  ██████
        ██████              ██████
        ████████████  ████████████
        ████████████  ████████████
        ████████████★ ████████████
        ██████████████████████████

        ● agent   ★ goal   · way walked"""
    )
    maze.reset(task_index=1)
    assert drawn(maze).text.count("· ") == 1, "a reset forgets the way"


def test_wordle_shows_tiles_and_keyboard_that_differ_without_colors() -> None:
    wordle = Wordle(mode="compat")
    wordle.reset(task_index=0)
    wordle.history = [("crane", "bgybb")]
    wordle._tries = 2
    cells = drawn(wordle)
    assert cells.text.split("\n")[:3] == [" C [R](A) N  E", "invalid word", " ·  ·  ·  ·  ·"]
    assert "[r]" in cells.text
    assert "(a)" in cells.text
    assert CellRun("[R]", "green", "solid") in runs_of(cells)


def test_babyai_shows_the_grid_and_shades_what_the_agent_sees() -> None:
    world = BabyAI()
    world.reset(task_index=4)
    cells = drawn(world)
    assert cells.text == dedent(
        """\
        Mission: go to a green key
        Carrying: nothing
        ░░░░░░░░░░░░░░░░
        ░░            ░░
        ▓▓: : : : : : ░░
        ▓▓: kg: □r: : ░░
        ▓▓●e: : kg●e: ░░
        ▓▓: : : : : ◄ ░░
        ▓▓: : : kpky: ░░
        ▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░
        k key  ● ball  □ box  : seen by the agent
        doors: / open  + closed  ! locked
        r red g green b blue p purple y yellow e grey"""
    )
    assert CellRun("kg", "green", "shade") in runs_of(cells)


def test_babyai_shades_exactly_what_its_observation_names() -> None:
    world = BabyAI()
    for task_index in range(0, 40, 3):
        world.reset(task_index=task_index)
        oracle = world.oracle(0)
        for _ in range(4):
            shaded = "".join(run.text for run in runs_of(drawn(world)) if run.fill == "shade")
            in_view = [thing for thing in world._view.things if thing.kind in (5, 6)]
            assert sum(shaded.count(symbol) for symbol in ("k", "●")) == len(in_view), task_index
            if world.step(Action(text=oracle.next_action()))[2]:
                break


def test_textcraft_ticks_what_is_held_in_the_tree_of_the_goal() -> None:
    craft = TextCraft()
    craft.reset(task_index=400)
    cells = drawn(craft, ["get 1 acacia logs", "get 2 string"])
    assert cells.text.startswith("· white bed 0/1\n├─ · white wool 0/3\n│  └─ ◐ string 2/4  get\n")
    assert "✓ acacia logs 1/1  get" in cells.text
    assert "Held: 1 acacia logs, 2 string" in cells.text


def test_sqlgym_shows_tables_question_and_result() -> None:
    sql = SQLGym()
    sql.reset(task_index=3)
    before = drawn(sql).text
    assert "▦ campuses\n  id*, name, country, classrooms" in before
    assert before.endswith("No query yet")
    after = drawn(sql, ["SELECT count(*) FROM campuses"]).text
    assert "Query\n  SELECT count(*) FROM campuses\n✗ Result: not the answer\n  [(" in after
    sql.reset(task_index=3)
    assert drawn(sql).text == before
    assert "✓ Result: right" in drawn(sql, [sql.oracle(None).next_action()]).text


def test_webshop_shows_each_kind_of_page() -> None:
    shop = WebShop()
    shop.reset(task_index=3)
    oracle = shop.oracle(None)
    assert drawn(shop).text.endswith("[Search]")
    results = drawn(shop, [oracle.next_action()]).text
    assert "Page 1 (Total results: 50)" in results
    assert "[Next >] [Back to Search]" in results
    texts = [drawn(shop, [oracle.next_action()]).text for _ in range(4)]
    assert "Price: $" in texts[0]
    assert "(•)" not in texts[0]
    assert "  (•) rose" in texts[1]
    assert "[Buy Now]" in texts[2]
    assert "Your score" in texts[3]
    shop.reset(task_index=3)
    assert "free of charge" not in drawn(shop, ["search[cutting board]", "click[nothing]"]).text


def test_alfworld_shows_only_what_was_seen_and_what_is_held() -> None:
    room = ALFWorld()
    room.reset(task_index=5)
    assert drawn(room).text.count("?") == len(room._game.contents) + 1  # type: ignore[union-attr]
    text = drawn(room, ["go to fridge 1"]).text
    assert "►■ fridge 1 ?" in text
    text = drawn(room, ["open fridge 1"]).text
    assert "►□ fridge 1\n" in text
    assert "\nfridge 1        plate 2, plate 1, potato 3" in text
    text = drawn(room, ["take potato 3 from fridge 1", "go to sinkbasin 1", "clean potato 3 with sinkbasin 1"]).text
    assert "Held: potato 3 (clean)" in text
    assert " □ fridge 1\n" in text
    assert "\nfridge 1        plate 2, plate 1" in text
    assert text.index("\nsinkbasin 1 ") < text.index("\nfridge 1 "), "the place of the player comes first"
    assert max(map(len, text.split("\n"))) <= 78


def test_are_shows_apps_with_their_calls_and_the_newest_messages() -> None:
    painter = InboxPainter(["Mail__send", "Mail__list", "Calendar__add", "wait"])
    painter.add_messages([("user", "Book the dentist."), ("environment", "10:00")])
    assert painter.draw().text == dedent(
        """\
        Time: 10:00

        Apps · 3
          Calendar       1 tool
          Mail           2 tools
          environment    1 tool

        Inbox · 1   @ from the user  ! from an app
        @ Book the dentist."""
    )
    painter.add_call("Mail__list")
    painter.add_messages(
        [("result", "none"), ("notification", "Calendar: a day " + "x " * 500), ("environment", "10:01")]
    )
    text = painter.draw().text
    assert "► Mail           2 tools  1 call, last: list" in text
    assert text.index("! Calendar: a day") < text.index("@ Book the dentist.")
    assert "none" not in text
    assert max(map(len, text.split("\n"))) <= 78


@given(parts=st.lists(st.tuples(st.sampled_from(["user", "notification", "environment", "result"]), st.text())))
def test_every_inbox_of_are_can_be_drawn(parts: list[tuple[str, str]]) -> None:
    painter = InboxPainter(["a" * 200 + "__b", "__", ""])
    painter.add_messages(parts)
    assert len(pack_cells(painter.draw())) <= MAX_ROWS


def test_gymnasium_keeps_the_colors_of_its_text_rendering() -> None:
    lake = GymnasiumEnvironment(id="FrozenLake-v1")
    lake.reset(task_index=0)
    assert lake.render_cells() == Cells(
        [(CellRun("S", "red", "solid"), CellRun("FFF")), *((CellRun(line),) for line in ("FHFH", "FFFH", "HFFG"))]
    )
    cart = GymnasiumEnvironment(id="CartPole-v1")
    cart.reset(task_index=0)
    assert cart.render_cells() is None


def test_unknown_color_codes_are_ignored() -> None:
    cells = draw_text("a\x1b[1;31mb\x1b[0mc\x1b[4;999;105md\x1b[me\x1b[2J")
    assert cells.rows[0][:5] == (
        CellRun("a"),
        CellRun("b", "red"),
        CellRun("c"),
        CellRun("d", "purple", "solid"),
        CellRun("e\x1b[2J"),
    )


async def test_our_servers_draw_the_state_that_the_embedded_environment_draws() -> None:
    with serve_environments([each.__name__ for each in ENVIRONMENTS]) as urls:
        for environment in ENVIRONMENTS:
            local: Any = environment()
            address = ServerAddress(urls[environment.__name__], 10, lists_actions=True)
            remote = HttpEnvironment(env=environment.__name__, address=address)
            local.reset(task_index=3)
            await remote.reset(task_index=3)
            oracle, done = local.oracle(0), False
            while not done:
                assert await remote.render_cells() == unpack_cells(pack_cells(drawn(local)))
                action = Action(text=oracle.next_action())
                done = local.step(action)[2]
                await remote.step(action)
            assert await remote.render_cells() == unpack_cells(pack_cells(drawn(local))), "also of the last state"
            await remote.cleanup()


async def test_servers_of_others_are_asked_for_no_picture_and_a_hanging_one_costs_the_pictures(
    rude_server: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        paths.append(request.path)
        if not request.path.startswith("/world"):
            writer.write(json_response({"id": 7, "observation": "A room.", "available_actions": []}))

    rude_server.reset(answer)
    other = HttpEnvironment(env="ALFWorld", address=ServerAddress(rude_server.url, 10), mode="compat")
    await other.reset()
    assert await other.render_cells() is None
    assert paths == ["/create", "/reset"]
    await other.cleanup()
    monkeypatch.setattr("runner.envs.http.environment.PICTURE_TIMEOUT_S", 0.05)
    own = HttpEnvironment(env="ALFWorld", address=ServerAddress(rude_server.url, 10, lists_actions=True))
    await own.reset()
    with pytest.raises(TimeoutError):
        await own.render_cells()
    assert await own.reset(), "the instance can still be used"


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("mode", ["strict", "compat"])
def test_every_environment_can_be_drawn_throughout_an_episode(environment: Any, mode: str) -> None:  # noqa: ANN401
    played: Any = environment(mode=mode)
    assert isinstance(environment(), SupportsCells)
    played.reset(task_index=7)
    oracle = played.oracle(0)
    for text in ("", "nonsense \x1b[2J", *(oracle.next_action() for _ in range(6))):
        before = drawn(played)
        assert drawn(played) == before, "drawing changes nothing"
        if played.step(Action(text=text))[2]:
            break
    assert drawn(played).text
