"""Texts of partition values as CONVERT TO DELTA takes them from the names of folders: what Spark's
cast makes of them, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tailer
from tailer.delta.partitions import parse_partition_value
from tailer.delta.types import PrimitiveType
from tailer.errors import CorruptLog
from tests.golden.compare import canonical, difference

_WHOLE = ["0", "01", "+1", "-1", " 1\t", "1.0", "1.", ".5", "-.5", "1.5", "1e2", "1_0", "0x1", "1L"]
_WHOLE += ["127", "128", "-129", "32768", "2147483648", "9223372036854775808", "--1", "NULL"]
_BROKEN = [*_WHOLE, "1E-3", "1d", "1F", "1.5e1f", "NaN", "-NaN", "nan", "-nan", "+inf", "1,5"]
_BROKEN += ["-Infinity", "infinity", "1.005", "-1.005", "999.995", "99999.995", "1e400", "1e39"]
_WORDS = ["true", "FALSE", "t", "F", "y", "N", "yes", "No", "1", "0", "on", "truee", " true", "10"]
_DAYS = ["2024", "2024-6", "2024-06-5", "2024-06-05 x", "2024-06-05T", "2024-06-05x", "2024-13-01"]
_DAYS += ["2024-02-30", "24-01-01", "20240605", "1582-10-10", "0000-01-01", "-0001-01-01", "epoch"]
_DAYS += ["5881580-07-11", "5881580-07-12", "-5877641-06-23", "+10000-01-01", "99999-12-31"]
_HOURS = ["12", "1:2", "12:34", "12:34:", "12:34:56", "12:34:56.", "12:34:56.1", "24:00:00", "12Z"]
_HOURS += ["12:34:60", "12:34:56.1234567891", "12:34Z"]
_ZONES = ["Z", " Z", "UTC", " UTC", "+1", "+01", "+0130", "-01:30", "+18:00", "+18:01", "+031"]
_ZONES += ["+01:60", "+19:00"]
_TIMES = [*_DAYS, *(f"2024-06-05 {t}" for t in _HOURS), "294247-01-10 04:00:54.775807"]
_TIMES += [*(f"1969-12-31T23:59:59.9999999{z}" for z in _ZONES), "294247-01-10 04:00:54.775808"]
TEXTS = {
    **dict.fromkeys(("byte", "short", "integer", "long"), _WHOLE),
    **dict.fromkeys(("float", "double", "decimal(5,2)", "decimal(38,0)"), _BROKEN),
    "boolean": _WORDS,
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), _TIMES),
}
SPELLED = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def parsed(text: str, kind: str) -> Any:
    """What is read; None for what is refused."""
    try:
        return canonical(pa.array([parse_partition_value(text, PrimitiveType(kind))]))[0]
    except CorruptLog:
        return None


@pytest.mark.parametrize("kind", TEXTS)
def test_each_text_is_what_spark_casts_it_to(kind: str, spark: SparkSession) -> None:
    texts = TEXTS[kind]
    values = ", ".join(f"({i}, '{text}')" for i, text in enumerate(texts))
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")  # as Delta casts them
    asked = f"SELECT cast(s AS {SPELLED.get(kind, kind)}) v FROM VALUES {values} t(i, s) ORDER BY i"
    casted = canonical(session.sql(asked).toArrow().column("v"))
    assert {t: parsed(t, kind) for t in texts} == dict(zip(texts, casted, strict=True))


def test_a_converted_table_has_sparks_rows(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for i, names in enumerate(["n=1.0/b=yes/d=2024-6/e=1.234", "n=01/b=F/d=2025/e=.5"]):
        (folder / names).mkdir(parents=True)
        pq.write_table(pa.table({"id": [i]}), folder / names / "a.parquet")
    spark.sql(
        f"CONVERT TO DELTA parquet.`{folder}` "
        "PARTITIONED BY (n INT, b BOOLEAN, d DATE, e DECIMAL(5, 2))"
    )
    rows = spark.read.format("delta").load(str(folder)).toArrow()
    assert not difference(rows, tailer.snapshot(str(folder)).read_all())
