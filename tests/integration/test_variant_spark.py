"""Variants that real Spark wrote, plain and shredded in many ways, read as Spark reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sinks.jsonl import batch_lines
from tailer.delta.arrow_types import VARIANT
from tailer.testing.table import TableBuilder
from tests.support.feeds import batches
from tests.support.variants import parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHREDDED = "spark.sql.variant.writeShredding.enabled"
SCHEMA = "spark.sql.variant.forceShreddingSchemaForTest"
INFERRED = "spark.sql.variant.inferShreddingSchema"

# Of each type that Spark can put into a variant, as SQL, and as it stands in a line.
SCALARS = {
    "NULL": "null",
    "true": "true",
    "7Y": "7",
    "-300S": "-300",
    "70000": "70000",
    "-9223372036854775808L": "-9223372036854775808",
    "1.50BD": "1.50",
    "CAST(-0.000000000012 AS DECIMAL(18, 12))": "-0.000000000012",
    "CAST('-12345678901234567890.123456789012345678' AS DECIMAL(38, 18))":
        "-12345678901234567890.123456789012345678",
    "0.1D": "0.1",
    "1e300D": "1e+300",
    "CAST('NaN' AS DOUBLE)": '"NaN"',
    "CAST('-Infinity' AS FLOAT)": '"-Infinity"',
    "CAST(0.1 AS FLOAT)": "0.1",
    "DATE '0001-01-01'": '"0001-01-01"',
    "DATE '1969-12-31'": '"1969-12-31"',
    "TIMESTAMP '2024-02-29 23:59:59.000007'": '"2024-02-29T23:59:59.000007Z"',
    "TIMESTAMP_NTZ '1583-01-01 00:00:00'": '"1583-01-01T00:00:00.000000"',
    "'größe'": '"größe"',
    "repeat('x', 64)": json.dumps("x" * 64),
    "X'00FF'": '"AP8="',
    "array(1, 2)": "[1,2]",
    "to_variant_object(map('b', 1, 'a', 2))": '{"a":2,"b":1}',
}  # fmt: skip

DOCUMENTS = [
    '{"a": 1, "b": "x", "c": {"d": 1.25, "e": [1, 2, "z"]}}',
    '{"a": "no", "zz": {"y": 1, "a": 2}, "b": null}',
    '{"c": {"e": [], "d": 100, "f": true}, "a": 9223372036854775807}',
    '{"c": 5, "b": "' + "l" * 80 + '", "ä": [{"a": {"a": []}}]}',
    '{"a": 1.5, "c": {}}',
    "{}",
    "[]",
    "null",
    '[1, "x", null, {"a": 1}]',
    "12345678901234567890.5",
    '"text"',
    '{"x": ' * 60 + "1" + "}" * 60,
]

SCHEMAS = [
    "",
    "a bigint, b string, c struct<d decimal(9,2), e array<int>>",
    "a decimal(38,10), c struct<e array<string>, f boolean>, zz struct<y tinyint>, new string",
    "c variant, b variant",
    "array<struct<a int>>",
    "string",
    "double",
]


@contextmanager
def conf(spark: SparkSession, **settings: str) -> Iterator[None]:
    """Spark's settings for a while; a key's dots are its own."""
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


def write(spark: SparkSession, folder: Path, schema: str, expressions: list[str]) -> Path:
    """A table with one variant a row, shredded if there is a schema.

    With a forced schema Spark can't write tables of more columns.
    """
    table = folder / "table"
    rows = " UNION ALL ".join(
        f"SELECT {i} AS id, CAST({text} AS VARIANT) AS v" for i, text in enumerate(expressions)
    )
    shredding = {SHREDDED: str(bool(schema)).lower(), INFERRED: "false"}
    with conf(spark, **shredding, **({SCHEMA: schema} if schema else {})):
        spark.sql(
            f"CREATE TABLE delta.`{table}` USING delta "
            f"TBLPROPERTIES ('delta.enableVariantShredding' = '{bool(schema)}') AS "
            f"SELECT id, v FROM ({rows})"
        )
    return table


def spark_rows(spark: SparkSession, table: Path, folder: Path) -> dict[int, dict[str, Any]]:
    """What Spark reads from the table, by id: the variants' bytes, and their JSON as ``text``."""
    with conf(spark, **{SHREDDED: "false"}):
        frame = spark.read.format("delta").load(str(table))
        frame.selectExpr("*", "to_json(v) AS text").write.parquet(str(folder / "answer"))
    files = sorted((folder / "answer").glob("*.parquet"))
    return {row["id"]: row for f in files for row in pq.ParquetFile(f).read().to_pylist()}


def is_shredded(table: Path) -> bool:
    files = list(table.glob("*.parquet"))
    assert files
    return all("typed_value" in str(pq.ParquetFile(f).schema) for f in files)


