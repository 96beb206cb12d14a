"""Reads job and trial folders of Harbor 0.25: the result of each trial, and the ATIF trajectories of its agent.

Only files at known names below the folder are read, and no link is followed; no path in a file is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from runner.errors import StoreError
from runner.formats.atif import decode_atif
from runner.formats.drafts import Draft, Transcript
from runner.formats.foreign_values import error_of, name_of, number_of, time_of, tokens_of
from runner.formats.format import MAX_NAMES, Format, Head
from runner.formats.reading import Found, Item, Limits, Malformed, Place, read_small
from runner.util.json_accessors import as_dict, as_list, as_text

_RESULT: Final = "result.json"
_USAGE: Final = ("n_input_tokens", "n_output_tokens", "n_cache_tokens", "")


def trial_items(folder: Path, limits: Limits) -> Iterator[Found]:
    trials = [folder] if _is_trial(folder) else filter(_is_trial, _folders(folder, limits.files))
    for number, trial in enumerate(trials, 1):
        place = Place(trial, number, unit="trial")
        try:
            yield Item(place, read_trial(place, limits))
        except StoreError as exc:
            yield Malformed(place, str(exc))


def read_trial(place: Place, limits: Limits) -> bytes:
    """Return result and trajectories of a trial as one JSON object; raises ``StoreError``."""
    result, trajectories = read_small(place.path / _RESULT, limits), list[bytes]()
    n_left = limits.item_bytes - len(result)
    for folder in (place.path, *_folders(place.path / "steps", MAX_NAMES)):
        path = folder / "agent" / "trajectory.json"
        if _is_folder(path.parent) and _is_file(path):
            trajectories.append(read_small(path, limits))
            n_left -= len(trajectories[-1])
            if n_left < 0:
                raise StoreError("its files are too large together")
    return b'{"result":%b,"trajectories":[%b]}' % (result, b",".join(trajectories))


def decode_trial(value: object, place: Place) -> Iterator[Draft]:
    """Further trajectories follow the episode; they are not rated."""
    fields = as_dict(value)
    result = as_dict(fields.get("result"))
    drafts = [draft for each in as_list(fields.get("trajectories")) for draft in decode_atif(each, place)]
    drafts = drafts or [Draft(transcript=Transcript(), missing=["transcript"])]
    yield _with_result(drafts[0], result)
    for draft in drafts[1:]:
        names = {"env": _env(result), "task": as_text(result.get("task_name"))}
        yield msgspec.structs.replace(draft, rated=False, **names)


def _with_result(draft: Draft, result: dict[str, Any]) -> Draft:
    agent, context = as_dict(result.get("agent_info")), as_dict(result.get("agent_result"))
    model, rewards = as_dict(agent.get("model_info")), as_dict(as_dict(result.get("verifier_result")).get("rewards"))
    agent_name, version = name_of(agent.get("name")), name_of(agent.get("version"))
    return msgspec.structs.replace(
        draft,
        id=name_of(result.get("trial_name") or result.get("id")),
        env=_env(result),
        task=as_text(result.get("task_name")),
        agent=agent_name or draft.agent,
        model="/".join(filter(None, map(name_of, (model.get("provider"), model.get("name"))))) or draft.model,
        started_at=time_of(result.get("started_at")) or draft.started_at,
        ended_at=time_of(result.get("finished_at")) or draft.ended_at,
        reward=_reward(rewards),
        has_step_rewards=False,
        tokens=tokens_of(context, *_USAGE) or draft.tokens,
        cost=draft.cost if (cost := number_of(context.get("cost_usd"))) is None else cost,
        error=error_of(result.get("exception_info"), "exception_"),
        evaluation={"rewards": rewards} if rewards else None,
        versions={agent_name: version} if agent_name and version else draft.versions,
    )


def _env(result: dict[str, Any]) -> str:
    return as_text(result.get("source")) or "harbor"


def _reward(rewards: dict[str, Any]) -> float | None:
    """Return the reward named ``reward``, or the only one; None if there are several others."""
    if "reward" in rewards:
        return number_of(rewards["reward"])
    return number_of(next(iter(rewards.values()))) if len(rewards) == 1 else None


def _is_trial(folder: Path) -> bool:
    has_result = _is_folder(folder) and _is_file(folder / _RESULT)
    return has_result and any(_is_folder(folder / name) for name in ("agent", "verifier", "steps"))


def _folders(folder: Path, n_max: int) -> list[Path]:
    """Return the folders in a folder; none of a link."""
    try:
        return sorted(filter(_is_folder, islice(folder.iterdir(), n_max))) if _is_folder(folder) else []
    except OSError:
        return []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def is_harbor(head: Head) -> bool:
    if head.kind != "folder" or not {"config.json", _RESULT} & set(head.names):
        return False
    return _is_trial(head.path) or any(_is_trial(head.path / name) for name in head.names)


FORMAT = Format(
    name="harbor",
    title="Harbor job",
    signature="a folder with `config.json` or `result.json` and trials: folders with `result.json` and `agent` or "
    "`verifier`",
    matches=is_harbor,
    decode=decode_trial,
    items=trial_items,
    read=read_trial,
)
