"""Records that are larger than a limit: their values are cut, or kept elsewhere.

It is done where a batch becomes records, so that it is the same for every broker: what a record has
depends on its row and the options alone. A batch with a record that is too large is halved until
that record's row is alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from sinks.formats.parts import join_records
from sinks.shared.own_prefix import add_prefix
from tailer.changes import METADATA_FIELDS, ChangeBatch
from tailer.errors import ConfigError, RowsRefused
from tailer.native.rowbytes import JoinedText
from tailer.settings import Setting
from tailer.sink import OwnNames
from tailer.sink.encoder import Encoder, Records
from tailer.storage import open_target
from tailer.storage.targets import Target


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


class OversizeEncoder(Encoder):
    """An encoder whose records' values have at most ``limit`` bytes. ``open_target`` is where
    larger ones are written, if not ``dry``, and None cuts them if ``cuts``, or else refuses
    them."""

    def __init__(
        self, inner: Encoder, limit: int, *, cuts: bool = False,
        open_target: Callable[[], Target] | None = None, feed: str = "", dry: bool = False,
    ) -> None:  # fmt: skip
        self._inner = inner
        self._limit = limit
        self._cuts = cuts
        self._open_target = open_target
        self._feed = feed
        self._dry = dry
        self._mark = add_prefix(TRUNCATED, getattr(inner, "own_prefix", "_"))
        self.is_text = inner.is_text
        self.paired = inner.paired
        self.keeps_order = inner.keeps_order
        self.key_columns = inner.key_columns
        own: OwnNames = inner.own
        self.own = structs.replace(own, names=(*own.names, self._mark)) if cuts else own

    def encode(self, batch: ChangeBatch) -> Records:
        return self._encode_rows(self._add_mark(batch, None) if self._cuts else batch)

    def _encode_rows(self, batch: ChangeBatch) -> Records:
        records = self._inner.encode(batch)
        if _find_largest(records) <= self._limit:
            return records
        if batch.num_rows > 1:
            middle = batch.num_rows // 2
            halves = batch.slice(0, middle), batch.slice(middle, batch.num_rows)
            return join_records([self._encode_rows(half) for half in halves])
        if self._open_target is not None:
            return self._offload_values(records, self._open_target)
        return self._cut_row(batch, records)

    # Cutting

    def _add_mark(self, batch: ChangeBatch, names: Sequence[str] | None) -> ChangeBatch:
        """Return the rows with the column that names those that were cut in all of them."""
        rows = batch.rows
        found = pa.array([names] * rows.num_rows, pa.list_(pa.string()))
        at = rows.num_columns - len(METADATA_FIELDS)
        if self._mark in rows.schema.names:
            return structs.replace(batch, rows=rows.set_column(at - 1, self._mark, found))
        return structs.replace(
            batch,
            rows=rows.add_column(at, self._mark, found),
            before=_add_field(batch.before, self._mark, found.type),
            partner=_add_field(batch.partner, self._mark, found.type),
        )

    def _cut_row(self, batch: ChangeBatch, records: Records) -> Records:
        """Return the records of a batch of one row whose longest texts and bytes are cut until they
        fit. Raises :class:`RowsRefused` if there is nothing more to cut."""
        cut: list[str] = []
        whole = _find_largest(records)
        while (size := _find_largest(records)) > self._limit:
            length, images, name = max(self._measure_columns(batch), default=(0, 0, ""))
            if not self._cuts or not length:
                left = ", and its texts and bytes are not enough to cut" if self._cuts else ""
                raise RowsRefused(
                    f"version {batch.version}: the value of a record has {whole} bytes, and at "
                    f"most {self._limit} are sent{left}; exclude columns with `select`, or choose "
                    'in on_oversize what becomes of them, or park such rows with on_reject = "park"'
                )
            cut = [*cut, name] if name not in cut else cut
            # What is cut is at least as long in the record; the mark takes a place there too.
            less = size - self._limit + len(name.encode()) + 8
            keep = max(0, length - max(1, less // images))
            batch = _cut_column(self._add_mark(batch, cut), name, keep)
            records = self._inner.encode(batch)
        return records

    def _measure_columns(self, batch: ChangeBatch) -> list[tuple[int, int, str]]:
        """Return the bytes of each column that can be cut, in the longest image of the row, and how
        many images have some."""
        found = []
        rows = batch.rows
        for i, field in enumerate(rows.schema.names[: rows.num_columns - len(METADATA_FIELDS)]):
            images = [rows.column(i), *(
                image.field(i) for image in (batch.before, batch.partner) if image is not None
            )]  # fmt: skip
            if field not in self.key_columns and _is_cut(rows.schema.field(i).type):
                sizes = [pc.binary_length(image)[0].as_py() or 0 for image in images]
                found.append((max(sizes), sum(map(bool, sizes)), field))
        return found

    # Writing elsewhere

    def _offload_values(self, records: Records, open_target: Callable[[], Target]) -> Records:
        """Write the values that are too large, and return records that name where they are."""
        headers: Any = dict(records.whole_headers())
        ids = headers["_event_id"]
        values = records.whole_values().to_pylist()  # of one row
        for place, value in enumerate(values):
            if value is not None and len(value) > self._limit:
                event_id = ids.decode() if isinstance(ids, bytes) else str(ids[place])
                digest = hashlib.sha256(value).hexdigest()
                # The same value has the same name, also when it is sent again.
                name = f"{quote(self._feed or 'feed', safe='')}/{event_id}-{digest[:16]}.json"
                target = open_target()
                if not self._dry:
                    anyio.run(_write_value, target, name, value)
                url = f"{target.root.rstrip('/')}/{name}"
                at = {"url": url, "bytes": len(value), "sha256": digest}
                said = json.dumps({OFFLOADED: at, "_event_id": event_id}, separators=(",", ":"))
                values[place] = said.encode()
        return replace(records.whole(), values=pa.array(values, pa.binary()))


async def _write_value(target: Target, name: str, value: bytes) -> None:
    try:
        await target.create(name, value)
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
    more: dict[str, Any] = {"cuts": what == "truncate", "dry": dry, "feed": options["name"]}
    if place:
        more["open_target"] = partial(open_target, place, Path(), options["offload_options"])
    return OversizeEncoder(encoder, limit, **more)


def _find_largest(records: Records) -> int:
    values: Any = records.values
    sizes = values.sizes() if isinstance(values, JoinedText) else pc.binary_length(values)
    return pc.max(sizes).as_py() or 0


def _is_cut(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def _cut_column(batch: ChangeBatch, name: str, keep: int) -> ChangeBatch:
    """Return a batch of one row without what a column has behind ``keep`` bytes."""
    at = batch.rows.schema.names.index(name)
    rows = batch.rows.set_column(at, batch.rows.schema.field(at), _cut(batch.rows.column(at), keep))
    images = []
    for image in (batch.before, batch.partner):
        if image is not None:
            fields = image.flatten()
            fields[at] = _cut(fields[at], keep)
            kept = [image.type.field(i) for i in range(image.type.num_fields)]
            image = pa.StructArray.from_arrays(fields, fields=kept, mask=image.is_null())  # noqa: PLW2901
        images.append(image)
    return structs.replace(batch, rows=rows, before=images[0], partner=images[1])


def _cut(column: pa.Array, keep: int) -> pa.Array:
    value = column[0].as_py()
    if isinstance(value, str):  # to whole characters
        value = value.encode()[:keep].decode(errors="ignore")
    return pa.array([None if value is None else value[:keep]], column.type)


def _add_field(image: pa.StructArray | None, name: str, data_type: pa.DataType) -> Any:
    if image is None:
        return None
    fields = [
        *(image.type.field(i) for i in range(image.type.num_fields)),
        pa.field(name, data_type),
    ]
    columns = [*image.flatten(), pa.nulls(len(image), data_type)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=image.is_null())
