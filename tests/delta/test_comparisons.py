from __future__ import annotations

import pytest

from tailer.delta.comparisons import (
    Comparison,
    IsNull,
    Literal,
    Node,
    Not,
    NotUnderstood,
    Parser,
)


def number(text: str) -> Literal:
    return Literal(text, "number")


A = Comparison("=", "a", (number("1"),))


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("a = 1", A),
        ("a == +1.5", Comparison("=", "a", (number("+1.5"),))),
        ("1 < a", Comparison(">", "a", (number("1"),))),
        ("`a b``c` != 'it''s'", Comparison("<>", "a b`c", (Literal("it's", "text"),))),
        ("day >= date '2020-01-01'", Comparison(">=", "day", (Literal("2020-01-01", "date"),))),
        ("date = TRUE", Comparison("=", "date", (Literal("true", "flag"),))),
        ("a IS NULL", IsNull("a")),
        ("a is not null", Not(IsNull("a"))),
        ("a not in (1, -2)", Not(Comparison("in", "a", (number("1"), number("-2"))))),
    ],
)
def test_comparisons(text: str, node: Node) -> None:
    assert Parser(text).conjunction() == (node,)
    assert Parser(f"{text} and a = 1").conjunction() == (node, A)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a = 1 or a = 2", "or a = 2"), ("(a = 1)", "(a = 1)"), ("not a = 1", "not a = 1"),
        ("a = 1 and", "its end"), ("a = b", "= b"), ("1 = 2", "= 2"), ("a <=> 1", "<=> 1"),
        ("a = 'open", "'open"), ("a in (1, b)", "b)"), ("a = 1 b", "b"), ("a is 5", "5"),
        ("a like 'x'", "like 'x'"), ("in = 1", "in = 1"), ("a + 1 = 2", "+ 1 = 2"),
    ],
)  # fmt: skip
def test_what_is_no_conjunction_of_comparisons_says_where(text: str, rest: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        Parser(text).conjunction()
    assert caught.value.rest == rest
