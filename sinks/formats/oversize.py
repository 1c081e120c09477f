"""Records that are larger than a limit: their values are cut, or kept elsewhere.

It is done where a batch becomes records, so that it is the same for every broker: what a record has
depends on its row and the options alone. A batch with a record that is too large is halved to find
that record's row.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from tailer.changes import METADATA_FIELDS, ChangeBatch
from tailer.errors import ConfigError, RowsRefused, first_error
from tailer.native.rowbytes import JoinedText
from tailer.settings import Setting
from tailer.sink import OWN_PREFIX, OwnNames
from tailer.sink.encoder import Encoder, Records
from tailer.sink.own_names import add_prefix
from tailer.storage import open_target
from tailer.storage.targets import FolderTarget


def _parse_place(text: str) -> str:
    if text and "://" not in text and not Path(text).is_absolute():
        raise ValueError(text)
    return text


SETTINGS: dict[str, Setting] = {
    "value_bytes_max": Setting(
        "whole", 0, "What the value of a record has at most.", unit="bytes", least=1024, also=(0,),
        unset="what the target takes", advanced=True,
    ),
    "on_oversize": Setting(
        "text", "fail", "A larger one: refuse its row, cut its longest columns, or write it to "
        "`offload_to` and send its address.", choices=("fail", "truncate", "offload"),
        advanced=True,
    ),
    "offload_to": Setting(
        "text", "", "Where larger ones are written: a folder, or an address of S3, Azure or Google "
        "storage.", form="a whole path, or an address", parse=_parse_place, advanced=True,
    ),
    "offload_options": Setting(
        "table", {}, "Options of that store.", secret=True, advanced=True,
    ),
}  # fmt: skip
#: The column that names those that were cut, and the field of a value that is elsewhere.
TRUNCATED, OFFLOADED = "_truncated", "_offloaded"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
#: How many values are written at the same time.
_AT_ONCE = 8


class OversizeEncoder(Encoder):
    """An encoder whose records' values have at most ``limit`` bytes. ``open_target`` is where
    larger ones are written, if not ``dry``; without it they are cut, if there is a ``mark``, the
    column that says so, or else refused."""

    def __init__(
        self, inner: Encoder, limit: int, *, mark: str = "",
        open_target: Callable[[], FolderTarget] | None = None, feed: str = "", dry: bool = False,
    ) -> None:  # fmt: skip
        self._inner = inner
        self._limit = limit
        self._open_target = open_target
        self._feed = feed
        self._dry = dry
        self._mark = mark
        self.is_text = inner.is_text
        self.paired = inner.paired
        self.keeps_order = inner.keeps_order
        self.key_columns = inner.key_columns
        own: OwnNames = inner.own
        self.own = structs.replace(own, names=(*own.names, mark)) if mark else own

    def encode(self, batch: ChangeBatch) -> Records:
        if self._mark:
            batch = _add_mark(batch, self._mark)
        records = self._inner.encode(batch)
        if _measure_values(records) <= self._limit:  # by what they take at most
            return records
        records = records.whole()
        if _measure_values(records) <= self._limit:
            return records
        if self._open_target is not None:
            return self._offload_values(records, self._open_target)
        # What one row becomes depends on no other, and the order of records on all of them.
        return self._inner.encode(self._fit_rows(batch))

    # Cutting

    def _fit_rows(self, batch: ChangeBatch) -> ChangeBatch:
        """Return a batch whose rows are cut until their values fit. Raises :class:`RowsRefused` for
        one that can't be."""
        size = self._measure(batch)
        if size <= self._limit:
            return batch
        if batch.num_rows > 1:
            middle = batch.num_rows // 2
            first = self._fit_rows(batch.slice(0, middle))
            second = self._fit_rows(batch.slice(middle, batch.num_rows))
            return _join_halves(batch, first, second)
        left = ""
        if self._mark:
            cut = self._cut_row(batch, size)
            if cut is not None:
                return cut
            left = ", and its texts and bytes are not enough to cut"
        raise RowsRefused(
            f"version {batch.version}: the value of a record has {size} bytes, and at most "
            f"{self._limit} are sent{left}; exclude columns with `select`, or choose in "
            'on_oversize what becomes of them, or park such rows with on_reject = "park"'
        )

    def _measure(self, batch: ChangeBatch) -> int:
        return _measure_values(self._inner.encode(batch).whole())

    def _cut_row(self, batch: ChangeBatch, size: int) -> ChangeBatch | None:
        """Return a batch of one row with its longest columns cut as far as it takes; None if that
        is not enough."""
        names: list[str] = []
        for length, name in sorted(self._measure_columns(batch), reverse=True):

            def cut(keep: int, name: str = name, batch: ChangeBatch = batch) -> ChangeBatch:
                marked = _cut_column(batch, name, keep)
                return _set_mark(marked, self._mark, [*names, name])

            def fits(keep: int, cut: Callable[[int], ChangeBatch] = cut) -> bool:
                return self._measure(cut(keep)) <= self._limit

            least = self._measure(cut(0))
            if least <= self._limit:
                # The place of the first that does not fit, in what gets larger.
                return cut(bisect_left(range(1, length), True, key=lambda keep: not fits(keep)))
            if least < size:  # else the record does not have it
                batch, size = cut(0), least
                names.append(name)
        return None

    def _measure_columns(self, batch: ChangeBatch) -> Iterator[tuple[int, str]]:
        """Yield the bytes of each column that can be cut, in the longer image of the row."""
        rows = batch.rows
        for i, name in enumerate(rows.schema.names[: rows.num_columns - len(METADATA_FIELDS)]):
            if name not in self.key_columns and _is_cut(rows.schema.field(i).type):
                images = [rows.column(i)]
                if batch.before is not None:
                    images.append(batch.before.field(i))
                length = max(pc.binary_length(image)[0].as_py() or 0 for image in images)
                if length:
                    yield length, name

    # Writing elsewhere

    def _offload_values(self, records: Records, open_target: Callable[[], FolderTarget]) -> Records:
        """Write the values that are too large, and return records that name where they are."""
        values: pa.BinaryArray = records.whole_values()
        headers: Any = dict(records.headers)
        ids = headers["_event_id"]
        large = pc.greater(pc.binary_length(values), self._limit)
        places = pc.indices_nonzero(large).to_pylist()
        target, found, said = open_target(), {}, []
        for place in places:
            value = values[place].as_py()
            event_id = ids.decode() if isinstance(ids, bytes) else str(ids[place])
            digest = hashlib.sha256(value).hexdigest()
            # The same value has the same name, also when it is sent again.
            name = f"{_UNSAFE.sub('_', self._feed or 'feed')}/{event_id}-{digest[:16]}.json"
            found[name] = value
            url = f"{target.root.rstrip('/')}/{name}"
            at = {"url": url, "bytes": len(value), "sha256": digest}
            text = json.dumps({OFFLOADED: at, "_event_id": event_id}, separators=(",", ":"))
            said.append(text.encode())
        if not self._dry:
            anyio.run(_write_values, target, found)
        instead = pa.array(said, pa.binary())
        return replace(records, values=pc.replace_with_mask(values, large, instead))


