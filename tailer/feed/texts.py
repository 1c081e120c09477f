"""Texts that are not UTF-8, as some writers leave them in data files: one rule for all sinks.

A sink would replace such bytes silently, write what no reader takes, or fail by an error that names
neither row nor column, each in its own way. So what leaves is always UTF-8: each byte that is not
becomes U+FFFD followed by its two hexadecimal digits, by which different texts stay different.
Decoding and the comparison of rows see the bytes as they are.
"""

from __future__ import annotations

import codecs
import logging
import struct
from collections.abc import Callable, Collection, Iterator
from copy import copy
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import COMMIT_VERSION, METADATA_FIELDS
from tailer.errors import CorruptRow, printable
from tailer.feed.progress import Observer

OnInvalidText = Literal["replace", "fail"]

#: Takes the version, the column, how many of its texts were made valid, and the first of them.
Report: TypeAlias = Callable[[int, str, int, bytes], None]

_HANDLER = "tailer.replaced"
_SHOWN_BYTES = 40


def _replace_bytes(e: UnicodeError) -> tuple[str, int]:
    if not isinstance(e, UnicodeDecodeError):
        raise e
    return "".join(f"\ufffd{byte:02X}" for byte in e.object[e.start : e.end]), e.end


codecs.register_error(_HANDLER, _replace_bytes)


class TextRule:
    """Makes the texts of rows valid, or refuses them. ``keys`` are the columns of which no value is
    ever changed: two keys could become one. ``unseen`` are columns, in lower case, whose values
    nobody sees."""

    def __init__(
        self,
        policy: OnInvalidText,
        keys: Collection[str],
        observer: Observer | None = None,
        unseen: Collection[str] = (),
    ) -> None:
        self._unseen = unseen
        self._policy = policy
        self._keys = keys
        self._observer = observer
        self._reported: tuple[int, set[str]] = (-1, set())
        self._report: Report = self.report_replaced

    def reporting_to(self, report: Report) -> TextRule:
        """Return the same rule, which tells ``report`` what :meth:`report_replaced` is told."""
        rule = copy(self)
        rule._report = report  # noqa: SLF001  # of the same class
        return rule

    def make_valid(self, rows: pa.RecordBatch, *, counted: bool = True) -> pa.RecordBatch:
        """Return the rows with valid texts alone. Raises :class:`CorruptRow`, naming version and
        column, for one that must not be changed. ``counted``: they are delivered."""
        end = rows.num_columns - len(METADATA_FIELDS)
        wrong = [
            i
            for i, column in enumerate(rows.columns[:end])
            if rows.schema.names[i].lower() not in self._unseen and not is_utf8(column)
        ]
        if not wrong:
            return rows
        columns = list(rows.columns)
        for i in wrong:
            parts = [
                self._make_part_valid(
                    rows.schema.names[i], version, columns[i].slice(first, count), counted=counted
                )
                for version, first, count in _split_by_version(rows)
            ]
            columns[i] = pa.concat_arrays(parts)
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def _make_part_valid(
        self, name: str, version: int, column: pa.Array, *, counted: bool
    ) -> pa.Array:
        """Return the values of a column in one version."""
        replaced: list[bytes] = []
        valid = repair_texts(column, replaced)
        if not replaced:
            return column
        if name in self._keys or self._policy == "fail":
            in_key = name in self._keys
            raise CorruptRow(
                f"the {'key ' if in_key else ''}column {name!r} has texts that are not UTF-8, "
                f"such as {replaced[0][:_SHOWN_BYTES]!r}"
                + (", and keys are never changed" if in_key else ""),
                version=version,
                hint="correct them in the table, or skip this version"
                + ("" if in_key else ', or set on_invalid_text = "replace"'),
            )
        if counted:
            self._report(version, name, len(replaced), replaced[0][:_SHOWN_BYTES])
        return valid

    def report_replaced(self, version: int, name: str, texts: int, example: bytes) -> None:
        """Count texts of a column that were made valid, and log the first of each version."""
        feed = "" if self._observer is None else self._observer.feed
        if self._observer is not None:
            self._observer.count_replaced_texts(texts)
        if self._reported[0] != version:
            self._reported = version, set()
        if name in self._reported[1]:
            return
        self._reported[1].add(name)
        logging.getLogger("tailer").warning(
            "%sversion %d: texts of the column %s are not UTF-8 (%r); each wrong byte becomes "
            "U+FFFD and its two hexadecimal digits",
            f"feed {feed}: " if feed else "", version, printable(name), example,
            extra={"event": "invalid_text", "version": version, "column": name, "feed": feed},
        )  # fmt: skip


def _split_by_version(rows: pa.RecordBatch) -> Iterator[tuple[int, int, int]]:
    """Yield each version of the rows, its first row and how many they are."""
    runs = pc.run_end_encode(rows.column(COMMIT_VERSION))
    first = 0
    for version, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield version, first, end - first
        first = end


def is_utf8(array: pa.Array) -> bool:
    """Return whether all texts in an array, at any depth, are UTF-8."""
    kind = array.type
    if pa.types.is_string(kind):
        return _is_ascii(array) or _is_valid(array)
    if pa.types.is_struct(kind):
        return all(is_utf8(array.field(i)) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return is_utf8(array.keys) and is_utf8(array.items)
    if pa.types.is_list(kind):
        return is_utf8(array.values)
    return True


def _is_ascii(array: pa.StringArray) -> bool:
    """Return whether the bytes of all texts are ASCII: they are looked at as one text."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return True
    ends = memoryview(offsets).cast("i")
    start, end = ends[array.offset], ends[array.offset + len(array)]
    edges = struct.pack("qq", start, end)
    whole = pa.Array.from_buffers(pa.large_string(), 1, [None, pa.py_buffer(edges), data])
    return bool(pc.string_is_ascii(whole)[0].as_py())


def _is_valid(array: pa.StringArray) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def repair_texts(array: pa.Array, replaced: list[bytes]) -> pa.Array:
    """Return an array with valid texts; those that are not are appended to ``replaced``."""
    kind, nulls = array.type, array.is_null() if array.null_count else None
    if pa.types.is_string(kind):
        if is_utf8(array):
            return array
        return pa.array(
            [_repair_text(v, replaced) for v in array.cast(pa.binary()).to_pylist()], kind
        )
    if pa.types.is_struct(kind) and kind.num_fields:
        children = [repair_texts(child, replaced) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        array = array.take(pa.arange(0, len(array)))  # from the start of its buffers on
        if pa.types.is_list(kind):
            values = repair_texts(array.values, replaced)
            return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=nulls)
        keys, items = repair_texts(array.keys, replaced), repair_texts(array.items, replaced)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=nulls)
    return array


def _repair_text(value: bytes | None, replaced: list[bytes]) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        replaced.append(value)
        return value.decode(errors=_HANDLER)
