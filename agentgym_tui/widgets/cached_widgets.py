"""Widgets that seldom look different: what they have drawn is kept, as each drawing around them asks for it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.segment import Segment
from rich.style import Style
from textual.containers import Container
from textual.geometry import Region
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.widget import Widget


class _Steady(Widget):
    """Draws all of itself at once, and again when something about it has changed."""

    _rows: Sequence[Strip] = ()
    _extent = Region()

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Draw again."""
        if repaint:
            self._extent = Region()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        """The colours may be others."""
        self._extent = Region()
        super().notify_style_update()

    def render_lines(self, crop: Region) -> list[Strip]:
        """The rows that are asked for."""
        extent = self.outer_size.region
        if extent != self._extent:
            self._rows, self._extent = self.drawn(extent), extent
        rows = self._rows[crop.y : crop.bottom]
        return [*rows] if crop.width == extent.width else [row.crop(crop.x, crop.right) for row in rows]

    def drawn(self, extent: Region) -> list[Strip]:
        """All rows there are."""
        return super().render_lines(extent)


class Side(_Steady, Container):
    """A part of the screen that shows nothing itself but its border."""


class Bar(_Steady, ScrollBar):
    """A vertical scroll bar."""

    def drawn(self, extent: Region) -> list[Strip]:
        """Not by way of what the framework draws anything with, which takes longer than the list beside it."""
        bar = self.render()
        if not (isinstance(bar, ScrollBarRender) and isinstance(style := bar.style, Style)):
            return super().drawn(extent)
        if style.color is None or style.bgcolor is None:
            return super().drawn(extent)
        shown = bar.render_bar(
            size=extent.height,
            virtual_size=bar.virtual_size,
            window_size=bar.window_size,
            position=bar.position,
            thickness=bar.thickness,
            back_color=style.bgcolor,
            bar_color=style.color,
        )
        segments = Segment.apply_style(shown.segments, self.visual_style.rich_style)
        rows, background = [Strip([segment], bar.thickness) for segment in segments], self.background_colors[1]
        for line_filter in self.get_line_filters():
            rows = [row.apply_filter(line_filter, background) for row in rows]
        return rows
