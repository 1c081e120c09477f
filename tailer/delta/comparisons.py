"""Comparisons of columns with literals, as SQL writes them: one syntax tree and its parser.

`where` of a feed has comparisons joined by AND. The hints of sharing clients have the same tree,
with OR, NOT and any nesting; they come as JSON.
"""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec import Struct

_LEXEME = r"""(?x)\s*(?:(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?![\w.])
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<sign><=>|<=|>=|<>|!=|==|[=<>(),])
    |(?P<word>[^\W\d]\w*))"""
_T = TypeVar("_T")
_RESERVED = ("AND", "IN", "IS", "NOT", "NULL", "OR")
_SAME = {"!=": "<>", "==": "="}
#: Each comparison with its sides exchanged.
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


class NotUnderstood(Exception):
    """The text does not follow the grammar; ``rest`` is the text from the error on."""

    def __init__(self, rest: str) -> None:
        super().__init__(rest)
        self.rest = rest


class Literal(Struct, frozen=True):
    """A literal as it is written, without quotes.

    ``kind`` is its type by the syntax: number, text, flag, date or timestamp; in hints it is their
    valueType.
    """

    text: str
    kind: str


class Comparison(Struct, frozen=True):
    """``column op literal``; ``op`` is one of ``= < <= > >= <>``, or ``in`` with some literals."""

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


Node = Comparison | IsNull | Not | And | Or


class Parser:
    """A recursive descent parser. All methods raise :class:`NotUnderstood`.

    ``tokens`` are (kind, text, start).
    """

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0
        self.tokens: list[tuple[str, str, int]] = []
        lexeme_at, end = re.compile(_LEXEME).match, 0
        while end < len(self._text):
            match = lexeme_at(self._text, end)
            if match is None or match.lastgroup is None:
                raise NotUnderstood(self._text[end:].strip())
            kind = match.lastgroup
            self.tokens.append((kind, match[kind], match.start(kind)))
            end = match.end()

    def conjunction(self) -> tuple[Node, ...]:
        """Parse comparisons joined by AND alone."""
        terms = [self._comparison()]
        while self._next_are("AND"):
            terms.append(self._comparison())
        return self._whole(tuple(terms))

    # Tokens

    def _whole(self, parsed: _T) -> _T:
        if self._at < len(self.tokens):
            raise self._failure()
        return parsed

    def _failure(self) -> NotUnderstood:
        rest = self.tokens[self._at :]
        return NotUnderstood(self._text[rest[0][2] :] if rest else "its end")

    def _next_are(self, *words: str) -> bool:
        """Consume these words or signs if they come next."""
        coming = self.tokens[self._at : self._at + len(words)]
        if [t.upper() for k, t, _ in coming if k in ("word", "sign")] != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, *words: str) -> None:
        if not self._next_are(*words):
            raise self._failure()

    def _kind(self) -> str:
        return self.tokens[self._at][0] if self._at < len(self.tokens) else ""

    def _take(self) -> str:
        self._at += 1
        return self.tokens[self._at - 1][1]

    # The grammar

    def _comparison(self) -> Node:
        left = self._operand()
        if isinstance(left, str):
            if self._next_are("IS", "NOT", "NULL"):
                return Not(IsNull(left))
            if self._next_are("IS"):
                self._expect("NULL")
                return IsNull(left)
            if self._next_are("NOT", "IN"):
                return Not(self._in(left))
            if self._next_are("IN"):
                return self._in(left)
        start = self._at
        sign = self._take() if self._kind() == "sign" else ""
        op = _SAME.get(sign, sign)
        if op in FLIPPED:
            right = self._operand()
            if isinstance(left, str) and isinstance(right, Literal):
                return Comparison(op, left, (right,))
            if isinstance(left, Literal) and isinstance(right, str):
                return Comparison(FLIPPED[op], right, (left,))
        self._at = start
        raise self._failure()

    def _in(self, column: str) -> Node:
        self._expect("(")
        literals = [self._literal()]
        while self._next_are(","):
            literals.append(self._literal())
        self._expect(")")
        return Comparison("in", column, tuple(literals))

    def _literal(self) -> Literal:
        start, operand = self._at, self._operand()
        if isinstance(operand, Literal):
            return operand
        self._at = start
        raise self._failure()

    def _operand(self) -> Literal | str:
        """Parse a literal, or the name of a column."""
        kind = self._kind()
        if kind == "number":
            return Literal(self._take(), kind)
        if kind == "text":
            return Literal(self._take()[1:-1].replace("''", "'"), kind)
        if kind == "quoted":
            return self._take()[1:-1].replace("``", "`")
        word = self.tokens[self._at][1].lower() if kind == "word" else ""
        if not word or word.upper() in _RESERVED:
            raise self._failure()
        name = self._take()
        if word in ("true", "false"):
            return Literal(word, "flag")
        if word in ("date", "timestamp") and self._kind() == "text":
            return Literal(self._literal().text, word)
        return name
