"""Token ids in exports, and audits whose counts are exact on sequences with planted faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.formats.atif import encode_atif
from runner.formats.chat import MESSAGES
from runner.formats.drafts import build_record
from runner.formats.export import UNREADABLE, export_episodes
from runner.formats.parquet import decode_rows, rows_of
from runner.formats.reading import Place
from runner.formats.selection import Candidate
from runner.formats.training import Audit
from runner.formats.training import audited as audit_of
from runner.formats.verifiers import encode_trace
from runner.store import EpisodeIndex, EpisodeStore
from runner.store.episode_file import EpisodeRecord, shared_fields
from runner.store.token_file import TokenizedEpisode
from runner.types import Action, Outcome, Tokens
from runner.types.sequences import Label, Problem, TokenSequence
from runner.util.safe_values import encode
from tests.support.episodes import RecordedEpisode, episode_header, finished_record, make_step, make_trajectory
from tests.support.examples import examples
from tests.unit.formats.conftest import NOW, chat_of, imported, model_episode, read_all, stored


def sequence(prompt: list[int], completion: list[int], label: Label = "agent", *problems: Problem) -> TokenSequence:
    logprobs = [-0.5] * len(completion) if "no_logprobs" not in problems else []
    if "unequal" in problems:
        logprobs.append(-1.0)
    return TokenSequence(
        label=label, prompt_ids=prompt, completion_ids=completion, logprobs=logprobs, problems=problems, endpoint="e"
    )


def tokenized(
    episode: EpisodeRecord, *sequences: list[TokenSequence], unfinished: list[TokenSequence] | None = None
) -> TokenizedEpisode:
    return TokenizedEpisode(
        **shared_fields(episode, TokenizedEpisode), sequences=[*sequences], unfinished=unfinished or [], lost=""
    )


def plain(value: object) -> Any:  # noqa: ANN401
    return msgspec.json.decode(encode(value))


DISCARDED = sequence([1, 2], [9], "discarded", "incomplete")
LATE = sequence([7], [8], "discarded")


def contiguous() -> TokenizedEpisode:
    first, second = sequence([1, 2], [3, 4]), sequence([1, 2, 3, 4, 5], [6])
    return tokenized(model_episode(), [DISCARDED, first], [second], unfinished=[LATE])


def test_atif_has_the_trained_ids_as_metrics_and_the_others_with_their_labels() -> None:
    trajectory = plain(encode_atif(contiguous()))
    first, second = (step for step in trajectory["steps"] if step["source"] == "agent")
    ids = {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "logprobs": [-0.5, -0.5]}
    assert first["metrics"].items() >= ids.items() and first["metrics"]["completion_tokens"] == 7
    assert second["metrics"] == {"prompt_token_ids": [1, 2, 3, 4, 5], "completion_token_ids": [6], "logprobs": [-0.5]}
    (other,) = first["extra"]["agentgym"]["sequences"]
    assert (other["label"], other["loss_mask"], other["problems"]) == ("discarded", [0, 0, 0], ["incomplete"])
    assert "sequences" not in second["extra"]["agentgym"]
    (late,) = trajectory["extra"]["agentgym"]["unfinished_sequences"]
    assert (late["completion_token_ids"], late["loss_mask"]) == ([8], [0, 0])


def test_the_nodes_of_a_trace_concatenate_to_the_ids_of_the_last_step() -> None:
    trace = plain(encode_trace(contiguous()))
    nodes = trace["nodes"]
    assert [token for node in nodes for token in node.get("token_ids", [])] == [1, 2, 3, 4, 5, 6]
    mask = [trained for node in nodes for trained in node.get("mask", [])]
    assert mask == [False, False, True, True, False, True]
    assert [len(node["logprobs"]) for node in nodes if "logprobs" in node] == [2, 1]
    assert [node["sampled"] for node in nodes if "token_ids" in node] == [True, True]
    info = trace["info"]["agentgym"]
    assert [each["label"] for each in info["sequences"]["0"]] == ["discarded"] and "1" not in info["sequences"]
    assert len(info["unfinished_sequences"]) == 1


def forked() -> TokenizedEpisode:
    """Return three steps of which the second does not continue the first one, e.g. as its thought is removed."""
    episode = model_episode()
    chats = chat_of({"role": "assistant", "content": "Up."})
    third = make_step(2, chats=chats, action=Action("Up."), endpoint="local", reward=0.0)
    episode.timesteps.append(msgspec.convert(msgspec.to_builtins(third), type(episode.timesteps[0])))
    second, third_tokens = sequence([1, 9, 5], [6]), sequence([1, 9, 5, 6, 7], [8])
    return tokenized(episode, [DISCARDED, sequence([1, 2], [3, 4])], [second], [third_tokens], unfinished=[LATE])


def branches(trace: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the nodes of each branch, as verifiers finds them."""
    nodes, found = trace["nodes"], []
    for leaf in sorted(set(range(len(nodes))) - {node["parent"] for node in nodes}):
        path: list[dict[str, Any]] = []
        at: int | None = leaf
        while at is not None:
            path.insert(0, nodes[at])
            at = nodes[at]["parent"]
        found.append(path)
    return found


