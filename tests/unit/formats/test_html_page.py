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

TAGS = (
    "html head meta meta meta meta title style body noscript header main section div table thead tr th th th th th "
    "tbody div p div input section nav section footer dialog script script"
)


class ReadPage(HTMLParser):
    """A page as a browser splits it, with nothing but its own parts, which its policy allows by hash."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.started: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[str] = []
        self.feed(content.decode())
        self.close()
        assert " ".join(tag for tag, _ in self.started) == TAGS
        style, data, self.program = self.raw
        assert not {*"<>&"} & {*data}
        hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (self.program, style)]
        allowed = "script-src 'sha256-{}'; style-src 'sha256-{}'".format(*hashes)
        policy = {"http-equiv": "Content-Security-Policy"}
        policy["content"] = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
        given = [attributes for _, attributes in self.started]
        assert given[3] == policy
        assert [each.get("type") for each in given[-2:]] == ["application/json", None]
        assert not {"src", "href", "style", "action", "onload", "onerror"} & {name for each in given for name in each}
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", content.decode())
        self.episodes: list[dict[str, Any]] = json.loads(data)
        assert not any(map(is_unsafe, texts_of(self.episodes)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.started.append((tag, dict(attrs)))
        self.raw += [""] * (tag in ("style", "script"))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem in ("style", "script"):
            self.raw[-1] += data


def texts_of(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_of(each)


def exported(folder: Path) -> ReadPage:
    path, state = folder / "page.html", str(folder / "data")
    path.unlink(missing_ok=True)
    assert main(["export", "--format", "html", "--output", str(path), "--data-dir", state]) == 0
    return ReadPage(path.read_bytes())


def save(store: EpisodeStore, index: EpisodeIndex, *episodes: EpisodeRecord) -> None:
    for episode in episodes:
        store.create_batch_folder(episode.batch_id)
        store.save(episode)
        index.insert_settled(episode)


def test_hostile_text_in_every_field_is_visible_text_and_secrets_are_masked(
    store: EpisodeStore, index: EpisodeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    save(store, index, hostile_episode())
    page = exported(tmp_path)
    assert SECRET not in (tmp_path / "page.html").read_text()
    shown = "␛]0;x␇</script><!--<script>\\u{202e}\\u{2028}&amp;\\u{9b}2J␀ ***"
    (episode,) = page.episodes
    (step,) = episode["steps"]
    assert sum(shown in text for text in texts_of(episode)) == 25
    assert (step["problem"], step["n_warnings"], step["reward"]) == ("not valid", 1, -0.5)
    assert [title.split(" ")[0] for _, title, _ in step["blocks"]] == [
        *("system", "observation", "thought", "assistant", "action", "tool", "answered", "differs", "reply"),
    ]
    assert [title for _, title, _ in episode["end"]] == [f"✗ {shown}", "evaluation"]
    assert step["world"] == [[[shown, "plain", ""], [shown, "red", "solid"]]]
    assert [(span["depth"], span["step"]) for span in episode["spans"]] == [(0, 0), (1, 0)]
    assert json.loads((tmp_path / "page.html.manifest.json").read_bytes())["n_written"] == 1
    markup_or_requests = r"HTML\b|document\.write|eval|Function\(|fetch|XMLHttp|WebSocket|import|http|\.href"
    assert not re.search(markup_or_requests, page.program)


def test_an_imported_episode_has_no_outcome_or_reward(tmp_path: Path) -> None:
    chat = tmp_path / "chat.jsonl"
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "Thought: west\nAction: left"}]
    chat.write_text(json.dumps({"messages": messages}) + "\n")
    assert main(["import", str(chat), "--data-dir", str(tmp_path / "data")]) == 0
    (episode,) = exported(tmp_path).episodes
    facts = dict(episode["facts"])
    assert (episode["outcome"], episode["tone"], episode["reward"]) == ("? unknown, unscored", "dim", None)
    assert facts["imported"] == "from OpenAI messages without times, reward, outcome, task"
    assert "limits" not in facts
    blocks = [["observation", "observation", "go"], ["thought", "thought", "west"], ["action", "action", "left"]]
    assert episode["steps"][0]["blocks"][:3] == blocks


def test_several_episodes_are_on_one_page_until_it_is_full(
    store: EpisodeStore, index: EpisodeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = episode_header(agent="tools", model="m", limits="500 rounds")
    spans = [Span(id=n, parent=n, name="loop", category="", track="", start_ns=n, end_ns=n + 1) for n in range(6_000)]
    steps = [make_step(n, endpoint="e", model="n", tokens=Tokens(5, 2), reward=0.0) for n in range(500)]
    long = msgspec.structs.replace(finished_record(header, make_trajectory(header, steps)), spans=spans)
    header = episode_header()
    save(store, index, long, finished_record(header, make_trajectory(header, [], outcome=Outcome.ERROR, success=False)))
    first, second = exported(tmp_path).episodes
    assert [step["index"] for step in first["steps"]] == list(range(500))
    assert (len(first["spans"]), first["n_spans"]) == (MAX_SPANS, 6_000)
    assert [dict(first["facts"])[name] for name in ("model", "limits", "tokens")] == ["n", "500 rounds", "3,500"]
    assert (second["steps"], second["outcome"]) == ([], "! error")
    monkeypatch.setattr("runner.formats.html_page.page.MAX_PAGE", 1)
    assert len(exported(tmp_path).episodes) == 1
    manifest = json.loads((tmp_path / "page.html.manifest.json").read_bytes())
    assert manifest["left_out"] == {"the page has 0 MiB of episodes already": 1}


MARKUP = st.lists(st.sampled_from([*"<>&/!-\\\"'", "script", "<!--", "\u2028", "\x1b", "\u202e", "a", "\r\n"])).map(
    "".join
)


@given(st.text() | MARKUP, st.lists(JSON_VALUES, max_size=3), JSON_VALUES)
def test_any_text_leaves_the_page_whole(text: str, messages: list[Any], content: Any) -> None:  # noqa: ANN401
    reply = {"role": "assistant", "content": content, "reasoning_content": text}
    action, error = Action(text, [ToolCall("c", text, text)]), ErrorInfo(type=text, message=text, traceback=text)
    step = make_step(0, action=action, chats=[[*messages, reply]], observation=messages, warnings=(text,), world=[text])
    header = episode_header(env=text or "e", agent=text, model=text)
    file = BytesIO()
    writer = PageWriter(file)
    for _ in range(2):
        writer.write(finished_record(header, make_trajectory(header, [step], error_info=error)))
    writer.finish()
    one, other = ReadPage(file.getvalue()).episodes
    assert one == other
    assert len(one["steps"]) == 1
