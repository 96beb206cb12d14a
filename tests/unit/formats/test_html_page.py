"""The page of an episode: one file without a network, in which all of the episode is text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.cli import main
from runner.formats.html_page.page import MAX_SPANS, PageWriter
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeStore
from runner.types import Action, ErrorInfo, Outcome, Span, Tokens, ToolCall
from runner.util.display_text import is_unsafe
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory
from tests.support.hostile_pages import SECRET, hostile_episode
from tests.support.json_values import JSON_VALUES

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "noscript", "header", "main", "section", "div", "table", "p"),
    *("thead", "tbody", "tr", "th", "input", "nav", "footer", "dialog", "script"),
}


class ReadPage(HTMLParser):
    """A page as a browser splits it."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.policy = ""
        self.texts: dict[str, list[str]] = {"style": [], "script": []}
        self._kinds: list[str | None] = []
        self.feed(content.decode())
        self.close()
        assert self._kinds == ["application/json", None]
        self.data: list[dict[str, Any]] = json.loads(self.texts["script"][0])
        self.program = self.texts["script"][1]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag in self.texts:
            self.texts[tag].append("")
        if tag == "script":
            self._kinds.append(dict(attrs).get("type"))
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""

    def handle_data(self, data: str) -> None:
        if self.lasttag in self.texts:
            self.texts[self.lasttag][-1] += data if self.cdata_elem else ""


def read(content: bytes) -> ReadPage:
    """Return a page that has nothing but its own parts, which its policy allows by hash, and nothing unsafe."""
    page = ReadPage(content)
    (style,) = page.texts["style"]
    script_hash, style_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (page.program, style)
    )
    allowed = f"script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'"
    assert page.policy == f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    assert page.tags == TAGS
    assert not page.attributes & {"src", "href", "style", "srcdoc", "action"}
    assert not any(name.startswith("on") for name in page.attributes)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", content.decode())
    return page


def exported(folder: Path, *arguments: str) -> ReadPage:
    path = folder / "page.html"
    assert (
        main(["export", "--format", "html", "--output", str(path), "--data-dir", str(folder / "state"), *arguments])
        == 0
    )
    return read(path.read_bytes())


def save(store: EpisodeStore, index: EpisodeIndex, *episodes: EpisodeRecord) -> None:
    for episode in episodes:
        store.create_batch_folder(episode.batch_id)
        store.save(episode)
        index.insert_settled(episode)


def texts_of(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from texts_of(each)
        case dict():
            yield from texts_of(list(value.values()))


def test_hostile_text_in_every_field_is_visible_text_and_secrets_are_masked(
    store: EpisodeStore, index: EpisodeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    save(store, index, hostile_episode())
    page = exported(tmp_path)
    assert SECRET not in (tmp_path / "page.html").read_text()
    texts = list(texts_of(page.data))
    assert not any(map(is_unsafe, texts))
    shown = "␛]0;x␇</script><!--<script>\\u{202e}\\u{2028}&amp;\\u{9b}2J␀ ***"
    (episode,) = page.data
    (step,) = episode["steps"]
    assert sum(shown in text for text in texts) > 15
    assert (step["problem"], step["n_warnings"], step["reward"]) == ("not valid", 1, -0.5)
    assert [title.split(" ")[0] for _, title, _ in step["blocks"]] == [
        *("system", "observation", "thought", "assistant", "action", "tool", "answered", "differs", "reply"),
    ]
    assert [title for _, title, _ in episode["end"]] == [f"✗ {shown}", "evaluation"]
    assert step["world"] == [[[shown, "plain", ""], [shown, "red", "solid"]]]
    assert [(span["depth"], span["step"]) for span in episode["spans"]] == [(0, 0), (1, 0)]
    assert json.loads((tmp_path / "page.html.manifest.json").read_bytes())["n_written"] == 1


def test_the_program_makes_no_markup_of_text_and_asks_no_server(episode: EpisodeRecord) -> None:
    program = page_of(episode).program
    assert not re.search(r"HTML\b|document\.write|eval|Function\(|fetch|XMLHttp|WebSocket|import|http|\.href", program)
    assert "textContent" in program


def test_an_imported_episode_has_no_outcome_or_reward(tmp_path: Path) -> None:
    chat = tmp_path / "chat.jsonl"
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "Thought: west\nAction: left"}]
    chat.write_text(json.dumps({"messages": messages}) + "\n")
    assert main(["import", str(chat), "--data-dir", str(tmp_path / "state")]) == 0
    (episode,) = exported(tmp_path).data
    facts = dict(episode["facts"])
    assert (episode["outcome"], episode["tone"], episode["reward"]) == ("? unknown, unscored", "dim", None)
    assert facts["imported"] == "from OpenAI messages without times, reward, outcome, task"
    assert "limits" not in facts
    assert [block[:3] for block in episode["steps"][0]["blocks"][:3]] == [
        ["observation", "observation", "go"],
        ["thought", "thought", "west"],
        ["action", "action", "left"],
    ]


