"""The colours of tones: looked up once for the whole app, not anew by each list whenever its styles are."""

from __future__ import annotations

from typing import Final, get_args

from rich.style import Style
from textual.color import Color
from textual.widget import Widget

from agentgym_tui.presenters.cells import Tone

_TONES: Final[dict[Tone, str]] = {tone: f"tone--{tone}" for tone in get_args(Tone)}
_CURSOR: Final = {True: "tone--cursor-focused", False: "tone--cursor"}

TONES: Final = {*_TONES.values(), *_CURSOR.values()}
"""The component classes that an app with lists must have."""


def tone_style(widget: Widget, tone: Tone, background: Color) -> Style:
    """How text of a tone looks on a background."""
    styles = widget.app.get_component_styles(_TONES[tone])
    color = background.get_contrast_text(styles.color.a) if styles.auto_color else styles.color
    return Style.from_color((background + color).rich_color, background.rich_color) + styles.text_style


def cursor_style(widget: Widget) -> Style:
    """What the cursor's line has besides."""
    return widget.app.get_component_styles(_CURSOR[widget.has_focus]).partial_rich_style
