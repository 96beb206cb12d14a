from __future__ import annotations

import pytest

from runner.envs.webshop import WebShop, shipped_catalogue
from runner.errors import EnvironmentFault
from runner.types import Action, InvalidAction, Mode

MODES: tuple[Mode, ...] = ("strict", "compat")
TASK = 3
INSTRUCTION = (
    "find me a cutting board that is oven safe and non stick with color: rose, and size: set of six, "
    "and price lower than 40.00 dollars"
)
START = f"WebShop [SEP] Instruction: [SEP] {INSTRUCTION} [SEP] Search"
ITEM = "B0EWA2ABE6"
TITLE = "Tamdora Willow Dishwasher Safe Cutting Board, Oven Safe, For Camping And Family"
ITEM_PAGE = (
    f"Instruction: [SEP] {INSTRUCTION} [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] white [SEP] rose [SEP] size "
    f"[SEP] single piece [SEP] set of two [SEP] set of four [SEP] set of six [SEP] {TITLE} [SEP] Price: $23.95 [SEP] "
    "Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
)
SEARCH = "search[oven safe non stick cutting board]"


def step_texts(env: WebShop, *texts: str) -> tuple[str, float, bool]:
    """Return the last observation."""
    for text in texts:
        chat, reward, done = env.step(Action(text=text))
    return chat[0]["content"] or "", reward, done


def start_env(mode: Mode = "strict", task_index: int = TASK) -> WebShop:
    env = WebShop(mode=mode)
    env.reset(task_index=task_index)
    return env


def page_parts(text: str) -> list[str]:
    return text.split(" [SEP] ")


def test_an_episode_runs_from_reset_to_the_purchase() -> None:
    env = WebShop()
    assert env.reset(task_index=TASK)[0]["content"] == START
    observation, reward, done = step_texts(env, SEARCH)
    assert (reward, done) == (0.0, False)
    shown = page_parts(observation)
    assert shown[:5] == ["Instruction:", INSTRUCTION, "Back to Search", "Page 1 (Total results: 50)", "Next >"]
    assert shown[14:17] == [ITEM, TITLE, "$23.95"]
    assert len(shown) == 5 + 3 * 10
    assert step_texts(env, f"click[{ITEM}]") == (ITEM_PAGE, 0.0, False)
    assert step_texts(env, "click[rose]", "click[Set of Six]") == (ITEM_PAGE, 0.0, False)
    bought = "Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0"
    assert step_texts(env, "click[Buy Now]") == (bought, 1.0, True)
    with pytest.raises(EnvironmentFault, match="call reset first"):
        step_texts(env, SEARCH)


def test_a_results_page_shows_ten_products() -> None:
    env = start_env()
    numbers: list[str] = []
    step_texts(env, SEARCH)
    for page in range(1, 6):
        shown = page_parts(step_texts(env, "search[]")[0])  # invalid action: shows the page again
        assert shown[3] == f"Page {page} (Total results: 50)"
        assert ("< Prev" in shown, "Next >" in shown) == (page > 1, page < 5)
        numbers += [element for element in env.clickables if element.startswith("b0")]
        last = step_texts(env, "click[next >]")[0]
    assert page_parts(last)[3] == "Page 5 (Total results: 50)"
    assert len(set(numbers)) == 50
    assert page_parts(step_texts(env, "click[< prev]")[0])[3] == "Page 4 (Total results: 50)"


def test_the_last_page_offers_a_next_one_only_as_agentgyms_server_does() -> None:
    for mode in MODES:
        shown = step_texts(start_env(mode), SEARCH, *["click[Next >]"] * 4)[0]
        assert (page_parts(shown)[3], "Next >" in page_parts(shown)) == ("Page 5 (Total results: 50)", mode == "compat")


def test_a_product_leads_back_to_its_page_of_results() -> None:
    env = start_env()
    results = step_texts(env, SEARCH, "click[Next >]")[0]
    [item, *_] = [element for element in env.clickables if element.startswith("b0")]
    page = step_texts(env, f"click[{item}]")[0]
    for button in ("Description", "Features", "Reviews"):
        assert step_texts(env, f"click[{button}]", "click[< Prev]")[0] == page
    assert step_texts(env, "click[< Prev]")[0] == results
    assert step_texts(env, "click[Back to Search]")[0] == START
    assert env.clickables == []


def test_product_pages_show_description_features_and_reviews() -> None:
    env = start_env()
    head = f"Instruction: [SEP] {INSTRUCTION} [SEP] Back to Search [SEP] < Prev"
    step_texts(env, SEARCH, f"click[{ITEM}]")
    product = shipped_catalogue().by_asin[ITEM]
    assert step_texts(env, "click[description]")[0] == f"{head} [SEP] {product.description}"
    assert env.clickables == ["back to search", "< prev"]
    step_texts(env, "click[< prev]")
    assert step_texts(env, "click[features]")[0] == " [SEP] ".join([head, *product.features])
    assert step_texts(env, "click[< prev]", "click[reviews]")[0] == head