def test_several_episodes_are_on_one_page_until_it_is_full(
    store: EpisodeStore, index: EpisodeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = episode_header(agent="tools", model="m", limits="500 rounds")
    spans = [Span(id=n, parent=n, name="loop", category="", track="", start_ns=n, end_ns=n + 1) for n in range(6_000)]
    steps = [make_step(n, endpoint="e", model="n", tokens=Tokens(5, 2), reward=0.0) for n in range(500)]
    long = msgspec.structs.replace(finished_record(header, make_trajectory(header, steps)), spans=spans)
    header = episode_header()
    empty = finished_record(header, make_trajectory(header, [], outcome=Outcome.ERROR, success=False))
    save(store, index, long, empty)
    first, second = exported(tmp_path).data
    assert [step["index"] for step in first["steps"]] == list(range(500))
    assert (len(first["spans"]), first["n_spans"]) == (MAX_SPANS, 6_000)
    assert [dict(first["facts"])[name] for name in ("model", "limits", "tokens")] == ["n", "500 rounds", "3,500"]
    assert (second["steps"], second["outcome"]) == ([], "! error")
    monkeypatch.setattr("runner.formats.html_page.page.MAX_PAGE", 1)
    (tmp_path / "page.html").unlink()
    assert len(exported(tmp_path).data) == 1
    manifest = json.loads((tmp_path / "page.html.manifest.json").read_bytes())
    assert manifest["left_out"] == {"the page has 0 MiB of episodes already": 1}


def page_of(*episodes: EpisodeRecord) -> ReadPage:
    file = BytesIO()
    writer = PageWriter(file)
    for episode in episodes:
        writer.write(episode)
    assert writer.finish() == {}
    return read(file.getvalue())


MARKUP = st.lists(st.sampled_from([*"<>&/!-\\\"'", "script", "<!--", "\u2028", "\x1b", "\u202e", "a", "\r\n"])).map(
    "".join
)


@given(st.text() | MARKUP, st.lists(JSON_VALUES, max_size=3), JSON_VALUES)
def test_any_text_leaves_the_page_whole(text: str, messages: list[Any], content: Any) -> None:  # noqa: ANN401
    reply = {"role": "assistant", "content": content, "reasoning_content": text}
    action, error = Action(text, [ToolCall("c", text, text)]), ErrorInfo(type=text, message=text, traceback=text)
    step = make_step(0, action=action, chats=[[*messages, reply]], observation=messages, warnings=(text,), world=[text])
    header = episode_header(env=text or "e", agent=text, model=text)
    episode = finished_record(header, make_trajectory(header, [step], error_info=error))
    (data,) = page_of(episode).data
    assert data == page_of(episode).data[0]
    assert not any(map(is_unsafe, texts_of(data)))
    assert len(data["steps"]) == 1
