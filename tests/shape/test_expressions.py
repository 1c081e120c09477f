"""Which expressions are taken: those that a row alone decides."""

from __future__ import annotations

import pytest

from tailer.errors import ConfigError
from tailer.shape.expressions import Select, Star, parse_condition, parse_select


def selected(text: str) -> Select:
    found = parse_select(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("now() as x", "clock"), ("today() as x", "clock"), ("age(d) as x", "clock"),
        ("ago(interval 1 day) as x", "depends on current_timestamp"),
        ("random() as x", "chance"), ("uuid() as x", "chance"),
        ("nextval('s') as x", "more than the row"), ("txid_current() as x", "more than the row"),
        ("current_setting('threads') as x", "settings"), ("getvariable('x') as x", "settings"),
        ("version() as x", "version"), ("hash(a) as x", "version"), ("typeof(a) as x", "version"),
        ("levenshtein(a, b) as x", "version"),
        ("sum(a) as x", "over many rows"), ("count(*) as x", "over many rows"),
        ("row_number() over () as x", "window"), ("lag(a) over (order by b) as x", "window"),
        ("(select 1) as x", "subquery"), ("a in (select 1) as x", "subquery"),
        ("exists (select 1) as x", "subquery"),
        ("read_csv('x') as x", "over many rows"), ("read_text('/etc/passwd') as x", "over many"),
        ("unnest(l) as x", "over many rows"), ("columns('a.*')", "pattern"),
        ("$1 as x", "parameter"), ("#1 as x", "by its number"), ("nosuch(a) as x", "no function"),
        ("upperr(a) as x", "did you mean 'upper'"),
        ("list_reduce(l, lambda a, b: a || b) as x", "without bound"),
        ("repeat('x', 1e12) as x", "up to 1000"), ("repeat(a, n) as x", "up to 1000"),
        ("repeat(repeat(a, 9), 9) as x", "not within another"), ("lpad(a, 1001, ' ') as x", "1000"),
        ("list_transform(range(9), lambda i: range(9)) as x", "not within another"),
        ("printf('%99999d', a) as x", "wider"), ("format('{:>{}}', a, b) as x", "wider"),
        ("printf(a, b) as x", "no text"), ("a + 1", "has no name"), ("a, A", "two columns 'a'"),
        ("a as b, c as B", "two columns 'b'"), ("t.*", "a table"), ("a from t", "not understood"),
        ("a; drop table t", "not understood"), ("a where b", "not understood"),
        ("a +", "at its end"),
        ("a group by b", "not understood"),
        ("distinct a", "expressions alone"), ("a" * 70_000, "characters"),
        ("__internal_decompress_string(a) as x", "more than the row"),
        ("sum(a) filter (where b) as x", "FILTER"), ("write_log('x') as x", "more than the row"),
    ],
)  # fmt: skip
def test_what_a_row_alone_does_not_decide_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_select(text)


@pytest.mark.parametrize("text", ["a, b", "a = 1; drop table t", "a = 1 from t", "now() > a", ""])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a + A as x", ("a",)), ("c.d.e as x", ("c",)), ('"odd name"."f" as x', ("odd name",)),
        ('"quo""x" as x', ('quo"x',)), ("list_transform(l, lambda x: x + y) as z", ("l", "y")),
        ("list_filter(l, lambda x, i: x > i) as z", ("l",)),
        ("[x * n for x in l] as z", ("l", "n")),
        ("length(length) as x", ("length",)), ("rows.x as x", ("rows",)),
        ("-- a remark\n a as x", ("a",)), ("current_date as x", ("current_date",)),
        ("nullif(a, b) as x", ("a", "b")), ("{'k': a}.k as x", ("a",)), ("1 as one", ()),
    ],
)  # fmt: skip
def test_the_columns_are_found_that_it_needs(text: str, columns: tuple[str, ...]) -> None:
    (item,) = selected(text).items
    assert not isinstance(item, Star)
    assert item.columns == columns


def test_a_selection_is_one_list_or_several_parts() -> None:
    assert selected("a, b as c").items == parse_select(["a", "b as c"]).items  # type: ignore[union-attr]
    assert parse_select("") is None
    assert parse_select([]) is None
    assert selected("* exclude (A) replace (x + 1 as y) rename (b as c)").items == (
        Star(
            frozenset({"a"}),
            tuple(selected("x + 1 as y").items),  # type: ignore[arg-type]
            (("b", "c"),),
        ),
    )
