"""A worker that nobody profiles reports no profile; one that is profiled does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import accumulators
from pyspark.accumulators import SpecialAccumulatorIds, _deserialize_accumulator
from pyspark.sql.profiler import ProfileResultsParam, ProfileResultsParamV2

from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder
from tests.support.feeds import ID

REGISTRY = accumulators._accumulatorRegistry
FIRST, SECOND = SpecialAccumulatorIds.SQL_UDF_PROFIER, SpecialAccumulatorIds.SQL_UDF_PROFIER_V2


@pytest.fixture(autouse=True)
def as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As Spark's ``worker_run`` begins."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "s")
    before = dict(REGISTRY)
    REGISTRY.clear()
    _deserialize_accumulator(FIRST, {}, ProfileResultsParam)
    _deserialize_accumulator(SECOND, {}, ProfileResultsParamV2)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.fixture
def source(tmp_path: Path) -> TailerSource:
    table = TableBuilder(tmp_path / "t", ID)
    table.create()
    return TailerSource({"path": str(table.folder)})


def test_empty_profiles_are_left_out(source: TailerSource) -> None:
    _deserialize_accumulator(7, 0, accumulators.INT_ACCUMULATOR_PARAM)
    source.schema()
    assert [*REGISTRY] == [7], "what is another's stays"


def test_a_profile_stays(source: TailerSource) -> None:
    REGISTRY[SECOND]._value = {"f": object()}
    source.schema()
    assert [*REGISTRY] == [SECOND]


def test_a_profiled_worker_keeps_its_accumulators(source: TailerSource) -> None:
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        source.schema()
    finally:
        sys.setprofile(before)
    assert sorted(REGISTRY) == sorted([FIRST, SECOND])


def test_a_users_own_process_is_left_alone(
    source: TailerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHON_WORKER_FACTORY_SECRET")
    source.schema()
    assert sorted(REGISTRY) == sorted([FIRST, SECOND])