def test_a_prompt_that_does_not_continue_starts_a_branch_of_what_the_model_received() -> None:
    trace = plain(encode_trace(forked()))
    first, second = branches(trace)
    ids = [[token for node in branch for token in node.get("token_ids", [])] for branch in (first, second)]
    masks = [[trained for node in branch for trained in node.get("mask", [])] for branch in (first, second)]
    assert ids == [[1, 2, 3, 4], [1, 9, 5, 6, 7, 8]]
    assert masks == [[False, False, True, True], [False, False, False, True, False, True]]
    assert [node["message"]["content"] for node in second][:2] == ["You walk through a maze.", "Where am I?"]
    assert [node["message"]["content"] for node in trace["nodes"] if node["sampled"]] == [
        "Go on.",
        "Where am I?",
        "Up.",
    ]
    assert [trace["nodes"][call["node"]]["message"]["content"] for call in trace["calls"]][:2] == [
        "Go on.",
        "Where am I?",
    ]
    assert [each["label"] for each in trace["info"]["agentgym"]["sequences"]["0"]] == ["discarded"]


def test_branches_share_the_messages_with_which_they_begin() -> None:
    episode = thoughtless()
    trace = plain(encode_trace(episode))
    contents = [[node["message"]["content"] for node in branch] for branch in branches(trace)]
    assert contents == [
        ["prompt", "see 0", "think, go 0", "see 1"],
        ["prompt", "see 0", "go 0", "see 1", "think, go 1", "see 2"],
        ["prompt", "see 0", "go 0", "see 1", "go 1", "see 2", "think, go 2", "see 3"],
    ]
    assert len(trace["nodes"]) == 12  # not 18, the sum of the branches
    assert [[node["token_ids"] for node in branch if "token_ids" in node] for branch in branches(trace)] == [
        [[0, 1, 90, 99]],
        [[0, 1, 2, 91, 99]],
        [[0, 1, 2, 3, 92, 99]],
    ]


def test_shared_branches_are_one_episode_again(tmp_path: Path) -> None:
    path, episode = tmp_path / "traces.jsonl", thoughtless()
    path.write_bytes(encode(encode_trace(episode)) + b"\n")
    (found,), _ = read_all(path)
    assert values(found.record) == values(episode)
    texts = [(step.action.text, step.observation[0]["content"]) for step in found.record.timesteps]
    assert texts == [(f"think, go {number}", f"see {number + 1}") for number in range(3)]


def thoughtless() -> TokenizedEpisode:
    """Return three steps of which each receives the replies before without their thoughts."""
    header, steps, sequences, chat = episode_header(), [], [], [{"role": "system", "content": "prompt"}]
    for number in range(3):
        chat = [*chat, {"role": "user", "content": f"see {number}"}]
        reply = {"role": "assistant", "content": f"think, go {number}"}
        seen = [{"role": "user", "content": f"see {number + 1}"}]
        steps.append(
            make_step(
                number, chats=[[*chat, reply]], action=Action(reply["content"]), observation=seen, endpoint="local"
            )
        )
        sequences.append([sequence([0, 1, 2, 3][: number + 2], [90 + number, 99])])
        chat = [*chat, {"role": "assistant", "content": f"go {number}"}]
    record = finished_record(
        header, make_trajectory(header, steps, reset_observation=[{"role": "user", "content": "see 0"}])
    )
    return tokenized(record, *sequences)


def test_a_step_without_log_probabilities_is_in_the_info_and_in_the_next_prompt() -> None:
    unknown = sequence([1, 2], [3], "agent", "no_logprobs")
    trace = plain(encode_trace(tokenized(model_episode(), [unknown], [sequence([1, 2, 3, 4], [6])])))
    (branch,) = branches(trace)
    assert [node["token_ids"] for node in branch if "token_ids" in node] == [[1, 2, 3, 4, 6]]
    assert [node["mask"] for node in branch if "mask" in node] == [[False] * 4 + [True]]
    (described,) = trace["info"]["agentgym"]["sequences"]["0"]
    assert described["loss_mask"] == [0, 0, 1] and "1" not in trace["info"]["agentgym"]["sequences"]


def test_a_fork_without_received_messages_begins_with_its_reply() -> None:
    episode = forked()
    for step in episode.timesteps:
        step.chats = [chat[-1:] for chat in step.chats]
    assert [branch[0]["message"]["role"] for branch in branches(plain(encode_trace(episode)))] == ["user", "assistant"]


