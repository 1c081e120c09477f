"""Conversion of Delta's types to Spark's, and of our Arrow arrays to the types that Spark checks
for.

All data columns are nullable, as when Spark itself reads Delta: a table's constraints bind its
writers, and rows of an older schema lack the columns of a newer one. The metadata columns are not
nullable: each change has them, and Spark's code for a row needs no null check for each.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as s

from tailer.delta.arrow_types import is_arrow_variant
from tailer.delta.char import char_length
from tailer.delta.types import ArrayType, DataType, MapType, PrimitiveType, StructType


def spark_type(data_type: DataType) -> s.DataType:
    """Return the Spark type of a Delta type."""
    match data_type:
        case StructType(fields):
            return s.StructType([s.StructField(f.name, spark_type(f.type)) for f in fields])
        case ArrayType(element):
            return s.ArrayType(spark_type(element))
        case MapType(key, value):
            return s.MapType(spark_type(key), spark_type(value))
        case PrimitiveType(name):
            return _convert_primitive(name, data_type)


def _convert_primitive(name: str, data_type: PrimitiveType) -> s.DataType:
    if name.startswith("decimal"):
        digits = name.removeprefix("decimal").strip("() ") or "10,0"
        precision, _, scale = digits.partition(",")
        return s.DecimalType(int(precision), int(scale or 0))
    if char_length(data_type) is not None:
        return s.StringType()
    simple: dict[str, s.DataType] = {
        "string": s.StringType(),
        "long": s.LongType(),
        "integer": s.IntegerType(),
        "short": s.ShortType(),
        "byte": s.ByteType(),
        "float": s.FloatType(),
        "double": s.DoubleType(),
        "boolean": s.BooleanType(),
        "binary": s.BinaryType(),
        "date": s.DateType(),
        "timestamp": s.TimestampType(),
        "timestamp_ntz": s.TimestampNTZType(),
        "variant": s.VariantType(),
        "void": s.NullType(),
    }
    return simple[name]


def change_schema(
    data: StructType, columns: tuple[str, ...] | None, *, with_ids: bool
) -> s.StructType:
    """Return the schema of the source: data columns, the three metadata columns, and ids if
    requested."""
    fields = {f.name: f for f in data}
    wanted = [*fields] if columns is None else [name for name in columns if name in fields]
    schema = s.StructType([s.StructField(name, spark_type(fields[name].type)) for name in wanted])
    always: list[tuple[str, s.DataType]] = [
        ("_change_type", s.StringType()),
        ("_commit_version", s.LongType()),
        ("_commit_timestamp", s.TimestampType()),
    ]
    if with_ids:
        always += [("_event_id", s.StringType()), ("_origin", s.StringType())]
    for name, kind in always:
        schema.add(name, kind, nullable=False)
    return schema


def conform_array(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return an array in exactly the type that Spark compares with: same values, other labels."""
    if array.type.equals(wanted):
        return array
    if is_arrow_variant(array.type):
        parts = {"value": array.field("value"), "metadata": array.field("metadata")}
        children = [parts[f.name] for f in wanted]
        # Spark's two parts are never null, even if the variant itself is.
        filled = [child.fill_null(b"") for child in children]
        return pa.StructArray.from_arrays(filled, fields=list(wanted), mask=array.is_null())
    if pt.is_struct(array.type):
        children = [
            conform_array(array.field(i), wanted.field(i).type) for i in range(wanted.num_fields)
        ]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    if array.offset:  # a slice: arrays are put together from whole offsets only
        array = array.take(pa.arange(0, len(array)))
    if pt.is_list(array.type):
        values = conform_array(array.values, wanted.value_type)
        return pa.ListArray.from_arrays(
            array.offsets, values, type=wanted, mask=_find_null_mask(array)
        )
    if pt.is_map(array.type):
        keys = conform_array(array.keys, wanted.key_type)
        items = conform_array(array.items, wanted.item_type)
        return pa.MapArray.from_arrays(
            array.offsets, keys, items, type=wanted, mask=_find_null_mask(array)
        )
    return array.cast(wanted)


def _find_null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def quote_name(name: str) -> str:
    """Return a name as an identifier of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
