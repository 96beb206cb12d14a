"""Lists of tasks, with sorting and search: the matrix of tasks and attempts, and the tasks of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from agentgym_tui.state.query import Query
from agentgym_tui.state.sorting import Rank, Sorting, number_rank, sort_by_rank, text_rank

if TYPE_CHECKING:
    from runner.results.comparison import Comparison, PairedTask
    from runner.results.task_matrix import TaskGroup

Result: TypeAlias = Literal["won", "lost", "tied"]

Task = TypeVar("Task")


class ComparedTask(NamedTuple):
    """A task of a comparison and how the selection did on it."""

    pair: PairedTask
    result: Result


class TaskList(Generic[Task]):
    """Tasks that are shown: those that match the filter, in the chosen order.

    Args:
        index_of: returns the index of a task, which is also its key.
        text_of: returns the text that is searched.
        ranks: function that returns the sort key of a task, by column title.

    Attributes:
        shown: the tasks that match ``query``.
        sorting: order of the tasks; None for the order in which they were given.
    """

    def __init__(
        self,
        index_of: Callable[[Task], int],
        text_of: Callable[[Task], str],
        ranks: Mapping[str, Callable[[Task], Rank | None]],
    ) -> None:
        self.shown: Sequence[Task] = ()
        self.query = Query()
        self.sorting: Sorting | None = None
        self._index_of, self._text_of, self._ranks = index_of, text_of, ranks
        self._tasks: Sequence[Task] = ()
        self._places: dict[str, int] = {}

    def set_tasks(self, tasks: Sequence[Task]) -> None:
        """Replace all tasks."""
        self._tasks = tasks
        self._arrange()

    def search(self, text: str) -> None:
        """Show only tasks that contain the words of ``text``."""
        self.query = Query(text)
        self._arrange()

    def sort(self, sorting: Sorting | None) -> None:
        """Sort the tasks; None restores the default order."""
        self.sorting = sorting if sorting is not None and sorting.column in self._ranks else None
        self._arrange()

    def key(self, place: int) -> str:
        """Return the key of a shown task."""
        return str(self._index_of(self.shown[place]))

    def place_of(self, key: str) -> int | None:
        """Return the index of the shown task with this key; None if there is none."""
        return self._places.get(key)

    def get(self, key: str) -> Task | None:
        """Return the shown task with this key; None if there is none."""
        place = self._places.get(key)
        return None if place is None else self.shown[place]

    def _arrange(self) -> None:
        tasks = [task for task in self._tasks if not self.query or self.query.matches(self._text_of(task).casefold())]
        if self.sorting is not None:
            tasks = sort_by_rank(tasks, self._ranks[self.sorting.column], descending=self.sorting.descending)
        self.shown = tasks
        self._places = {self.key(place): place for place in range(len(tasks))}


def matrix_list() -> TaskList[TaskGroup]:
    """Return an empty list of the tasks of a matrix."""
    return TaskList(
        lambda task: task.task_index,
        lambda task: f"#{task.task_index} {note_of(task)} {' '.join({each.outcome.value for each in task.attempts})}",
        _MATRIX_RANKS,
    )


def comparison_list() -> TaskList[ComparedTask]:
    """Return an empty list of the tasks of a comparison."""
    return TaskList(
        lambda task: task.pair.task.task_index, lambda task: f"#{task.pair.task.task_index} {task.result}", _PAIR_RANKS
    )


def compared_tasks(comparison: Comparison) -> list[ComparedTask]:
    """Return the tasks of a comparison: those that were lost, won and tied."""
    return [
        *(ComparedTask(pair, "lost") for pair in comparison.lost),
        *(ComparedTask(pair, "won") for pair in comparison.won),
        *(ComparedTask(pair, "tied") for pair in comparison.tied),
    ]


def note_of(task: TaskGroup) -> str:
    """Return what makes the group of a task useless for group-relative training; "" if it is useful."""
    if task.zero_variance and task.all_truncated:
        return "zero, truncated"
    if task.zero_variance:
        return "zero variance"
    return "all truncated" if task.all_truncated else ""


def mean_reward(task: TaskGroup) -> float | None:
    """Return the mean reward of the rated attempts; None without any."""
    rated = task.rated
    return sum(attempt.reward for attempt in rated) / len(rated) if rated else None


_MATRIX_RANKS: Final[Mapping[str, Callable[[TaskGroup], Rank | None]]] = {
    "task": lambda task: number_rank(task.task_index),
    "success": lambda task: number_rank(task.success_rate),
    "reward": lambda task: number_rank(mean_reward(task)),
    "note": lambda task: text_rank(note_of(task)),
    "attempts": lambda task: number_rank(len(task.attempts)),
}

_PAIR_RANKS: Final[Mapping[str, Callable[[ComparedTask], Rank | None]]] = {
    "task": lambda task: number_rank(task.pair.task.task_index),
    "result": lambda task: text_rank(task.result),
    "success": lambda task: number_rank(task.pair.rate),
    "baseline": lambda task: number_rank(task.pair.baseline_rate),
    "difference": lambda task: number_rank(task.pair.rate - task.pair.baseline_rate),
}
