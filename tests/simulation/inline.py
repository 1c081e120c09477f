"""What stands for worker threads and for a database's start where they would only cost time.

The simulator and the protocol's fuzz use it: their tables are small, and their stores answer at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Self

import duckdb

_CONNECT = duckdb.connect


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return _CONNECT(config={"threads": 1})


def shared_duckdb(**_: object) -> duckdb.DuckDBPyConnection:
    """Return a connection to one database for all comparisons, in place of ``duckdb.connect``.

    To start a database takes 40 times as long as a connection does. What a comparison makes is
    temporary, and belongs to its connection.
    """
    return _database().cursor()


class InlinePortal:
    """A portal for work that runs where it is called: it runs an async function to its end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def call(self, func: Callable[..., Any], *args: Any) -> Any:
        """Run an async function that waits for nothing."""
        coroutine = func(*args)
        try:
            coroutine.send(None)
        except StopIteration as e:
            return e.value
        raise RuntimeError("what a worker thread waits for has to be answered at once")