def test_the_branches_of_an_own_trace_are_one_episode_again(tmp_path: Path) -> None:
    path, episode = tmp_path / "traces.jsonl", forked()
    path.write_bytes(encode(encode_trace(episode)) + b"\n")
    (found,), malformed = read_all(path)
    record = found.record
    assert not malformed and isinstance(record, TokenizedEpisode)
    assert values(record) == values(episode)
    steps = [(step.action, step.observation, step.reward) for step in record.timesteps]
    assert steps == [(step.action, step.observation, step.reward) for step in episode.timesteps]
    again = [node["token_ids"] for node in plain(encode_trace(record))["nodes"] if "token_ids" in node]
    assert again == [[1, 2, 3, 4], [1, 9, 5, 6], [7, 8]]


def test_a_row_of_parquet_has_ids_mask_and_the_other_sequences() -> None:
    first, second = rows_of(contiguous())
    assert (first["prompt_token_ids"], first["completion_token_ids"]) == ([1, 2], [3, 4])
    assert (first["logprobs"], first["loss_mask"]) == ([-0.5, -0.5], [0, 0, 1, 1])
    assert msgspec.json.decode(first["other_sequences"])[0]["label"] == "discarded"
    assert second["loss_mask"] == [0, 0, 0, 0, 0, 1]
    (late,) = msgspec.json.decode(second["other_sequences"])
    assert (late["label"], late["completion_token_ids"], late["loss_mask"]) == ("discarded", [8], [0, 0])
    assert "loss_mask" not in rows_of(model_episode())[0]


def test_rows_keep_the_calls_of_an_episode_without_a_step() -> None:
    record = finished_record(episode_header(), make_trajectory(episode_header(), []))
    (row,) = rows_of(tokenized(record, unfinished=[LATE]))
    assert msgspec.json.decode(row["other_sequences"])[0]["completion_token_ids"] == [8]


def test_ids_in_rows_are_read_again(tmp_path: Path) -> None:
    episode = contiguous()
    episode.timesteps[0].tokens = Tokens(2, 2)
    place = Place(tmp_path / "episodes.parquet", 1)
    (draft,) = decode_rows(plain(rows_of(episode)), place)
    record = build_record(draft, "Parquet", place, b"0123456789", episode.started_at)
    episode.sequences[-1] += episode.unfinished
    episode.unfinished = []
    assert values(record) == values(episode)


def candidate(task: int, reward: float, *, rated: bool = True) -> Candidate:
    return Candidate("Maze", "", "strict", "react", "m", task, "e", "b", 0, reward, int(rated))


def attempt(outcome: Outcome, *steps: list[TokenSequence]) -> EpisodeRecord:
    header = episode_header(agent="react", model="m")
    played = [make_step(number, endpoint="e") for number in range(len(steps))]
    record = finished_record(header, make_trajectory(header, played, outcome=outcome))
    return tokenized(record, *steps) if any(steps) else record


FAULTS: tuple[Problem, ...] = ("no_logprobs", "unequal", "incomplete", "too_long")
LABELS: tuple[Label, ...] = ("agent", "auxiliary", "discarded")
PROBLEMS = st.lists(st.sampled_from(FAULTS), max_size=2, unique=True)


@st.composite
def sequences(draw: st.DrawFn) -> TokenSequence:
    problems: list[Problem] = list(draw(PROBLEMS))
    if "no_logprobs" in problems and "unequal" in problems:
        problems.remove("unequal")
    n_prompt, n_completion = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return sequence([1] * n_prompt, [2] * n_completion, draw(st.sampled_from(LABELS)), *problems)


ATTEMPTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([0.0, 1.0]),
        st.booleans(),
        st.sampled_from([Outcome.SUCCESS, Outcome.TRUNCATED]),
        st.lists(st.lists(sequences(), max_size=2), max_size=3),
    ),
    max_size=8,
)


def audited(attempts: list[tuple[int, float, bool, Outcome, list[list[TokenSequence]]]]) -> Audit:
    played = (
        (candidate(task, reward, rated=rated), attempt(outcome, *steps))
        for task, reward, rated, outcome, steps in attempts
    )
    return audit_of(played, Counter())


