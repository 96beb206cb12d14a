"""Finished means on the disk, once, and equal to what the environment's server recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.history.history import Game, History, StoredEpisode
from tests.history.promises.batches import instance_of
from tests.history.records import AnyRecord, Step
from tests.history.violation import Violation

PLAYED_ON = frozenset({"success", "failure", "truncated"})
"""Outcomes of episodes whose every step was answered."""
REFUSED_HERE = "Invalid action. Expected "
"""Start of the observation of an action that the runner does not send to the server."""
CAUSE_S = 60.0
"""Seconds before the end of an episode in which the fault that ended it was in progress."""
TIMER_S = 0.05
PLAYERS = ("node", "worker", "fork_server")
JOURNAL_GRACE_S = 1.0
"""Seconds before a step in which a full disk may have ended the journal."""


def check_finished(history: History) -> Iterator[Violation]:
    """Files are written once and stay; each holds the game that the server recorded, and no game is lost."""
    for stored in history.stored:
        yield from _check_versions(stored)
        if stored.document is not None:
            yield from _check_sums(stored, stored.document)
            yield from _check_outcome(stored, stored.document)
            yield from _check_cause(history, stored, stored.document)
    yield from _check_ids(history)
    unclaimed = {instance: list(games) for instance, games in history.games.items()}
    for stored in sorted(history.stored, key=lambda stored: stored.seen_at):
        if stored.document is not None:
            yield from _check_game(history, stored, stored.document, unclaimed)
    for games in unclaimed.values():
        yield from (_lost(game) for game in games if game.steps and not _disk_was_full(history, game))
    if (journals := history.journals) and not history.faults_between(history.end.at, history.end.at):
        text = f"{len(journals)} journals were left although the node was started and stopped, first {journals[0].path}"
        yield Violation("finished", text, tuple(journals))


def _check_versions(stored: StoredEpisode) -> Iterator[Violation]:
    first, evidence = stored.versions[0], tuple(stored.versions)
    if (unreadable := next((v for v in stored.versions if v.sha256 and v.document is None), None)) is not None:
        yield Violation("finished", f"{stored.path} cannot be decoded", (unreadable,))
    if stored.versions[-1].sha256 is None:
        yield Violation("finished", f"{stored.path} disappeared", evidence)
    elif any(version.sha256 != first.sha256 for version in stored.versions):
        yield Violation("finished", f"{stored.path} was altered after it had been written", evidence)


def _check_ids(history: History) -> Iterator[Violation]:
    ids = Counter(stored.document["episode_id"] for stored in history.stored if stored.document)
    for episode_id, n_files in ids.items():
        if n_files > 1:
            yield Violation("finished", f"episode {episode_id} is in {n_files} files")


def _check_sums(stored: StoredEpisode, document: dict[str, Any]) -> Iterator[Violation]:
    steps, episode_id = document["timesteps"], document["episode_id"]
    if [step["index"] for step in steps] != list(range(len(steps))):
        yield Violation("finished", f"the timesteps of episode {episode_id} have gaps", (stored.versions[-1],))
    if document["rounds"] != len(steps) or abs(document["reward"] - sum(step["reward"] for step in steps)) > 1e-9:
        text = f"reward {document['reward']} and rounds {document['rounds']} of episode {episode_id} are not those of "
        yield Violation("finished", f"{text}its {len(steps)} timesteps", (stored.versions[-1],))


def _check_outcome(stored: StoredEpisode, document: dict[str, Any]) -> Iterator[Violation]:
    """An episode is a success if and only if its last step ended it with a reward: so are the recorded environments."""
    is_solved = bool(document["timesteps"]) and document["timesteps"][-1]["done"] and document["reward"] > 0
    if document["outcome"] in PLAYED_ON and (document["outcome"] == "success") is not is_solved:
        text = f"episode {document['episode_id']} is a {document['outcome']} with reward {document['reward']}"
        yield Violation("finished", text, (stored.versions[-1],))
    if document["success"] is not (document["outcome"] == "success"):
        text = f"episode {document['episode_id']} has outcome {document['outcome']} and success {document['success']}"
        yield Violation("finished", text, (stored.versions[-1],))


def _check_cause(history: History, stored: StoredEpisode, document: dict[str, Any]) -> Iterator[Violation]:
    """An episode ends early only for a reason: a fault, a request, or its limit of time."""
    episode_id, outcome = document["episode_id"], document["outcome"]
    if outcome == "error" and not document["error"]:
        yield Violation("finished", f"episode {episode_id} is an error without a cause", (stored.versions[-1],))
    if outcome in ("error", "interrupted", "timeout", "cancelled") and not _has_cause(history, stored, document):
        text = f"episode {episode_id} is {outcome}, and nothing happened that explains it"
        yield Violation("finished", text, (stored.versions[-1],))


def _has_cause(history: History, stored: StoredEpisode, document: dict[str, Any]) -> bool:
    if document["outcome"] == "cancelled":
        return document["episode_id"] in history.cancelled_episodes or history.is_cancelled(document["batch_id"])
    batch = history.batches.get(document["batch_id"])
    if document["outcome"] == "timeout" and batch is not None:
        limit_s: float = batch.accepted.args.get("max_duration_sec", 0.0)
        return bool(document["duration_s"] >= limit_s - TIMER_S)
    servers = (name for name, env in history.begin.servers.items() if env == document["env"])
    targets = (*PLAYERS, "own_broker", "disk", *servers)
    return bool(history.faults_between(stored.seen_at - CAUSE_S, stored.seen_at, *targets))


def _check_game(
    history: History, stored: StoredEpisode, document: dict[str, Any], unclaimed: dict[str, list[Game]]
) -> Iterator[Violation]:
    if not (instance := instance_of(document)):
        if document["transport"] == "http" and document["timesteps"]:
            text = f"episode {document['episode_id']} was played on a server and has no instance"
            yield Violation("finished", text, (stored.versions[-1],))
        return
    task = _task_of(document)
    games = [game for game in unclaimed.get(instance, []) if game.reset.task_index == task]
    differences = [(game, _difference(history, document, game)) for game in games]
    game, difference = next(((g, d) for g, d in differences if not d), differences[0] if differences else (None, ""))
    if game is None:
        text = f"episode {document['episode_id']} is stored, and its server has no further game of task {task} in "
        yield Violation("finished", f"{text}instance {instance}", (stored.versions[-1],))
        return
    unclaimed[instance].remove(game)
    if difference:
        text = f"episode {document['episode_id']} ({document['outcome']}) differs from its server: {difference}"
        yield Violation("finished", text, _evidence(stored, game))


def _difference(history: History, document: dict[str, Any], game: Game) -> str:
    """Return how a file differs from the server's record of the game; "" if it does not."""
    steps = [step for step in document["timesteps"] if not _text(step["observation"]).startswith(REFUSED_HERE)]
    if document["reset_observation"] and not _same_text(_text(document["reset_observation"]), game.reset.observation):
        return "the observation of the reset"
    for number, (stored, played) in enumerate(zip(steps, game.steps, strict=False)):
        if difference := _step_difference(stored, played):
            return f"step {number}: {difference}"
    n_more = len(game.steps) - len(steps)
    n_allowed = 0 if document["outcome"] in PLAYED_ON else 1  # the answer of the last step may have been lost
    if document["outcome"] == "interrupted" and _disk_was_full(history, game):
        n_allowed = len(game.steps)
    if not 0 <= n_more <= n_allowed:
        return f"{len(steps)} steps of {len(game.steps)}"
    return ""


