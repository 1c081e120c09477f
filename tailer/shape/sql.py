"""DuckDB, closed: it parses expressions and computes them over rows, and reaches nothing else.

| what it must not depend on | how |
|---|---|
| files, the network, extensions | external access is off, the configuration locked |
| the machine's time zone | UTC |
| other rows, the clock, chance | :mod:`tailer.shape.expressions` refuses such functions by name |
| the version of DuckDB | division by zero is null in all of them; the tests pin the rest |
| texts that are not UTF-8 | :mod:`tailer.feed.texts` comes first; DuckDB would end itself |
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from typing import Any

import pyarrow as pa

from tailer.errors import ConfigError, TransientError

#: What intermediate values of all feeds may take. Texts are not in it: see docs/choosing.md.
_MEMORY = "1GiB"
#: The rows in a query. An expression names columns alone, so that ``rows.x`` is a field of one.
ROWS = "__rows"
_LINE = "\n"


class NotComputed(Exception):
    """What DuckDB finds wrong with an expression over some rows."""


def _open_connection() -> Any:
    """Return a connection to a database of its own, which computes in the thread that asks."""
    import duckdb  # on demand: most feeds deliver all rows as they are

    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": _MEMORY,
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )
    connection.execute("SET enable_external_access = false")
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    with suppress(duckdb.CatalogException):  # earlier versions have no such setting
        connection.execute("SET GLOBAL error_on_division_by_zero = false")
    connection.execute("SET lock_configuration = true")
    return connection


@cache
def _open_shared() -> Any:
    return _open_connection()


def parse_expressions(expressions: str) -> list[dict[str, Any]]:
    """Parse a list of expressions, as after SELECT; return their trees as DuckDB gives them.

    Raises :class:`ConfigError` for what is no such list, such as a whole query.
    """
    # A comment at the end of the text ends with its line.
    text = f"SELECT{_LINE}{expressions}{_LINE}FROM {ROWS}"
    cursor = _open_shared().cursor()
    try:
        (found,) = cursor.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    except Exception as e:  # noqa: BLE001  # whatever DuckDB finds wrong with the text
        raise ConfigError(f"is not understood: {_find_first_line(e)}") from None
    document = json.loads(found[0])
    if document["error"]:
        why = document["error_message"].splitlines()[0].replace('at or near "FROM"', "at its end")
        raise ConfigError(f"is not understood: {why}")
    statements = document["statements"]
    node = statements[0]["node"] if len(statements) == 1 else {}
    if not _is_plain(node):
        raise ConfigError("must be expressions alone: no FROM, WHERE, GROUP BY or second query")
    trees: list[dict[str, Any]] = node["select_list"]
    return trees


def _is_plain(node: dict[str, Any]) -> bool:
    """Return whether a query is no more than a list of expressions over the rows."""
    table = node.get("from_table", {})
    return (
        node.get("type") == "SELECT_NODE"
        and table.get("type") == "BASE_TABLE"
        and (table.get("table_name"), table.get("alias")) == (ROWS, "")
        and table.get("sample") is None
        and not node["modifiers"]
        and not node["cte_map"]["map"]
        and not any(node.get(part) for part in ("where_clause", "having", "sample", "qualify"))
        and not node["group_expressions"]
    )


def print_tree(tree: dict[str, Any]) -> str:
    """Return an expression's tree as SQL, without its alias."""
    cursor = _open_shared().cursor()
    document = {
        "error": False,
        "statements": [{"node": {**_parse_bare(), "select_list": [{**tree, "alias": ""}]}}],
    }
    text: str = cursor.execute(
        "SELECT json_deserialize_sql(?::JSON)", [json.dumps(document)]
    ).fetchall()[0][0]
    return text.removeprefix("SELECT ")


@cache
def _parse_bare() -> dict[str, Any]:
    """Return the tree of a query without a table."""
    (found,) = _open_shared().cursor().execute("SELECT json_serialize_sql('SELECT 1')").fetchall()
    node: dict[str, Any] = json.loads(found[0])["statements"][0]["node"]
    return node


def find_stability(function: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return a function's kinds (scalar, aggregate, macro ...) and how stable its scalar forms
    are, as DuckDB lists them; empty for a name that it does not have."""
    listed = _load_functions().get(function, ())
    kinds = frozenset(kind for kind, _ in listed)
    return kinds, frozenset(how for kind, how in listed if kind == "scalar")


def list_function_names() -> tuple[str, ...]:
    """Return the names of all functions."""
    return tuple(_load_functions())


@cache
def _load_functions() -> dict[str, list[tuple[str, str]]]:
    query = "SELECT function_name, function_type, stability FROM duckdb_functions()"
    found: dict[str, list[tuple[str, str]]] = {}
    for name, kind, how in _open_shared().cursor().execute(query).fetchall():
        found.setdefault(name, []).append((kind, how))
    return found


@cache
def find_macro_bodies(macro: str) -> tuple[tuple[frozenset[str], str], ...]:
    """Return the parameters of a macro of DuckDB, and the expression that it stands for; one for
    each number of arguments."""
    found = _open_shared().cursor().execute(
        "SELECT parameters, macro_definition FROM duckdb_functions() WHERE function_name = ? "
        "AND function_type = 'macro'",
        [macro],
    )  # fmt: skip
    return tuple(
        (frozenset(name.lower() for name in parameters), body)
        for parameters, body in found.fetchall()
    )


class ExpressionDatabase:
    """Computes expressions over rows; for one thread at a time."""

    def __init__(self) -> None:
        self._connection = _open_shared().cursor()

    def compute_values(self, rows: pa.RecordBatch, expressions: list[str]) -> list[pa.Array]:
        """Return the values of expressions for each row, in the rows' order.

        Raises :class:`NotComputed`, and :class:`TransientError` where memory is short.
        """
        import duckdb

        columns = ", ".join(f"({sql}) AS c{number}" for number, sql in enumerate(expressions))
        query = f"SELECT {columns} FROM {ROWS}"  # noqa: S608  # walked by `expressions`
        try:
            self._connection.register(ROWS, pa.table(rows))
            found = self._connection.sql(query).to_arrow_table()
            self._connection.unregister(ROWS)
        except (duckdb.FatalException, duckdb.InternalException) as e:
            # The database answers nothing any more, no feed of this process.
            _open_shared.cache_clear()
            self._connection = _open_shared().cursor()
            raise NotComputed(_find_first_line(e)) from None
        except duckdb.OutOfMemoryException as e:
            raise TransientError(f"an expression lacks memory: {_find_first_line(e)}") from e
        except duckdb.Error as e:
            raise NotComputed(_find_first_line(e)) from None
        return [column.combine_chunks() for column in found.columns]


def _find_first_line(error: Exception) -> str:
    """Return what an error of DuckDB says, without its kind and the query that it repeats."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text.partition(" Error: ")[2] or text