async def _write_values(target: FolderTarget, values: Mapping[str, bytes]) -> None:
    """Write all, some at the same time."""
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def write(name: str, value: bytes) -> None:
        async with limiter:
            await target.create(name, value)

    try:
        async with anyio.create_task_group() as group:
            for name, value in values.items():
                group.start_soon(write, name, value)
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    finally:
        await target.aclose()


def limit_values(
    encoder: Encoder, format: str, options: Mapping[str, Any], *, dry: bool = False,  # noqa: A002
) -> Encoder:  # fmt: skip
    """Return an encoder, with the limit of its values that the options name. Raises
    :class:`ConfigError` for options that do not belong together."""
    limit, what, place = (options[n] for n in ("value_bytes_max", "on_oversize", "offload_to"))
    if not limit and (what != "fail" or place):
        raise ConfigError("on_oversize and offload_to need a limit: set value_bytes_max")
    if (what == "offload") != bool(place):
        raise ConfigError('offload_to and on_oversize = "offload" need one another')
    if not limit:
        return encoder
    if place and format not in ("rows", "debezium", "cloudevents"):
        raise ConfigError(
            f"the format {format!r} can't say where a value is; choose rows, debezium, cloudevents "
            'or on_oversize = "truncate"'
        )
    more: dict[str, Any] = {"dry": dry, "feed": options["name"]}
    if what == "truncate":
        more["mark"] = add_prefix(TRUNCATED, options.get("own_prefix", OWN_PREFIX))
    if place:
        more["open_target"] = partial(open_target, place, Path(), options["offload_options"])
    return OversizeEncoder(encoder, limit, **more)


