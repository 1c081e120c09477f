"""Patterns of tables that a catalog lists: stars within the name of a schema or a table."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable


async def find_matching_tables(
    prefix: str,
    of_schema: str,
    of_table: str,
    schemas: Callable[[], Awaitable[list[str]]],
    tables: Callable[[str], Awaitable[list[str]]],
) -> dict[str, list[str]]:
    """Return the addresses of the tables that two patterns match, by the text that the stars match:
    those of schema and table, joined by ``/``. ``prefix`` begins each address."""
    found: dict[str, list[str]] = {}
    for schema in [of_schema] if "*" not in of_schema else await schemas():
        in_schema = _match_name(of_schema, schema)
        if in_schema is None:
            continue
        for table in await tables(schema):
            if (in_table := _match_name(of_table, table)) is not None:
                text = "/".join((*in_schema, *in_table))
                found.setdefault(text, []).append(f"{prefix}{schema}.{table}")
    return found


def _match_name(pattern: str, name: str) -> tuple[str, ...] | None:
    """Return what the stars of a pattern match in a name, as one text; none without stars; None if
    the name does not match."""
    texts = [re.escape(text) for text in pattern.split("*")]
    match = re.fullmatch("(.*)".join(texts), name)
    if match is None:
        return None
    return ("-".join(match.groups()),) if match.groups() else ()
