"""The picture of an ARE scenario: its apps, and the inbox of its agent."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from textwrap import wrap

from runner.types import CellRow, CellRun, Cells
from runner.types.cells import CellColor

_WIDTH = 74
_MAX_APPS = 24
_MAX_MESSAGES = 8
_MAX_CHARS = 300
"""Characters of a message that are kept."""
_MAX_LINES = 3
"""Lines of a message that are shown."""
_MARKS: dict[str, tuple[str, CellColor]] = {"user": ("@", "yellow"), "notification": ("!", "cyan")}
"""Mark and color of a message by its kind; messages of other kinds are no mail."""


class InboxPainter:
    """Draws one scenario: its apps with the calls made in each, and the inbox, the newest message first.

    It needs only the messages and tools that the agent has seen, and nothing of the scenario's process. The part of a
    tool's name before ``__`` is the app, as in ``Calendar__add_event``.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self._n_tools = Counter(map(_app_of, tools))
        self._n_calls = Counter[str]()
        self._newest_call = ""
        self._messages: deque[tuple[str, str]] = deque(maxlen=_MAX_MESSAGES)
        self._n_messages = 0
        self._time = ""

    def add_call(self, tool: str) -> None:
        self._n_calls[_app_of(tool)] += 1
        self._newest_call = tool

    def add_messages(self, parts: Sequence[tuple[str, str]]) -> None:
        """The last message has the simulated time."""
        for kind, text in parts:
            if kind in _MARKS:
                self._messages.append((kind, text[:_MAX_CHARS]))
                self._n_messages += 1
        if parts and parts[-1][0] == "environment":
            self._time = parts[-1][1][:_WIDTH]

    def draw(self) -> Cells:
        apps = sorted(self._n_tools)[:_MAX_APPS]
        width = max(map(len, apps), default=0)
        heading = (CellRun("Time: ", "dim"), CellRun(self._time or "not known"))
        rows = [row for kind, text in reversed(self._messages) for row in _message_rows(kind, text)]
        return Cells(
            [
                heading,
                (),
                (CellRun(f"Apps · {len(self._n_tools)}", "dim"),),
                *(self._app_row(app, width) for app in apps),
                (),
                (CellRun(f"Inbox · {self._n_messages}   @ from the user  ! from an app", "dim"),),
                *(rows or [(CellRun("no message", "dim"),)]),
            ]
        )

    def _app_row(self, app: str, width: int) -> CellRow:
        n_tools, n_calls = self._n_tools[app], self._n_calls[app]
        # before the first call, `_app_of("")` is the app of `wait`
        is_newest = app == _app_of(self._newest_call) and bool(self._newest_call)
        calls = f"{n_calls} call{'' if n_calls == 1 else 's'}" if n_calls else ""
        last = f", last: {self._newest_call.rpartition('__')[2]}" if is_newest else ""
        mark = CellRun("► " if is_newest else "  ", "yellow")
        color: CellColor = "yellow" if is_newest else "plain" if n_calls else "dim"
        return (
            mark,
            CellRun(f"{app:<{width}}  {n_tools:>3} {'tool ' if n_tools == 1 else 'tools'}  ", color),
            CellRun(calls + last),
        )


def _app_of(tool: str) -> str:
    return tool.rpartition("__")[0][:40] or "environment"  # `wait` belongs to no app


def _message_rows(kind: str, text: str) -> list[CellRow]:
    mark, color = _MARKS[kind]
    lines = wrap(text, _WIDTH - 2, max_lines=_MAX_LINES, placeholder=" …") or [""]
    return [(CellRun(f"{mark} " if not number else "  ", color), CellRun(line)) for number, line in enumerate(lines)]
