"""Contrast of texts to their backgrounds, in every theme."""

from __future__ import annotations

from itertools import product
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from agentgym_tui.app import Console
from agentgym_tui.presenters.cells import Tone
from agentgym_tui.widgets.lists import MIN_CONTRAST, LineRenderer, contrast, readable, tone_style
from tests.support.console.fake_session import busy_session

COLORS = st.tuples(*[st.integers(0, 255)] * 3).map(lambda parts: Color(*parts))


def test_the_contrast_is_that_of_the_guideline() -> None:
    white, black, grey = Color(255, 255, 255), Color(0, 0, 0), Color(118, 118, 118)
    assert contrast(white, black) == contrast(black, white) == 21
    assert contrast(white, white) == 1
    assert round(contrast(grey, white), 2) == 4.54  # the lightest grey that passes on white


@given(color=COLORS, background=COLORS)
def test_every_color_becomes_readable_and_a_readable_one_stays(color: Color, background: Color) -> None:
    shown = readable(color, background)
    assert contrast(shown, background) >= MIN_CONTRAST
    assert shown == color or contrast(color, background) < MIN_CONTRAST


async def test_every_tone_is_readable_on_the_status_line_of_every_theme() -> None:
    session = busy_session()
    async with Console(session).run_test(size=(80, 24)) as pilot:
        status = pilot.app.screen.query_one("#status", LineRenderer)
        for theme, tone in product(BUILTIN_THEMES, get_args(Tone)):
            pilot.app.theme = theme
            background = status.background_colors[1]
            style = tone_style(status, tone, background)
            assert style.color is not None
            if background.ansi is None and style.color.triplet is not None:
                shown = Color(*style.color.triplet)
                assert contrast(shown, background) >= MIN_CONTRAST, (theme, tone, shown, background)
