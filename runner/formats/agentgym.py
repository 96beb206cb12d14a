"""AgentGym's own formats: AgentTraj for supervised training, and the rollout log of AgentGym-RL.

Sources: the data set AgentTraj-L and the inference output of AgentGym, whose items have a reward, too; and
``verl/agent_trainer`` of AgentGym-RL, which logs the rollouts of each training step per rank. Both begin with the
prompt and the reply ``Ok.``, which is not trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.formats.conversation import command_renderer, read_conversation, reply_text, require_steps, text_of
from runner.formats.format import NOTHING_LEFT_OUT, Format
from runner.formats.output import Output
from runner.formats.writers import ArrayEncoder, ArrayWriter
from runner.store.episode_file import EpisodeRecord

ACKNOWLEDGEMENT = "Ok."
"""Reply of every agent of AgentGym to its prompt."""
ROLLOUTS_PATH = "step0/0.json"
"""Path of the only file of a rollout log: training step 0, rank 0."""


def encode_agenttraj(episode: EpisodeRecord) -> dict[str, Any]:
    """Return an item of AgentTraj; ``loss`` is true for the replies that are valid actions."""
    items = []
    for speaker, text, trained in _exchanges(episode):
        loss = trained if speaker == "gpt" else None
        items.append({"from": speaker, "loss": loss, "value": text})
    return {"item_id": item_id(episode), "conversations": items, "reward": episode.reward}


def encode_rollout(episode: EpisodeRecord) -> dict[str, Any]:
    """Return an item of a rollout log: its id is a number, and its score is the reward of the last step."""
    roles = {"human": "user", "gpt": "assistant"}
    items = [{"role": roles[speaker], "content": text} for speaker, text, _ in _exchanges(episode)]
    return {"item_id": episode.task_index, "conversations": items, "reward": episode.timesteps[-1].reward}


def item_id(episode: EpisodeRecord) -> str:
    """Return the id of a task as AgentGym writes it, e.g. ``babyai_17``."""
    return f"{episode.env.lower()}_{episode.task_index}"


def _exchanges(episode: EpisodeRecord) -> list[tuple[str, str, bool]]:
    """Return speaker, text, and whether the text is trained on; the speakers alternate."""
    require_steps(episode)
    conversation, render = read_conversation(episode), command_renderer(episode.env)
    exchanges = [("human", conversation.system or "", False), ("gpt", ACKNOWLEDGEMENT, False)]
    observation = text_of(conversation.opening)
    for turn in conversation.turns:
        exchanges += [("human", observation, False), ("gpt", reply_text(turn, render), turn.step.valid)]
        observation = text_of(turn.observation)
    return [*exchanges, ("human", observation, False)]


class RolloutWriter:
    """Writes all episodes as the rollouts of one training step."""

    def __init__(self, output: Output) -> None:
        """Open the only file."""
        self._array = ArrayEncoder(output.create(ROLLOUTS_PATH))

    def write(self, episode: EpisodeRecord) -> None:
        """Write an item."""
        self._array.write(encode_rollout(episode))

    def finish(self) -> Mapping[str, int]:
        """Close the array."""
        self._array.finish()
        return NOTHING_LEFT_OUT


AGENTTRAJ = Format(
    name="agenttraj",
    title="AgentTraj",
    suffix=".json",
    open_writer=lambda output: ArrayWriter(output, encode_agenttraj),
)
AGENTGYM_RL = Format(name="agentgym-rl", title="AgentGym-RL rollout log", open_writer=RolloutWriter)
