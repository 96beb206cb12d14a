"""The console's own files, which anyone may edit: settings with keys, and what it keeps between sessions.

The input is the content of both files.
"""

from __future__ import annotations

from agentgym_tui.config import parse_settings, problem_summary, read_ui_state, write_ui_state
from tests.fuzz.oracles import check_displayable, scratch_folder

TOKENS = (
    b"keymap:\n  ",
    b"run.start: ",
    b"ctrl+",
    b"theme: ",
    b"notify: {bell: true}",
    b'"places":{"e3b0c44298fc1c14":{"screen":"events","filters":{"a":"b"}}}',
    b'"sorting":{"episodes":["env",true]}',
    b'"sizes":{"live.wide.left":40}',
)
FOLDER = scratch_folder("console_files")
PATH = FOLDER / "console.json"


def check(data: bytes) -> None:
    settings = parse_settings(data)
    for problem in settings.problems:
        check_displayable(problem)
    check_displayable(problem_summary(settings.problems), lines=True)
    PATH.write_bytes(data)
    state = read_ui_state(PATH)
    for words in state.filters.values():
        check_displayable(words)
    write_ui_state(PATH, state)
    assert read_ui_state(PATH) == state
