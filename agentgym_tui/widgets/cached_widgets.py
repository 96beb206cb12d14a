"""Widgets that cache their rendered rows; Textual renders a widget again when a neighboring widget is repainted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.widget import Widget


class CachedWidget(Widget):
    """Base of widgets that render all rows at once and cache them until size, style or content changes."""

    _cached_rows: Sequence[Strip] = ()
    _region = Region()

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        if repaint:
            self._region = Region()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        self._region = Region()
        super().notify_style_update()

    def render_lines(self, crop: Region) -> list[Strip]:
        region = self.outer_size.region
        if region != self._region:
            self._cached_rows, self._region = self.render_rows(region), region
        rows = self._cached_rows[crop.y : crop.bottom]
        return [*rows] if crop.width == region.width else [row.crop(crop.x, crop.right) for row in rows]

    def render_rows(self, region: Region) -> list[Strip]:
        """Render all rows of ``region``."""
        return super().render_lines(region)


class CachedScrollBar(CachedWidget, ScrollBar):
    """A vertical scroll bar."""

    def render_rows(self, region: Region) -> list[Strip]:
        bar = self.render()
        if not (isinstance(bar, ScrollBarRender) and isinstance(style := bar.style, Style)):
            return super().render_rows(region)
        if style.color is None or style.bgcolor is None:
            return super().render_rows(region)
        bar_segments = bar.render_bar(
            size=region.height,
            virtual_size=bar.virtual_size,
            window_size=bar.window_size,
            position=bar.position,
            thickness=bar.thickness,
            back_color=style.bgcolor,
            bar_color=style.color,
        )
        segments = Segment.apply_style(bar_segments.segments, self.visual_style.rich_style)
        rows, background = [Strip([segment], bar.thickness) for segment in segments], self.background_colors[1]
        for line_filter in self.get_line_filters():
            rows = [row.apply_filter(line_filter, background) for row in rows]
        return rows
