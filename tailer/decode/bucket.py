"""Comparing rows in several places at once: which part of what changed each of them is to find.

Rows go to shares by a hash of their values that the engine makes, so equal rows are in one share.
What is decided for a version as a whole (whether row ids hold, whether rows can be compared at all)
every share decides by itself, on all of the files, and comes to the same.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Share", "engine_version"]


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``of`` shares of a comparison, from 0. Together they find what one alone would, each
    change once, if ``engine`` is the version of the engine for all of them."""

    number: int
    of: int
    engine: str


def engine_version() -> str:
    """The engine's version: two of one version hash alike."""
    import duckdb

    return str(duckdb.__version__)