def _step_difference(stored: dict[str, Any], played: Step) -> str:
    text = stored["action"]["text"]
    if text is not None and not stored["action"]["tool_calls"] and text.strip() != played.action.strip():
        return f"action {text!r} instead of {played.action!r}"
    if not _same_text(_text(stored["observation"]), played.observation):
        return "the observation"
    if stored["reward"] != played.reward:
        return f"reward {stored['reward']} instead of {played.reward}"
    if stored["done"] != (played.done or played.truncated):
        return f"done {stored['done']} instead of {played.done}"
    return ""


def _same_text(stored: str, played: str) -> bool:
    """Whether a stored observation is the server's, to which the runner may add a line of actions."""
    return stored == played or stored.startswith(played + "\n")


def _text(chat: list[dict[str, Any]]) -> str:
    return str(chat[-1]["content"]) if chat else ""


def _task_of(document: dict[str, Any]) -> int:
    """Return the task as the server numbers it, which is part of ``env_episode_id``: ``<env>-<task>@<instance>``."""
    return int(document["env_episode_id"].rpartition("@")[0].rpartition("-")[2])


def _disk_was_full(history: History, game: Game) -> bool:
    """Return whether there may have been no room for the journal of a game, which the death of the node then loses."""
    return bool(
        history.faults_between(game.reset.at - JOURNAL_GRACE_S, game.ended_at + JOURNAL_GRACE_S, kind="disk_full")
    )


def _lost(game: Game) -> Violation:
    reset = game.reset
    text = f"{reset.server} played {len(game.steps)} steps of task {reset.task_index} in instance {reset.instance}"
    return Violation("finished", f"{text}, and no file has them", (reset, *game.steps[-1:]))


def _evidence(stored: StoredEpisode, game: Game) -> tuple[AnyRecord, ...]:
    return stored.versions[-1], game.reset, *game.steps[-2:]
