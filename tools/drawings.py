"""The drawings of the pages that explain: boxes on a grid with arrows between them, as SVG.

``python -m tools.drawings`` writes them into docs/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tests.support.source import ROOT

WIDTH, COLUMN, ROW, LINE = 760, 190, 118, 17
GAP, HEAD = 36, 14
COLORS = {
    "plain": ("#f4f6f9", "#5b6877"),
    "good": ("#e5f3ee", "#2a7f62"),
    "bad": ("#fbe9e7", "#c0392b"),
}

_HEAD_OF_ARROWS = (
    '<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path d="M0,0L8,4L0,8z" fill="#5b6877"/></marker>'
)


@dataclass(frozen=True, slots=True)
class Box:
    """A box in a column and a row of the grid: its first line is its title."""

    column: float
    row: float
    lines: tuple[str, ...]
    kind: str = "plain"

    @property
    def left(self) -> float:
        return 10 + self.column * COLUMN

    @property
    def top(self) -> float:
        return 44 + self.row * ROW

    @property
    def height(self) -> float:
        return HEAD + LINE * len(self.lines)

    @property
    def right(self) -> float:
        return self.left + COLUMN - GAP

    @property
    def middle(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, self.top + self.height / 2


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow from one box to another, by their numbers; ``sign`` stands in its place instead."""

    start: int
    end: int
    sign: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing: its file in docs/ without the ending, its title, and what is on it."""

    name: str
    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def draw(drawing: Drawing) -> str:
    """Return a drawing as SVG."""
    height = max(box.top + box.height for box in drawing.boxes) + 12
    title = escape(drawing.title)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" font-family="sans-serif" font-size="12" role="img">'
    )
    parts = [
        head,
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>',
        _HEAD_OF_ARROWS,
        f'<text x="10" y="24" font-size="14">{title}</text>',
        *(_box(box) for box in drawing.boxes),
        *(_arrow(arrow, drawing.boxes) for arrow in drawing.arrows),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(box: Box) -> str:
    fill, ink = COLORS[box.kind]
    lines = "".join(
        f'<text x="{box.left + 9:.0f}" y="{box.top + 19 + number * LINE:.0f}" '
        f'font-weight="{400 if number else 600}">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    )
    return (
        f'<rect x="{box.left:.0f}" y="{box.top:.0f}" width="{COLUMN - GAP}" '
        f'height="{box.height:.0f}" rx="6" fill="{fill}" stroke="{ink}"/>{lines}'
    )


def _arrow(arrow: Arrow, boxes: Sequence[Box]) -> str:
    start, end = boxes[arrow.start], boxes[arrow.end]
    if start.row == end.row:
        y = min(start.middle[1], end.middle[1])
        if arrow.sign:
            return (
                f'<text x="{(start.right + end.left) / 2:.0f}" y="{y + 6:.0f}" font-size="20" '
                f'text-anchor="middle">{escape(arrow.sign)}</text>'
            )
        forth = start.column < end.column
        x1, x2 = (start.right + 3, end.left - 3) if forth else (start.left - 3, end.right + 3)
        return _line(x1, y, x2, y)
    x = start.middle[0]
    down = start.row < end.row
    y1, y2 = (start.top + start.height + 3, end.top - 3) if down else (
        start.top - 3, end.top + end.height + 3
    )  # fmt: skip
    return _line(x, y1, end.middle[0], y2)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    place = f'x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}"'
    return f'<line {place} stroke="#5b6877" marker-end="url(#head)"/>'


DRAWINGS = (
    Drawing(
        "exactness",
        "Exact: the snapshot before, changed by the events of a version, is the snapshot after",
        (
            Box(0, 0, ("snapshot 6", "1, pears", "2, plums", "3, figs")),
            Box(1, 0, ("events of version 7", "delete 2, plums", "update 3, figs to dates")),
            Box(2, 0, ("snapshot 7", "1, pears", "3, dates")),
            Box(
                3,
                0,
                ("tailer verify", "replays the events", "and compares rows", "as a multiset"),
                "good",
            ),
            Box(
                1,
                1,
                ("a file is missing,", "or a rule is unknown:", "the feed stops,", "and names it"),
                "bad",
            ),
        ),
        (Arrow(0, 1, "+"), Arrow(1, 2, "="), Arrow(2, 3), Arrow(1, 4)),
    ),
    Drawing(
        "exactly-once",
        "Exactly once: the offset is stored with the rows. At least once: it follows them",
        (
            Box(0, 0, ("the table's log", "version 5, 6, 7, ...")),
            Box(1, 0, ("batch", "rows of version 6", "offset: 6")),
            Box(
                2,
                0,
                ("the target, in one", "transaction:", "rows of version 6", "and offset: 6"),
                "good",
            ),
            Box(
                3,
                0,
                (
                    "after kill -9",
                    "the target has both,",
                    "or neither; a start",
                    "reads its offset",
                ),
                "good",
            ),
            Box(1, 1, ("batch", "rows of version 6", "with stable ids")),
            Box(2, 1, ("the target", "rows of version 6")),
            Box(3, 1, ("then, a file", "offset: 6")),
            Box(
                2,
                1.85,
                (
                    "killed in between:",
                    "the batch is sent again,",
                    "byte for byte, and its",
                    "ids are known already",
                ),
                "bad",
            ),
        ),
        (Arrow(0, 1), Arrow(1, 2), Arrow(2, 3), Arrow(0, 4), Arrow(4, 5), Arrow(5, 6), Arrow(5, 7)),
    ),
    Drawing(
        "derived-changes-by-value",
        "Derived changes: version 7 has no change data; it removes one file and adds another",
        (
            Box(0, 0, ("file that leaves", "1, pears", "2, plums", "3, figs")),
            Box(0, 1, ("file that comes", "1, pears", "2, damsons", "3, figs")),
            Box(1, 0, ("rows equal on both", "sides cancel out", "1, pears", "3, figs")),
            Box(
                2,
                0,
                ("by value", "delete 2, plums", "insert 2, damsons", "with a key: update 2"),
                "good",
            ),
            Box(1, 1, ("rows of one row id", "on both sides", "are one row")),
            Box(2, 1, ("by row id", "update 2, plums", "to 2, damsons"), "good"),
            Box(3, 0, ("events", "with stable ids;", "_origin says how", "each was found")),
        ),
        (
            Arrow(0, 2),
            Arrow(0, 4),
            Arrow(1, 2),
            Arrow(1, 4),
            Arrow(2, 3),
            Arrow(4, 5),
            Arrow(3, 6),
            Arrow(5, 6),
        ),
    ),
)


def main() -> None:
    """Write all drawings."""
    for drawing in DRAWINGS:
        (ROOT / "docs" / f"{drawing.name}.svg").write_text(draw(drawing), encoding="utf-8")


if __name__ == "__main__":
    main()
