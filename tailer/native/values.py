"""Arrow's arrays of Python's values, made of their bytes.

``pa.array`` and ``pa.scalar`` ask whether a value is one of pandas', and load pandas for that where
it is installed: longer than a small read takes. So what every read makes is made here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa

#: Python's names of whole numbers, by their bits.
_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}


def make_texts(values: Sequence[str]) -> pa.StringArray:
    """Return an array of texts; none of them is missing."""
    encoded = [value.encode() for value in values]
    ends = array("i", [0, *accumulate(map(len, encoded))])
    return pa.StringArray.from_buffers(
        len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))
    )


def make_integers(values: Sequence[int], data_type: pa.DataType) -> pa.Array:
    """Return an array of whole numbers, or of times as whole numbers; none of them is missing."""
    stored = pa.py_buffer(array(_CODES[data_type.bit_width], values))
    return pa.Array.from_buffers(data_type, len(values), [None, stored])


def make_flags(values: Sequence[bool]) -> pa.BooleanArray:
    """Return an array of truth values; none of them is missing."""
    return make_integers(values, pa.int8()).cast(pa.bool_())
