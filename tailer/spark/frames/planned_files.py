"""Planned files as a frame that Spark's own Parquet reader reads, each with its facts.

Spark knows a file's facts as the values of its partition, so they cost nothing for a row. Its own
kinds of partitions are folders; one of files is a class in Java (``PlannedFiles.java``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailer.spark.frames.compiled import java_session, maker_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class PlannedFile(NamedTuple):
    """A file: its address, its bytes, the milliseconds of its last change, and its facts as texts.

    A fact that is a timestamp is in microseconds, one that is binary in hexadecimal digits, and all
    others are as in a cast of Spark's.
    """

    address: str
    size: int
    changed_ms: int
    facts: tuple[str | None, ...]


class Columns(NamedTuple):
    """What the files have: ``schema`` by the names of the frame, ``read`` the same by the names, at
    all levels, and with ``by_id`` the ids, in the files. No column of it is in ``facts`` too."""

    schema: StructType
    read: StructType
    facts: StructType
    by_id: bool


def frame_of_files(
    spark: SparkSession,
    columns: Columns,
    options: Mapping[str, str],
    planned: Iterable[PlannedFile],
) -> DataFrame:
    """Return the files' rows: the columns that the files have, then their facts. ``options`` are
    those of Spark's Parquet reader."""
    from pyspark.sql.classic.dataframe import DataFrame as Frame

    session = java_session(spark)
    maker = maker_of(spark, "PlannedFiles")
    relation = maker.relation(
        session,
        columns.schema.json(),
        columns.read.json(),
        columns.by_id,
        columns.facts.json(),
        json.dumps(options),
        json.dumps([*planned]),
    )
    return Frame(session.baseRelationToDataFrame(relation), spark)


def frame_of_contents(
    spark: SparkSession,
    facts: StructType,
    options: Mapping[str, str],
    tasks: Sequence[Sequence[PlannedFile]],
) -> DataFrame:
    """Return the files' bytes as the column ``content``, then their facts: a partition for each
    task, which reads its files."""
    from pyspark.sql.classic.dataframe import DataFrame as Frame

    maker, session = maker_of(spark, "PlannedFiles"), java_session(spark)
    return Frame(
        maker.contents(session, facts.json(), json.dumps(options), json.dumps(tasks)), spark
    )
