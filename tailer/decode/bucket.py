"""One comparison divided among several tasks: each finds the changes of one bucket of rows.

A row's bucket is a hash of its values that the engine computes, so equal rows are in one bucket.
Decisions about a version as a whole (whether row ids are valid, whether rows can be compared at
all) are made by every task, on all of the files, with the same result.
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
    """Return the engine's version: two engines of one version hash alike."""
    import duckdb

    return str(duckdb.__version__)