@settings(max_examples=examples(60), deadline=None)
@given(attempts=ATTEMPTS)
def test_the_counts_of_an_audit_are_exact(
    attempts: list[tuple[int, float, bool, Outcome, list[list[TokenSequence]]]],
) -> None:
    audit = audited(attempts)
    steps = [step for *_, steps in attempts for step in steps]
    every = [each for step in steps for each in step]
    agents = [each for each in every if each.label == "agent"]

    def is_trained(each: TokenSequence) -> bool:
        return each.label == "agent" and not {"incomplete", "too_long"} & set(each.problems)

    assert (audit.n_episodes, audit.n_steps) == (len(attempts), len(steps))
    assert audit.n_steps_with_ids == sum(any(each.label == "agent" for each in step) for step in steps)
    assert audit.n_trained_steps == sum(any(map(is_trained, step)) for step in steps)
    assert audit.sequences == Counter(each.label for each in every)
    assert audit.problems == Counter(problem for each in every for problem in each.problems)
    assert audit.n_trained_ids == sum(len(each.completion_ids) for each in every if is_trained(each))
    assert audit.n_prompt_ids + audit.n_completion_ids == sum(len(each.loss_mask) for each in every)
    assert audit.n_drifted == sum(bool({"no_logprobs", "unequal"} & set(each.problems)) for each in agents)
    assert audit.n_incomplete == sum("incomplete" in each.problems for each in every)
    groups = {task: [each for each in attempts if each[0] == task] for task, *_ in attempts}
    trainable = 0
    for attempts_of_task in groups.values():
        rated = [each for each in attempts_of_task if each[2]]
        has_tokens = any(is_trained(each) for *_, steps in rated for step in steps for each in step)
        differ = len({each[1] for each in rated}) > 1
        trainable += has_tokens and differ and any(each[3] is not Outcome.TRUNCATED for each in rated)
    assert (audit.n_groups, audit.n_trainable) == (len(groups), trainable)


def test_an_audit_says_which_share_of_the_groups_would_be_trained() -> None:
    good, bad = [[sequence([1], [2])]], [[sequence([1], [2], "agent", "incomplete")]]
    audit = audited(
        [
            (0, 0.0, True, Outcome.FAILURE, good),
            (0, 1.0, True, Outcome.SUCCESS, bad),
            (1, 1.0, True, Outcome.SUCCESS, good),
            (1, 1.0, True, Outcome.SUCCESS, good),
            (2, 0.0, True, Outcome.TRUNCATED, good),
            (2, 0.5, True, Outcome.TRUNCATED, good),
            (3, 0.0, True, Outcome.FAILURE, bad),
            (3, 1.0, True, Outcome.SUCCESS, [[]]),
        ]
    )
    assert (audit.n_zero_variance, audit.n_all_truncated, audit.n_without_tokens) == (1, 1, 1)
    assert audit.summary == "this export would train 25% of its groups (1 of 4)"
    assert audit.lines()[-1] == audit.summary
    assert "steps with token ids    88% (7 of 8)" in audit.lines()
    assert audit_of([], Counter(x=2)).lines()[-2:] == [
        "left out                2 episodes: x",
        "this export has no group",
    ]


def values(episode: EpisodeRecord) -> list[list[tuple[object, ...]]]:
    """Return the sequences of each step, sorted, then those of no step."""
    assert isinstance(episode, TokenizedEpisode) and episode.lost == ""
    return [
        sorted((each.label, each.prompt_ids, each.completion_ids, each.logprobs, each.problems) for each in step)
        for step in (*episode.sequences, episode.unfinished)
    ]


@pytest.mark.parametrize("encode_episode", [encode_atif, encode_trace])
@pytest.mark.parametrize("continues", [True, False])
def test_ids_survive_an_export_and_an_import(
    store: EpisodeStore,
    index: EpisodeIndex,
    tmp_path: Path,
    encode_episode: Callable[[EpisodeRecord], dict[str, Any]],
    continues: bool,
) -> None:
    original = contiguous()
    original.timesteps[0].tokens = Tokens(2, 2)
    if not continues:
        original.sequences[1] = [sequence([2, 5], [6])]
    path = tmp_path / "exported.json"
    path.write_bytes(encode(encode_episode(original)))
    assert imported(store, index, path).n_imported == 1
    (record,) = stored(store, index)
    assert values(record) == values(original)
    assert [step.tokens_ref for step in record.timesteps] == [0, 1]
    assert b"completion_ids" not in store.path(record.batch_id, record.episode_id).read_bytes()
    if encode_episode is encode_atif:
        assert plain(encode_atif(record))["steps"] == plain(encode_atif(original))["steps"]


def test_an_episode_whose_file_is_gone_by_its_turn_is_counted_as_left_out(
    store: EpisodeStore, index: EpisodeIndex, tmp_path: Path
) -> None:
    recordings = [RecordedEpisode(store, index, task_index=task) for task in range(2)]
    records = [recording.record_episode(1) for recording in recordings]
    chosen = [candidate(0, 1.0)._replace(episode_id=each.episode_id, batch_id=each.batch_id) for each in records]
    recordings[1].file.unlink()
    manifest = export_episodes(store, chosen, Counter(), MESSAGES, tmp_path / "m.jsonl", query="", filters=[], now=NOW)
    assert (manifest.n_written, manifest.left_out) == (1, {UNREADABLE: 1})
