"""Comparisons of columns with literals: the part of a condition by which files are left out.

`where` of a feed and the hints of sharing clients become the same tree.
"""

from __future__ import annotations

from msgspec import Struct

#: Each comparison with its sides exchanged.
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


class NotUnderstood(Exception):
    """A hint does not follow the grammar; ``rest`` is its part at fault."""

    def __init__(self, rest: str) -> None:
        super().__init__(rest)
        self.rest = rest


class Literal(Struct, frozen=True):
    """A literal as it is written, without quotes.

    ``kind`` is its type: in conditions number, text, flag (a boolean), sql date or time,
    in hints their valueType.
    """

    text: str
    kind: str


class ColumnComparison(Struct, frozen=True):
    """``column op literal``; ``op`` is one of ``= < <= > >=``."""

    op: str
    column: str
    literals: tuple[Literal, ...]


class IsNull(Struct, frozen=True):
    """``column IS NULL``."""

    column: str


class Not(Struct, frozen=True):
    """Negation."""

    child: Node


class And(Struct, frozen=True):
    """Conjunction."""

    children: tuple[Node, ...]


class Or(Struct, frozen=True):
    """Disjunction."""

    children: tuple[Node, ...]


class Unknown(Struct, frozen=True):
    """What may be anything for any row."""


Node = ColumnComparison | IsNull | Not | And | Or | Unknown
