"""How much a test tries: a sample of its cases in `make test`, all of them in `make test-slow`, and
more in `make torture`.

    @sampled
    def test_a_version_has_its_rows(...):
        for version in ends(versions):

A test of a sample is marked so, and the slow run has it once more. conftest.py marks and scales the
properties; one with a number of examples of its own says ``settings(max_examples=examples(40))``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

#: What `python -m tests slow` sets.
WHOLE_RUN = "TAILER_TESTS_WHOLE"
TORTURE = "TAILER_TORTURE_ROUNDS" in os.environ
WHOLE = TORTURE or WHOLE_RUN in os.environ
#: Of so many cases of the whole, a sample has one.
SHARE = 4
#: The fewest examples that still look for something.
EXAMPLES_MIN = 5

sampled = pytest.mark.sampled


def examples(whole: int) -> int:
    """How many examples of a property, or rounds at random."""
    return whole if WHOLE else min(whole, max(EXAMPLES_MIN, whole // SHARE))


def rest_slow(cases: Iterable[T], *quick: T) -> list[Any]:
    """Cases as parameters of tests: these are quick, and the rest is slow."""
    return [pytest.param(case, marks=[] if case in quick else pytest.mark.slow) for case in cases]


def ends(cases: Iterable[T]) -> list[T]:
    """All cases, or the first and the last."""
    listed = [*cases]
    return listed if WHOLE else [*listed[:1], *listed[1:][-1:]]
