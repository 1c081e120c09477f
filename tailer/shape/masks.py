"""Masks: what is left of a column that must not be delivered."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import TableError

Mask = Literal["drop", "redact", "hash"]
REDACTED = "[redacted]"
_DIGEST_BYTES = 16


def mask_columns(
    data: Mapping[str, pa.Array], masks: Mapping[str, str], key: bytes
) -> dict[str, pa.Array]:
    """Return the columns with those masked that ``masks`` names, in lower case.

    Raises :class:`TableError` for a type that can't be hashed.
    """
    found = {}
    for name, column in data.items():
        mask = masks.get(name.lower())
        if mask == "redact":
            column = _redact_column(column)  # noqa: PLW2901  # the masked one takes its place
        elif mask == "hash":
            column = _hash_column(name, column, key)  # noqa: PLW2901
        if mask != "drop":
            found[name] = column
    return found


def _redact_column(column: pa.Array) -> pa.Array:
    """Replace all strings by one fixed string and all other values by null; keep nulls."""
    if not pa.types.is_string(column.type):
        return pa.nulls(len(column), column.type)
    return pc.if_else(
        column.is_valid(), pa.scalar(REDACTED, pa.string()), pa.scalar(None, pa.string())
    )


def _hash_column(name: str, column: pa.Array, key: bytes) -> pa.Array:
    """Hash each distinct value with keyed BLAKE2b to 32 hex digits. Equal values stay equal, so
    that they can be joined and counted; without the key, values can't be guessed by trying them."""
    if pa.types.is_nested(column.type):
        raise TableError(
            f"the column {name!r} is of a nested type and can't be hashed",
            hint="mask it with drop or redact",
        )
    coded = column.dictionary_encode()
    values = coded.dictionary
    if not pa.types.is_binary(values.type):
        # As bytes: a string in a file need not be valid UTF-8.
        values = values.cast(pa.string()).cast(pa.binary())
    digests = [None if v is None else _hash_value(v, key) for v in values.to_pylist()]
    return pa.array(digests, pa.string()).take(coded.indices)


def _hash_value(value: bytes, key: bytes) -> str:
    return blake2b(value, key=key, digest_size=_DIGEST_BYTES).hexdigest()
