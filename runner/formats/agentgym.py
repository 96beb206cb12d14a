"""AgentGym's own formats: AgentTraj for supervised training, and the rollout log of AgentGym-RL.

Sources: the data set AgentTraj-L and the inference output of AgentGym, whose items have a reward, too; the output of
its evaluator, with roles and a success of 0 or 1; ``verl/agent_trainer`` of AgentGym-RL. The outcome is our own field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from runner.formats.conversation import read_spoken
from runner.formats.drafts import Draft, Transcript, add_spoken, labelled_draft, named_task, result_fields
from runner.formats.foreign_values import int_of, name_of
from runner.formats.format import Format, LeftOut
from runner.formats.reading import Place
from runner.store.episode_file import EpisodeRecord
from runner.types import AGENTGYM_NAMES, agentgym_item_id
from runner.util.json_accessors import as_dict, as_list, as_text

ACKNOWLEDGEMENT = "Ok."
"""Reply of every agent of AgentGym to its prompt."""
_ENVS = {name: env for env, name in AGENTGYM_NAMES.items()}
THRESHOLDS = {"sciworld": 99.0, "babyai": 0.0}
"""Reward above which AgentEvol counts an episode of an environment as a success; in the others above 0.99."""
_TRIAL = "trial_T"
"""Part of the names of ALFWorld's trials, which end in a time."""
_ITEM_ID = re.compile(r"(?P<env>.+)_(?P<task>[0-9]{1,9})", re.ASCII | re.DOTALL)


def encode_agenttraj(episode: EpisodeRecord) -> dict[str, Any]:
    """Return an item of AgentTraj; ``loss`` is true for the replies that are valid actions.

    Raises ``LeftOut`` if AgentGym's filter of items does not know the environment, and fails.
    """
    items = [
        {"from": speaker, "loss": trained if speaker == "gpt" else None, "value": text}
        for speaker, text, trained in _exchanges(episode)
    ]
    if (item_id := agentgym_item_id(episode.env, episode.task_index)) is None:
        raise LeftOut("AgentGym's filter does not know its environment")
    return {"item_id": item_id, "conversations": items, **result_fields(episode)}


def encode_rollout(episode: EpisodeRecord) -> dict[str, Any]:
    """Return an item of a rollout log: its id is a number, and its score is the reward of the last step, if known."""
    roles = {"human": "user", "gpt": "assistant"}
    items = [{"role": roles[speaker], "content": text} for speaker, text, _ in _exchanges(episode)]
    result = result_fields(episode)
    if "reward" in result:
        result["reward"] = episode.timesteps[-1].reward
    return {"item_id": episode.task_index, "conversations": items, **result}


def _exchanges(episode: EpisodeRecord) -> list[tuple[str, str, bool]]:
    """Return speaker, text, and whether the text is trained on; the speakers alternate."""
    spoken = read_spoken(episode)
    exchanges = [("human", spoken.system or "", False), ("gpt", ACKNOWLEDGEMENT, False)]
    for observation, reply, is_valid in spoken.turns:
        exchanges += [("human", observation, False), ("gpt", reply, is_valid)]
    return [*exchanges, ("human", spoken.last, False)]


def decode_agenttraj(value: object, place: Place) -> Iterator[Draft]:
    """Yield the episode of an item of AgentTraj; it succeeded if its reward is above the threshold of AgentEvol."""
    fields = as_dict(value)
    yield _draft(fields, _transcript(fields, "from", "value"))


def _draft(fields: dict[str, Any], transcript: Transcript) -> Draft:
    """Return the draft of an item with an id such as ``babyai_17``, or the name of a trial of ALFWorld."""
    item, draft = as_text(fields.get("item_id")), labelled_draft(fields, transcript)
    env, task = item_of(item)
    if _TRIAL in item:
        task = named_task(item)
    success = draft.success
    if success is None and draft.outcome is None and draft.reward is not None:
        success = draft.reward > THRESHOLDS.get(env.lower(), 0.99)
    return msgspec.structs.replace(draft, id=name_of(item), env=env, task=task, success=success)


def item_of(item: str) -> tuple[str, int | str]:
    """Return the environment and the task of an id of AgentGym: a number, or a text where there is none.

    ``lmrlgym_wordle_3`` is task 3 of Wordle. The environment is "" where the id names none.
    """
    if _TRIAL in item:
        return "ALFWorld", item
    match = _ITEM_ID.fullmatch(item)
    return (_env_of(match["env"]), int(match["task"])) if match else ("", item)


def _env_of(name: str) -> str:
    from runner.envs.http.dialects import dialect_for  # slow to import

    if (known := _ENVS.get(name.lower())) is not None:
        return known
    dialect = dialect_for(name)
    return name if dialect is None else dialect.name


def decode_rollout(value: object, place: Place) -> Iterator[Draft]:
    """Yield the episode of an item of a rollout log, or of the output of AgentGym's evaluator, whose ids are texts.

    Its reward is that of the last step.
    """
    fields = as_dict(value)
    index = fields.get("item_id")
    transcript = _transcript(fields, "role", "content")
    if isinstance(index, str):
        yield _draft(fields, transcript)
        return
    yield msgspec.structs.replace(
        labelled_draft(fields, transcript),
        id=str(index)[:20],
        env="agentgym-rl",
        task=int_of(index),
        missing=["environment", "rewards of the steps before the last"],
    )


def _transcript(fields: dict[str, Any], speaker: str, content: str) -> Transcript:
    items = [as_dict(item) for item in as_list(fields.get("conversations"))]
    transcript = Transcript()
    reply = items[1] if len(items) > 1 else {}  # to the prompt; not trained on
    is_known = reply.get("loss") is False or as_text(reply.get(content))[:3].lower() in ("ok", "ok.", "ok,")
    if reply.get(speaker) in ("gpt", "assistant") and is_known:
        if prompt := as_text(items[0].get(content)):
            transcript.add({"role": "system", "content": prompt})
        items = items[2:]
    add_spoken(transcript, items, speaker, content)
    return transcript


AGENTTRAJ = Format(
    name="agenttraj",
    title="AgentTraj",
    suffix=".json",
    encode=encode_agenttraj,
    signature="objects with `item_id` and `conversations`, whose items have `from`",
    matches=lambda head: head.has("item_id") and head.lists("conversations", "from"),
    decode=decode_agenttraj,
)
AGENTGYM_RL = Format(
    name="agentgym-rl",
    title="AgentGym-RL rollout log",
    file="step0/0.json",  # of training step 0 and rank 0
    encode=encode_rollout,
    signature="objects with `item_id` and `conversations`, whose items have `role`",
    matches=lambda head: head.has("item_id") and head.lists("conversations", "role"),
    decode=decode_rollout,
)