def _measure_values(records: Records) -> int:
    """Return the bytes of the largest value; the most that it may have, while values are not put
    together."""
    values: Any = records.values
    sizes = values.sizes() if isinstance(values, JoinedText) else pc.binary_length(values)
    return pc.max(sizes).as_py() or 0


def _is_cut(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def _cut_column(batch: ChangeBatch, name: str, keep: int) -> ChangeBatch:
    """Return a batch of one row without what a column has behind ``keep`` bytes."""
    at = batch.rows.schema.names.index(name)
    rows = batch.rows.set_column(at, batch.rows.schema.field(at), _cut(batch.rows.column(at), keep))
    before = batch.before
    if before is not None:
        fields = before.flatten()
        fields[at] = _cut(fields[at], keep)
        before = pa.StructArray.from_arrays(
            fields, fields=before.type.fields, mask=before.is_null()
        )
    return structs.replace(batch, rows=rows, before=before)


def _cut(column: pa.Array, keep: int) -> pa.Array:
    value = column[0].as_py()
    if isinstance(value, str):  # to whole characters
        value = value.encode()[:keep].decode(errors="ignore")
    return pa.array([None if value is None else value[:keep]], column.type)


def _add_mark(batch: ChangeBatch, mark: str) -> ChangeBatch:
    """Return the rows with the column that names those that were cut, of none."""
    data_type, rows = pa.list_(pa.string()), batch.rows
    at = rows.num_columns - len(METADATA_FIELDS)
    return structs.replace(
        batch,
        rows=rows.add_column(at, mark, pa.nulls(rows.num_rows, data_type)),
        before=_add_field(batch.before, mark, data_type),
        partner=_add_field(batch.partner, mark, data_type),
    )


def _set_mark(batch: ChangeBatch, mark: str, names: Sequence[str]) -> ChangeBatch:
    rows = batch.rows
    found = pa.array([names] * rows.num_rows, pa.list_(pa.string()))
    at = rows.schema.names.index(mark)
    return structs.replace(batch, rows=rows.set_column(at, mark, found))


def _add_field(image: pa.StructArray | None, name: str, data_type: pa.DataType) -> Any:
    if image is None:
        return None
    fields = [*image.type.fields, pa.field(name, data_type)]
    columns = [*image.flatten(), pa.nulls(len(image), data_type)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=image.is_null())


def _join_halves(batch: ChangeBatch, first: ChangeBatch, second: ChangeBatch) -> ChangeBatch:
    """Return a batch with the rows of its halves, of which only values differ."""
    columns = [
        pa.concat_arrays([one, other])
        for one, other in zip(first.rows.columns, second.rows.columns, strict=True)
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=batch.rows.schema)
    before = batch.before
    if before is not None:
        before = pa.concat_arrays([first.before, second.before])
    return structs.replace(batch, rows=rows, before=before)
