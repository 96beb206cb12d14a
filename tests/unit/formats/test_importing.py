"""Imports: episode files, one batch, the report, and what is done with damaged and hostile files."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.cli import main
from runner.formats.chat import encode_messages, encode_sharegpt
from runner.formats.format import first_object, recognise
from runner.formats.reading import Item, Limits, Malformed, json_items, read_place
from runner.publish.outbox import LOCAL, Outbox
from runner.results.summary import summarize_results
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeStore, open_index
from runner.util.safe_values import encode
from tests.fuzz.targets import foreign_file
from tests.support.episodes import newest_rows
from tests.support.json_values import JSON_VALUES
from tests.unit.formats.conftest import FILES, imported, read_all, stored

REPLY = {"role": "assistant", "content": "left"}


def line(text: str, **fields: Any) -> bytes:  # noqa: ANN401
    return json.dumps({"messages": [{"role": "user", "content": text}, REPLY], **fields}).encode() + b"\n"


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(line("a", success=True, reward=1.0) + b'{"messages": [\n' + line("b") + b"\n[]\n")
    return path


def test_an_import_is_one_batch_that_results_rate(chats: Path, store: EpisodeStore, index: EpisodeIndex) -> None:
    report = imported(store, index, chats)
    assert (report.n_imported, report.n_known, report.n_malformed) == (2, 0, 2)
    assert [(loss.unit, loss.number) for loss in report.malformed] == [("line", 2), ("line", 5)]
    assert report.formats == {"OpenAI messages": 1}
    assert report.missing["reward"] == 1
    assert {record.batch_id for record in stored(store, index)} == {report.batch_id}
    (row,) = summarize_results(index)
    assert row.model is None and not row.baseline
    assert (row.env, row.n, row.n_rated, row.n_success) == ("chats", 2, 1, 1)
    assert row.outcomes == {"success": 1, "unknown": 1}


def test_a_file_is_imported_once_and_its_new_lines_join_its_batch(
    chats: Path, store: EpisodeStore, index: EpisodeIndex
) -> None:
    first = imported(store, index, chats)
    again = imported(store, index, chats)
    assert (again.n_imported, again.n_known, again.batch_id) == (0, 2, None)
    chats.rename(chats.with_name("renamed.jsonl"))
    with chats.with_name("renamed.jsonl").open("ab") as file:
        file.write(line("c"))
    grown = imported(store, index, chats.with_name("renamed.jsonl"))
    assert (grown.n_imported, grown.n_known, grown.batch_id) == (1, 2, first.batch_id)


def test_attempts_that_went_the_same_way_are_episodes_of_their_own(
    chats: Path, store: EpisodeStore, index: EpisodeIndex
) -> None:
    chats.write_text('{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n' * 3)
    assert imported(store, index, chats).n_imported == 3
    assert {record.attempt for record in stored(store, index)} == {0, 1, 2}
    assert imported(store, index, chats).n_known == 3


def test_no_event_of_an_imported_episode_waits(chats: Path, store: EpisodeStore, index: EpisodeIndex) -> None:
    imported(store, index, chats)
    with closing(Outbox(index)) as outbox:
        assert outbox.n_pending([LOCAL]) == 0
    index.close()
    (store.data_dir / "index.sqlite").unlink()
    with closing(open_index(store)) as rebuilt, closing(Outbox(rebuilt)) as outbox:
        assert len(newest_rows(rebuilt)) == 2
        assert outbox.n_pending([LOCAL]) == 0


def test_messages_and_sharegpt_are_read_again(episode: EpisodeRecord, tmp_path: Path) -> None:
    for encode_line, name in ((encode_messages, "m.jsonl"), (encode_sharegpt, "s.jsonl")):
        path = tmp_path / name
        path.write_bytes(encode(encode_line(episode)) + b"\n")
        (found,), _ = read_all(path)
        record = found.record
        assert (record.env, record.task_index, record.outcome, record.reward) == ("Maze", 17, "success", -0.5)
        assert (
            encode_line(record)["conversations" if name == "s.jsonl" else "messages"][:2]
            == [{"from": "system", "value": "You walk through a maze."}, {"from": "human", "value": "observation 0"}]
            or name == "m.jsonl"
        )
        assert record.timesteps[1].observation == [{"role": "user", "content": "not an action"}]
    (found,), _ = read_all(tmp_path / "m.jsonl")
    assert encode_messages(found.record)["messages"] == encode_messages(episode)["messages"]


@pytest.mark.parametrize("limits", [Limits(item_bytes=100), Limits(item_values=12)])
def test_an_item_beyond_a_limit_costs_only_itself(limits: Limits, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(line("x" * 200 + ",,,,") + b'{"messages":[{"role":"user","content":"a"}]}\n')
    items = list(json_items(path, limits))
    assert len(items) == 2
    found, malformed = read_all(path, limits)
    assert [each.place.number for each in malformed] == [1]
    assert [each.place.number for each in found] == [2]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 20])
def test_elements_of_an_array_are_split_wherever_a_part_ends(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.formats.reading._CHUNK_BYTES", chunk)
    values = [{"a": 'b"]}\\', "c": [{"d": "\\\\"}]}, {"e": "\u00e9\u2028"}, [1, [2]], {}]
    path = tmp_path / "array.json"
    path.write_bytes(json.dumps(values, indent=chunk % 3).encode())
    items = list(json_items(path))
    assert [json.loads(item.data) for item in items if isinstance(item, Item)] == values
    assert [read_place(item.place) for item in items] == [item.data for item in items if isinstance(item, Item)]
    assert [item.place.number for item in items] == [1, 2, 3, 4]


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ('[1, {"a": 2}, "x]\\"", null,[3], true]', "m i m m i m"),
        ('[ "a" , -1.5e3 ]\n', "m m"),
        ('[{"a": ","}] \n [{"b": 1}]', "i m"),
        ("[{}, 5", "i m m"),
        ("[]", ""),
    ],
)
def test_every_element_that_is_no_object_is_counted(
    text: str, kinds: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.formats.reading._CHUNK_BYTES", chunk)
    path = tmp_path / "array.json"
    path.write_text(text)
    items = list(json_items(path))
    assert ["i" if isinstance(item, Item) else "m" for item in items] == kinds.split()
    assert [item.place.number for item in items] == list(range(1, len(items) + 1))


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf\n"])
def test_documents_one_after_another_are_read_each(
    start: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [{"messages": [{"role": "user", "content": f'{n} }}\n{{ "'}, REPLY]} for n in range(3)]
    path = tmp_path / "pretty.jsonl"
    path.write_bytes(start + "\n".join(json.dumps(value, indent=1) for value in values).encode())
    for size in (1, 2, 3, 7, 1 << 20):
        monkeypatch.setattr("runner.formats.reading._CHUNK_BYTES", size)
        found, malformed = read_all(path)
        assert [each.record.reset_observation for each in found] == [[value["messages"][0]] for value in values]
        assert [(each.place.unit, each.place.number) for each in found] == [("document", n) for n in (1, 2, 3)]
        assert [json.loads(read_place(each.place)) for each in found] == values
        assert not malformed


@pytest.mark.parametrize("rest", ['{\n "messages": [', "}\n"])
def test_a_document_without_an_end_costs_only_itself(rest: str, tmp_path: Path) -> None:
    path = tmp_path / "pretty.jsonl"
    path.write_text(f"{json.dumps({'messages': [REPLY]}, indent=1)}\n" * 2 + rest)
    found, malformed = read_all(path)
    assert len(found) == 2
    assert [(each.place.unit, each.place.number) for each in malformed] == [("document", 3)]
    assert "document" in malformed[0].reason


def test_an_array_without_an_end_keeps_its_complete_elements(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(b'[{"a": 1}, {"b": "')
    complete, cut = json_items(path)
    assert isinstance(complete, Item)
    assert isinstance(cut, Malformed)
    assert "no end" in cut.reason


@pytest.mark.parametrize("torn", [b'{"torn', b'{"messages":[{"role":"us', b'"}]}', b"\xff\x00", b"{}"])
def test_a_malformed_first_line_costs_only_itself(
    store: EpisodeStore, index: EpisodeIndex, tmp_path: Path, torn: bytes
) -> None:
    line = b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n'
    path = tmp_path / "rotated.jsonl"
    path.write_bytes(torn + b"\n" + line)
    report = imported(store, index, path)
    assert (report.n_imported, report.n_malformed, report.formats) == (1, 1, {"OpenAI messages": 1})


@pytest.mark.parametrize("n", range(1, 90, 7))
def test_the_first_object_is_known_as_far_as_it_is_read(n: int) -> None:
    whole = json.dumps({"schema_version": "ATIF-v1.7", "steps": [{"a": "\u00e9\\"}, 1.5, None, True]}).encode()
    known = first_object(whole[:n])
    assert all(any(name.startswith(key) for name in ("schema_version", "steps")) for key in known)
    if n > 40:
        assert known["schema_version"] == "ATIF-v1.7"


def test_links_and_special_files_are_not_read(tmp_path: Path, store: EpisodeStore, index: EpisodeIndex) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(line("secret"))
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.jsonl")
    report = imported(store, index, folder)
    assert (report.n_imported, report.n_malformed) == (0, 0)
    assert recognise(folder / "link.jsonl") is None


def test_a_folder_is_searched_and_other_files_are_counted(
    tmp_path: Path, store: EpisodeStore, index: EpisodeIndex
) -> None:
    (tmp_path / "in" / "b").mkdir(parents=True)
    (tmp_path / "in" / "notes.md").write_text("no episodes")
    (tmp_path / "in" / "b" / "chats.jsonl").write_bytes(line("a"))
    (tmp_path / "in" / "a.json").write_bytes((FILES / "atif_v17.json").read_bytes())
    report = imported(store, index, tmp_path / "in")
    assert report.n_imported == 3
    assert report.formats == {"ATIF v1.8": 1, "OpenAI messages": 1}
    assert report.unrecognised == [str(tmp_path / "in" / "notes.md")]


def test_the_command_reports_what_it_did(chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--data-dir", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    assert main(["import", str(chats), *folder]) == 1
    shown = capsys.readouterr().err
    assert "2 episodes of OpenAI messages imported as batch" in shown
    assert "line 2: it is no JSON" in shown
    assert main(["import", str(chats), "--json", *folder]) == 1
    assert json.loads(capsys.readouterr().out)["n_known"] == 2
    (tmp_path / "plain.txt").write_text("nothing")
    assert main(["import", str(tmp_path / "plain.txt"), *folder]) == 2
    assert "none of the known formats" in capsys.readouterr().err


@given(
    st.binary(max_size=300) | JSON_VALUES.map(encode) | st.lists(JSON_VALUES.map(encode), max_size=3).map(b"\n".join)
)
def test_any_file_is_read_within_the_limits(data: bytes) -> None:
    foreign_file.check(data)


def test_an_import_creates_its_state_directory(chats: Path, tmp_path: Path) -> None:
    new = tmp_path / "new" / "data"
    assert main(["import", str(chats), "--data-dir", str(new)]) == 1  # of the malformed lines
    assert len(list(new.glob("runs/*/*.json"))) == 2
