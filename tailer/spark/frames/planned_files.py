"""Planned files as a frame that Spark's own Parquet reader reads, each with its facts.

Spark knows a file's facts as the values of its partition, so they cost nothing for a row. Its own
kinds of partitions are folders; one of files is a class in Java (``PlannedFiles.java``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tailer.spark.frames.compiled import java_session, maker_of
from tailer.spark.types import quote_name

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
    return _wrap_frame(spark, session.baseRelationToDataFrame(relation))


def frame_of_pieces(
    spark: SparkSession,
    facts: StructType,
    options: Mapping[str, str],
    tasks: Sequence[Sequence[PlannedFile]],
) -> DataFrame:
    """Return the files' facts, and the column ``piece`` with their bytes in their order, perhaps
    with a line's end after the last: a partition for each task, which reads its files.

    Spark's reader of whole files holds each several times in memory. Its text reader holds a line,
    and leaves its bytes as they are, but for the mark that text may begin with, and no file of a
    table does: there is no other one that reads a file in pieces.
    """
    given = json.dumps({**options, "lineSep": "\n"})
    maker = maker_of(spark, "PlannedFiles")
    lines = maker.lines(java_session(spark), facts.json(), given, json.dumps(tasks))
    piece = "concat(CAST(value AS BINARY), X'0A') AS piece"
    return _wrap_frame(spark, lines).selectExpr(*map(quote_name, facts.names), piece)


def _wrap_frame(spark: SparkSession, java: Any) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame as Frame

    return Frame(java, spark)
