"""The whole episode as one transcript: the blocks of all steps in their order, some kinds folded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from agentgym_tui.presenters.chat_blocks import Block, BlockKind
from agentgym_tui.presenters.number_format import format_reward, pluralize
from agentgym_tui.presenters.transcript import step_blocks
from agentgym_tui.state.episode import Episode, StepState
from runner.types.notes import Note

FOLDS: Final[dict[str, tuple[BlockKind, ...]]] = {
    "system": ("system",),
    "observations": ("observation", "reply", "result", "user", "notification", "failed"),
    "thoughts": ("thought",),
    "tool calls": ("tool",),
    "answers": ("action", "streaming"),
    "notes": ("note", "warning"),
}
"""Kinds of blocks that can be folded together, by name."""


Jump: TypeAlias = Literal["step", "reward", "error", "invalid"]
JUMPS: Final[dict[Jump, str]] = {
    "step": "step",
    "reward": "step with another reward",
    "error": "step with an error",
    "invalid": "step with an action that is not valid or was refused",
}
"""What a key can jump to, in words."""


class WholeEpisode(NamedTuple):
    """The blocks of an episode.

    Attributes:
        blocks: the blocks of all steps, each step after a block with its heading.
        starts: number of the block with the heading of a step, by index of the step.
        kinds: kinds of all blocks, also of hidden ones.
    """

    blocks: list[Block]
    starts: dict[int, int]
    kinds: set[BlockKind]

    def step_of(self, block: int) -> int | None:
        """Return the index of the step that a block belongs to; None where there is no step."""
        return next((step for step, start in reversed(self.starts.items()) if start <= block), None)


class StepBlocks:
    """Makes the blocks of an episode; those of steps that it has seen before are kept."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StepState, list[Block]]] = {}
        self._notes: Sequence[Note] = ()

    def blocks(
        self,
        episode: Episode,
        folded: Collection[str] = (),
        hidden: Collection[str] = (),
        n_steps: int | None = None,
    ) -> WholeEpisode:
        """Return the blocks of an episode.

        Args:
            episode: the episode.
            folded: names of ``FOLDS``; the blocks of these kinds are only headings.
            hidden: names of ``FOLDS``; the blocks of these kinds are left out.
            n_steps: number of the steps to show, from the first one on; None for all.
        """
        if episode.notes is not self._notes:
            self._notes = episode.notes
            self._known.clear()
        kinds, left_out = kinds_of(folded), kinds_of(hidden)
        whole = WholeEpisode([], {}, set())
        before: list[Block] = []
        for step in episode.steps[:n_steps]:
            blocks = self._of_step(episode, step)
            whole.starts[step.index] = len(whole.blocks)
            whole.blocks.append(_heading(step))
            for each in _without_repeated(blocks, before):
                whole.kinds.add(each.kind)
                if each.kind not in left_out:
                    whole.blocks.append(_folded(each) if each.kind in kinds else each)
            before = blocks
        is_whole = n_steps is None or n_steps >= len(episode.steps)
        if is_whole and (episode.running or not episode.steps):
            next_index = episode.steps[-1].index + 1 if episode.steps else 0
            whole.starts[next_index] = len(whole.blocks)
            whole.blocks.append(Block("action", f"step {next_index}", []))
            whole.blocks.extend(_without_repeated(step_blocks(episode, next_index), before))
        return whole

    def _of_step(self, episode: Episode, step: StepState) -> list[Block]:
        known = self._known.get(step.index)
        is_last = step is episode.steps[-1]  # it has the blocks of the episode's end, which may come later
        if known is None or known[0] is not step or is_last:
            is_first = step is episode.steps[0]  # no other step shows the messages before its last answer
            blocks = step_blocks(episode, step.index, full=is_first, with_end=not episode.running)
            known = self._known[step.index] = step, blocks
        return known[1]


def kinds_of(names: Iterable[str]) -> set[BlockKind]:
    """Return the kinds of blocks for names of ``FOLDS``."""
    return {kind for name in names for kind in FOLDS[name]}


def _heading(step: StepState) -> Block:
    done = ["done"] if step.done else []
    parts = [f"step {step.index}", f"reward {format_reward(step.reward)}", *done]
    return Block("action", " · ".join(parts), [])


def _without_repeated(blocks: list[Block], before: list[Block]) -> Iterator[Block]:
    """Yield the blocks of a step without what the step before shows: its system prompt, and the reply to its action."""
    shown = [block.lines for block in before if block.kind in ("reply", "system")]
    is_start = True
    for block in blocks:
        is_start = is_start and block.kind not in ("thought", "action", "streaming")
        is_repeated = (block.kind == "earlier" and before) or (block.lines and block.lines in shown)
        if not (is_start and is_repeated):
            yield block


def _folded(block: Block) -> Block:
    if not block.lines:
        return block
    n_lines = f"{pluralize(len(block.lines), 'line')} folded"
    return block._replace(title=f"{block.title} · {n_lines}", lines=[])


def step_to_jump(episode: Episode, what: Jump, at: int, by: int) -> int | None:
    """Return the index of the next (1) or previous (-1) step of a kind after or before the step ``at``; None for none.

    A step with an error is one whose answer some endpoint failed to give, and the last one of an episode that ended
    with an error.
    """
    rewards = [0.0, *(step.reward for step in episode.steps)]
    found = [
        step.index
        for before, step in zip(rewards, episode.steps, strict=False)
        if what == "step"
        or (what == "reward" and step.reward != before)
        or (what == "invalid" and (not step.valid or step.refused))
        or (what == "error" and (step.skipped_endpoints or (step is episode.steps[-1] and episode.outcome == "error")))
    ]
    later = [index for index in found if (index > at if by > 0 else index < at)]
    return later[0 if by > 0 else -1] if later else None