def lines(table: Path) -> dict[int, str]:
    """The lines of the table's events, by id."""
    text = b"".join(bytes(batch_lines(b, ids=False)) for b in batches_of(table)).decode()
    return {json.loads(line)["id"]: line for line in text.splitlines()}


def batches_of(table: Path) -> list[Any]:
    return batches(TableBuilder(table, pa.schema([])))


def rows_of(table: Path) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for batch in batches_of(table) for row in batch.rows.to_pylist()}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_documents_are_read_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path, schema: str
) -> None:
    texts = ["'" + text.replace("'", "''") + "'" for text in DOCUMENTS]
    table = write(spark, tmp_path, schema, [*(f"parse_json({text})" for text in texts), "NULL"])
    assert is_shredded(table) is bool(schema)
    expected, found, text_of = spark_rows(spark, table, tmp_path), rows_of(table), lines(table)
    assert found.keys() == expected.keys()
    for number, row in expected.items():
        assert found[number]["v"] == row["v"], number
        if row["text"] is not None:
            assert parsed(text_of[number])["v"] == parsed(row["text"])


TYPED = ["", "boolean", "tinyint", "bigint", "decimal(9,2)", "decimal(18,12)", "decimal(38,18)",
         "float", "date", "timestamp", "timestamp_ntz", "binary", "string"]  # fmt: skip


@pytest.mark.parametrize("schema", TYPED)
def test_each_type_is_read_as_spark_reads_it(
    spark: SparkSession, tmp_path: Path, schema: str
) -> None:
    table = write(spark, tmp_path, schema, list(SCALARS))
    assert is_shredded(table) is bool(schema)
    expected, found, text_of = spark_rows(spark, table, tmp_path), rows_of(table), lines(table)
    for number, (expression, text) in enumerate(SCALARS.items()):
        assert found[number]["v"] == expected[number]["v"], expression
        # As numbers: a shredded decimal's scale is that of its column, no more its own.
        assert parsed(text_of[number])["v"] == parsed(text), expression


def test_spark_s_own_choice_of_columns_is_read(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    with conf(spark, **{SHREDDED: "true", INFERRED: "true"}):
        spark.sql(
            f"CREATE TABLE delta.`{table}` USING delta "
            "TBLPROPERTIES ('delta.enableVariantShredding' = 'true') AS "
            "SELECT id, v, named_struct('v', v) AS s, array(v) AS l FROM (SELECT id, parse_json("
            """concat('{"n":', id, ',"t":["', id, '"],"o":{"d":', id / 4, '}}')) AS v """
            "FROM range(500))"
        )
    assert is_shredded(table)
    expected, found = spark_rows(spark, table, tmp_path), rows_of(table)
    assert len(found) == 500
    assert {n: found[n]["v"] for n in found} == {n: row["v"] for n, row in expected.items()}
    assert {n: found[n]["s"] for n in found} == {n: row["s"] for n, row in expected.items()}
    assert {n: found[n]["l"] for n in found} == {n: row["l"] for n, row in expected.items()}


def test_shredding_a_table_anew_is_no_change(spark: SparkSession, tmp_path: Path) -> None:
    texts = [f"parse_json('{text}')" for text in DOCUMENTS]
    table = write(spark, tmp_path, "", [*texts, "NULL"])
    with conf(spark, **{SHREDDED: "true", INFERRED: "false", SCHEMA: SCHEMAS[1]}):
        spark.sql(
            f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES "
            "('delta.enableVariantShredding' = 'true')"
        )
        spark.sql(
            f"INSERT OVERWRITE delta.`{table}` SELECT id, "
            "CASE WHEN id = 2 THEN parse_json('2') ELSE v END "
            f"FROM delta.`{table}`"
        )
    rows = [row for batch in batches_of(table) for row in batch.rows.to_pylist()]
    last = max(row["_commit_version"] for row in rows)
    changes = [(r["id"], r["_change_type"]) for r in rows if r["_commit_version"] == last]
    assert sorted(changes) == [(2, "delete"), (2, "insert")]


def test_spark_reads_what_was_put_together(spark: SparkSession, tmp_path: Path) -> None:
    table = write(spark, tmp_path, SCHEMAS[1], [f"parse_json('{text}')" for text in DOCUMENTS])
    expected = {n: row["text"] for n, row in spark_rows(spark, table, tmp_path).items()}
    copy = TableBuilder(tmp_path / "copy", pa.schema([("id", pa.int32()), ("v", VARIANT)]))
    features = {"readerFeatures": ["variantType"], "writerFeatures": ["variantType"]}
    copy.create(copy.protocol(3, 7, **features))
    copy.insert([{"id": n, "v": row["v"]} for n, row in rows_of(table).items()])
    frame = spark.read.format("delta").load(str(copy.folder))
    found = {row.id: row.text for row in frame.selectExpr("id", "to_json(v) AS text").collect()}
    assert found == expected
    assert len(found) == len(DOCUMENTS)