@pytest.mark.parametrize("between", [["click[< Prev]"], [SEARCH], ["click[Features]", "click[Back to Search]", SEARCH]])
def test_leaving_the_product_clears_its_options(between: list[str]) -> None:
    env = start_env()
    step_texts(env, SEARCH, f"click[{ITEM}]", "click[rose]", "click[set of six]")
    assert step_texts(env, *between, f"click[{ITEM}]", "click[Buy Now]")[1:] == (3 / 5, True)


NO_ACTIONS = ["", "dance", "search", "search[]", "search []", "Search[board]", "search[two\nlines]", "click[search]"]
ELSEWHERE = ["click[buy now]", "click[next >]", f"click[{ITEM}]", "click[back to search] click[x]"]


@pytest.mark.parametrize("text", NO_ACTIONS + ELSEWHERE)
def test_invalid_actions_and_absent_elements_show_the_page_again(text: str) -> None:
    for mode in MODES:
        assert step_texts(start_env(mode), text) == (START, 0.0, False)


@pytest.mark.parametrize("words", ["qwertyuiop", "???", " ", "\x00", "\ud800", '"', "*", "-"])
def test_a_search_without_results_shows_a_page(words: str) -> None:
    shown = page_parts(step_texts(start_env(), f"search[{words}]")[0])
    assert shown[2:] == ["Back to Search", "Page 1 (Total results: 0)"]


def test_search_uses_stems_ignores_case_and_has_no_operators() -> None:
    env = start_env()
    expected = step_texts(env, "search[cutting board]")[0]
    for same in ("BOARDS, (cut)", "words:cutting* ^board", '"board" cutting" NEAR(qwertyuiop)'):
        assert step_texts(env, f"search[{same}]")[0] == expected
    assert "Total results: 40" in step_texts(env, "search[turntable NOT blouse]")[0]


def test_compat_parses_actions_like_agentgyms_server() -> None:
    strict, compat = start_env(), start_env("compat")
    assert step_texts(strict, f" {SEARCH}\n") == step_texts(compat, SEARCH) != (START, 0.0, False)
    for text in (f"{SEARCH} and more", f"{SEARCH}\nObservation: [none]"):
        assert step_texts(start_env("compat"), text) == step_texts(compat, SEARCH)
        assert step_texts(start_env(), text)[0] == START
    for text in (f" {SEARCH}", f"Action: {SEARCH}", "search[a [b]]", f"\n{SEARCH}"):
        assert step_texts(start_env("compat"), text)[0] == START
        assert isinstance(compat.parse(text), InvalidAction)
    assert step_texts(start_env(), "search[a [b]]")[0] != START


def test_admissible_actions_are_the_elements_of_the_page() -> None:
    env = start_env()
    assert env.admissible_actions() == [f"search[{INSTRUCTION}]"]
    step_texts(env, SEARCH)
    assert env.admissible_actions()[:3] == ["click[back to search]", "click[next >]", "click[b0kjbx6k2g]"]
    step_texts(env, f"click[{ITEM}]")
    buttons = ["back to search", "< prev", "white", "rose", "single piece", "set of two", "set of four", "set of six"]
    assert env.clickables == [*buttons, "description", "features", "reviews", "buy now"]
    assert env.instruction == INSTRUCTION
    assert not env.has_search_bar


def step_text(env: WebShop, text: str) -> tuple[float, bool]:
    return env.step(Action(text=text))[1:]


def finish(env: WebShop) -> tuple[list[str], float]:
    """Return the oracle's actions, at most the profile's step limit, and the last reward."""
    oracle, actions = env.oracle(0), list[str]()
    reward, done = 0.0, False
    while not done and len(actions) < 15:
        actions.append(oracle.next_action())
        reward, done = step_text(env, actions[-1])
    return actions, reward


@pytest.mark.long
def test_the_oracle_solves_every_task_including_those_on_later_pages() -> None:
    env = WebShop()
    rounds, n_paged = [], 0
    for task_index in range(env.n_tasks):
        env.reset(task_index=task_index)
        actions, reward = finish(env)
        assert reward == 1.0, task_index
        rounds.append(len(actions))
        n_paged += "click[next >]" in actions
    assert (min(rounds), max(rounds)) == (3, 6)
    assert n_paged >= 10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "detour",
    [
        ("search[turntable]", "click[next >]"),
        ("search[turntable]", "click[next >]", "click[back to search]"),
        (SEARCH, "click[next >]", "click[next >]"),
        (SEARCH, "click[b0kjbx6k2g]"),
        (SEARCH, "click[b0kjbx6k2g]", "click[features]"),
        (SEARCH, f"click[{ITEM}]", "click[white]", "click[description]"),
    ],
)
def test_the_oracle_recovers_from_every_detour(detour: tuple[str, ...], mode: Mode) -> None:
    env = start_env(mode)
    for text in detour:
        step_text(env, text)
    assert finish(env)[1] == 1.0
