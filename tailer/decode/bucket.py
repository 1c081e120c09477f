"""One comparison divided among several tasks: each finds the changes of one bucket of rows.

A row's bucket is a hash of its values that the engine makes, so equal rows are in one bucket.
What is decided for a version as a whole (whether row ids hold, whether rows can be compared at all)
every task decides by itself, on all of the files, with the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bucket", "engine_version"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bucket ``number`` of ``of``, from 0. Together they give the changes of one comparison, each
    once, if ``engine`` is the version of the engine for all of them."""

    number: int
    of: int
    engine: str


def engine_version() -> str:
    """The engine's version: two of one version hash alike."""
    import duckdb

    return str(duckdb.__version__)
