"""Planned files as a frame that Spark's own Parquet reader reads, each with its facts.

Spark knows a file's facts as the values of its partition, so they cost nothing for a row. Its own
kinds of partitions are folders; one of files is a class in Java (``PlannedFiles.java``). It lives
in the driver alone, and the compiler that Spark has for its queries compiles it there, in a
twentieth of a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SOURCE = "PlannedFiles.java"
_MAKER = "tailer.spark.PlannedFiles$Maker"


class PlannedFile(NamedTuple):
    """A file: its address, its bytes, the milliseconds of its last change, and its facts as texts.

    A fact that is a timestamp is in microseconds, one that is binary in hexadecimal digits, and all
    others are as in a cast of Spark's.
    """

    address: str
    size: int
    changed_ms: int
    facts: tuple[str | None, ...]


def java_session(spark: SparkSession) -> Any:
    """Return Java's session; None in a client of Spark Connect, which has none."""
    return getattr(spark, "_jsparkSession", None)


def frame_of_files(
    spark: SparkSession,
    schema: StructType,
    facts_schema: StructType,
    options: Mapping[str, str],
    planned: Iterable[PlannedFile],
) -> DataFrame:
    """Return the files' rows: the columns of ``schema``, which the files have, then their facts.

    No column is in both schemas. ``options`` are those of Spark's Parquet reader.
    """
    from pyspark.sql.classic.dataframe import DataFrame as Frame

    session = java_session(spark)
    maker = _maker(spark.sparkContext._jvm)  # noqa: SLF001  # as Spark's own modules reach Java
    relation = maker.relation(
        session, schema.json(), facts_schema.json(), json.dumps(options), json.dumps([*planned])
    )
    return Frame(session.baseRelationToDataFrame(relation), spark)


@lru_cache(maxsize=1)
def _maker(jvm: Any) -> Any:
    """Return what makes relations, compiled once for a Java process."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(files(__package__).joinpath(_SOURCE).read_text(encoding="utf-8"))
    return compiler.getClassLoader().loadClass(_MAKER).newInstance()
