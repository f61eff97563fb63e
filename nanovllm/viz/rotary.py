"""Rotary position embedding as clock faces: how far each pair of components is turned at each position."""

import math

from torch import Tensor

from nanovllm.viz.svg import FULL, element, label
from nanovllm.viz.theme import HUES
from nanovllm.viz.view import View

_PITCH = 62


class RotaryDials(View):
    """A row a position, a dial a pair. table: [max_positions, head_dim], cosines then sines, as the model holds it."""

    title = "Rotary angles"

    def __init__(self, table: Tensor, positions: list[int], pairs: list[int]) -> None:
        half = table.shape[1] // 2
        self.positions, self.pairs = positions, pairs
        rows = table.float().cpu()[positions]
        self.cos, self.sin = rows[:, :half][:, pairs].tolist(), rows[:, half:][:, pairs].tolist()

    @property
    def heading(self) -> str:
        """The title, with what a row and a column are."""
        return "Rotary angles: a row a position, a dial a pair; a small index turns fast, a large one hardly"

    def degrees(self) -> list[list[int]]:
        """The angle of each dial, 0 to 359, to whole degrees."""
        return [
            [round(math.degrees(math.atan2(s, c))) % 360 for c, s in zip(cos, sin, strict=True)]
            for cos, sin in zip(self.cos, self.sin, strict=True)
        ]

    def text(self) -> str:
        """The angles in degrees."""
        lines = ["position  " + "".join(f"{f'pair {pair}':>9}" for pair in self.pairs)]
        for position, row in zip(self.positions, self.degrees(), strict=True):
            lines.append(f"{position:>8}  " + "".join(f"{angle:>8}°" for angle in row))
        return "\n".join(lines)

    def draw(self) -> tuple[float, float, str]:
        """Dials with one hand each."""
        left, body = 120.0, ""
        step = min(110.0, (FULL - left - 60) / max(1, len(self.pairs)))
        for column, pair in enumerate(self.pairs):
            body += label(left + column * step + 30, 56, f"pair {pair}", "muted", 11, "middle")
        for row, position in enumerate(self.positions):
            y = 92 + row * _PITCH
            body += label(16, y + 4, f"position {position}", "ink", 12)
            for column in range(len(self.pairs)):
                body += self._dial(left + column * step + 30, y, self.cos[row][column], self.sin[row][column])
        return FULL, 72 + len(self.positions) * _PITCH, body

    @staticmethod
    def _dial(x: float, y: float, cos: float, sin: float) -> str:
        size = math.hypot(cos, sin) or 1.0
        tip_x, tip_y = x + 22 * cos / size, y - 22 * sin / size
        face = element("circle", cx=x, cy=y, r=24, class_="nv-soft nv-s-line", fill="none", stroke="currentColor")
        hand = f"M{x:.1f} {y:.1f}L{tip_x:.1f} {tip_y:.1f}"
        return (
            face
            + element("path", d=hand, class_="nv-s0", stroke=HUES[0].light, stroke_width=2.5, stroke_linecap="round")
            + element("circle", cx=x, cy=y, r=2.5, class_="nv-t0", fill=HUES[0].light)
        )
