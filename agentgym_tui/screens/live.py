"""The live screen: environments, the steps of the episode that runs, what was said, where the time goes, rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.screen import Screen

from agentgym_tui.cells import Cell, FixedLines, Line
from agentgym_tui.clean import own
from agentgym_tui.keymap import bindings
from agentgym_tui.orders import Orders
from agentgym_tui.screens.runs import Runs
from agentgym_tui.session import Session
from agentgym_tui.state import Episode
from agentgym_tui.store import RunStore
from agentgym_tui.views import ENV_COLUMNS, STEP_COLUMNS, EnvRows, StepRows
from agentgym_tui.views_episode import blocks
from agentgym_tui.views_live import (
    environment_text,
    environments_title,
    notice_line,
    rewards_title,
    step_text,
    steps_title,
    trace_title,
    transcript_title,
)
from agentgym_tui.views_status import empty_lines, progress_line, status_line
from agentgym_tui.watching import Watch
from agentgym_tui.widgets.heading import Heading
from agentgym_tui.widgets.lines import LineView
from agentgym_tui.widgets.plot_view import PlotView
from agentgym_tui.widgets.status import KeyLine, Pane
from agentgym_tui.widgets.table import Table
from agentgym_tui.widgets.transcript import Transcript
from agentgym_tui.widgets.waterfall import Waterfall

VIEWS: Final = ("transcript", "trace", "rewards")
"""The panes that share one place where there is little room."""


class LiveScreen(Runs):
    """Shows what a session's node does, and has it do things.

    Args:
        session: what is looked at.
    """
