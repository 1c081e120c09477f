"""Lists of numbers as pgvector's vectors, with the option `vectors`.

A vector is held as an Arrow list of fixed size: of float32 for `vector`, of float16 for `halfvec`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import json_values, mask_nulls
from sinks.sql.database import ValueRefused
from tailer.errors import ConfigError, TargetRefused

#: What pgvector stores; its indexes have lower limits.
_DIMENSIONS_MAX = 16_000
#: The remedy for a type that the database does not know.
NO_EXTENSION = (
    "; run CREATE EXTENSION vector in the database, in a schema of the account's search_path"
)
_TYPE = re.compile(r"(vector|halfvec)\((\d{1,5})\)")
_NUMBERS = {"vector": pa.float32(), "halfvec": pa.float16()}


def parse_vectors(given: Mapping[str, Any], key: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the types of the columns that are vectors. Raises :class:`ConfigError`."""
    found = {}
    for column, text in given.items():
        match = _TYPE.fullmatch(text) if isinstance(text, str) else None
        if match is None or not 1 <= int(match[2]) <= _DIMENSIONS_MAX:
            raise ConfigError(
                f"option 'vectors' of sink 'postgres': {column} is {text!r}, and should be "
                f'"vector(N)" or "halfvec(N)" with up to {_DIMENSIONS_MAX} dimensions'
            )
        if column in key:
            raise ConfigError(
                f"option 'vectors' of sink 'postgres': {column} is a key column, and vectors "
                "identify no row"
            )
        found[column] = pa.list_(_NUMBERS[match[1]], int(match[2]))
    return found


def check_vectors(vectors: Mapping[str, pa.DataType], schema: pa.Schema) -> None:
    """Raise :class:`TargetRefused` for a vector that the table has no column for."""
    for column in vectors:
        if column not in schema.names:
            raise TargetRefused(
                f"the option 'vectors' of the sink names {column!r}, and the table has the "
                f"columns {', '.join(schema.names)}"
            )


def is_vector(data_type: pa.DataType) -> bool:
    """Return whether values of a type are held as a vector."""
    return bool(pa.types.is_fixed_size_list(data_type))


def format_vector(data_type: pa.FixedSizeListType) -> str:
    """Return pgvector's type of a vector."""
    kind = "halfvec" if pa.types.is_float16(data_type.value_type) else "vector"
    return f"{kind}({data_type.list_size})"


def hold_vectors(column: pa.Array, data_type: pa.FixedSizeListType) -> pa.Array:
    """Return lists as vectors, with numbers rounded to those that it has. Raises
    :class:`ValueRefused` for lists of anything else, of another length, or with a null, NaN or a
    number that is too large."""
    listed = column.type.value_type if pa.types.is_list(column.type) else pa.null()
    if not (pa.types.is_integer(listed) or pa.types.is_floating(listed)):
        raise ValueRefused(f"the type {column.type}, and a vector is a list of integers or floats")
    lengths = pc.list_value_length(column)
    row = pc.index(pc.not_equal(lengths, data_type.list_size), value=True).as_py()
    if row >= 0:
        raise ValueRefused(
            f"a list of {lengths[row]}, and {format_vector(data_type)} holds {data_type.list_size}",
            row,
        )
    numbers = column.flatten().cast(pa.float32(), safe=False)
    numbers = numbers.cast(data_type.value_type, safe=False).cast(pa.float32())
    held = pc.fill_null(pc.is_finite(numbers), fill_value=False)
    place = pc.index(held, value=False).as_py()
    if place >= 0:
        row = pc.list_parent_indices(column)[place].as_py()
        value = column.flatten()[place].as_py()
        raise ValueRefused(
            f"a list with {'null' if value is None else value}, which "
            f"{format_vector(data_type)} does not hold",
            row,
        )
    numbers = pc.add(numbers, pa.scalar(0, pa.float32())).cast(data_type.value_type)  # -0.0 is 0
    dense = pa.FixedSizeListArray.from_arrays(numbers, type=data_type)
    valid = column.is_valid()
    places = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return dense.take(pc.if_else(valid, places, pa.scalar(None, pa.int64())))


def vector_text(column: pa.FixedSizeListArray) -> pa.StringArray:
    """Return vectors as pgvector reads them."""
    text = json_values(column.cast(pa.list_(column.type.value_type)).cast(pa.list_(pa.float32())))
    return mask_nulls(text, column)


def read_vectors(texts: pa.StringArray) -> pa.StringArray:
    """Return what pgvector writes in the form of :func:`vector_text`."""
    values = [None if text is None else json.loads(text) for text in texts.to_pylist()]
    return mask_nulls(json_values(pa.array(values, pa.list_(pa.float32()))), texts)
