"""The format ``protobuf``: Protobuf's binary encoding with a schema registry's wire format.

Behind the schema's id stands a zero byte, which says that the message is the first of its schema.
A registry is asked for all versions of a subject before one is registered, because they are where
the numbers of fields come from: see :mod:`sinks.formats.protobuf_schema`. What is encoded depends
on the rows and on the subject's versions, and the versions that are there keep their meaning when
others follow: so a replay, also by another process, gives the same ids and bytes, as long as
nobody deletes versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from sinks.formats.binary_parts import ValuePart
from sinks.formats.debezium import CONNECTOR, VERSION, Images, transaction_id
from sinks.formats.parts import data_columns, table_name
from sinks.formats.protobuf_schema import Field, Fields, build_fields, find_clash, has_fields
from sinks.formats.protobuf_text import ProtobufSchema, extend_schema, make_schema, parse_schema
from sinks.formats.protobuf_values import (
    encode_constant,
    encode_tag,
    field_parts,
    message_parts,
    sized_parts,
    struct_parts,
)
from sinks.formats.registry import PLACEHOLDER
from sinks.formats.schema_encoder import Framed, SchemaEncoder
from tailer.changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, ChangeBatch
from tailer.changes import Part as FilePart
from tailer.errors import TargetRefused, TransientError

_FIRST_MESSAGE = b"\x00"
_TEXT, _LONG, _FLAG = Field("string"), Field("int64"), Field("bool")
_TIMES = {"ts_ms": _LONG, "ts_us": _LONG, "ts_ns": _LONG}
_SOURCE = {
    "version": _TEXT, "connector": _TEXT, "name": _TEXT, "ts_ms": _LONG, "snapshot": _TEXT,
    "db": _TEXT, "ts_us": _LONG, "ts_ns": _LONG, "table": _TEXT, "table_id": _TEXT,
    "commit_version": _LONG, "origin": _TEXT, "index": _LONG, "row_id": _LONG, "event_id": _TEXT,
    "unpaired": _FLAG,
}  # fmt: skip
_TRANSACTION = {"id": _TEXT, "total_order": _LONG, "data_collection_order": _LONG}


class ProtobufEncoder(SchemaEncoder):
    """Protobuf records."""

    def _encode_records(self, batch: ChangeBatch, columns: pa.StructArray, part: str) -> Framed:
        wanted = _build_columns(columns.type)
        number, fields = self._find_schema(batch, part, part.title(), wanted)
        return Framed(number, [_FIRST_MESSAGE, *struct_parts(fields, columns)])

    def _encode_changes(self, batch: ChangeBatch) -> Framed:
        wanted = build_fields(batch.rows.schema)
        number, fields = self._find_schema(batch, "value", "Value", wanted)
        parts = [
            *struct_parts(fields, data_columns(batch)),
            *field_parts(fields[CHANGE_TYPE], batch.rows.column(CHANGE_TYPE)),
            _encode_constants(
                batch,
                fields,
                lambda part: {
                    COMMIT_VERSION: part.offset.version,
                    COMMIT_TIMESTAMP: part.file.timestamp_ms * 1000,
                },
            ),
        ]
        return Framed(number, [_FIRST_MESSAGE, *parts])

    def _encode_envelopes(self, batch: ChangeBatch, images: Images) -> Framed:
        row = Field(members=_build_columns(images.rows.type), shared="Value")
        source = Field(members=_SOURCE, shared="Source")
        transaction = Field(members=_TRANSACTION, shared="Transaction")
        wanted = {"before": row, "after": row, "source": source, "transaction": transaction}
        wanted |= {"op": _TEXT, **_TIMES}
        number, fields = self._find_schema(batch, "value", "Envelope", wanted)
        nothing = pa.scalar(None, images.rows.type)
        before = nothing if images.before is None else images.before
        parts = [
            *field_parts(fields["before"], pc.if_else(images.gone, images.rows, before)),
            *field_parts(fields["after"], pc.if_else(images.gone, nothing, images.rows)),
            *self._build_source(fields["source"], batch, images),
            *_build_transaction(fields["transaction"], batch),
            *field_parts(fields["op"], images.op),
            _encode_constants(batch, fields, _find_times),
        ]
        return Framed(number, [_FIRST_MESSAGE, *parts])

    def _build_source(self, field: Field, batch: ChangeBatch, images: Images) -> list[ValuePart]:
        table = table_name(batch, self.table)

        def find_constants(part: FilePart) -> dict[str, str | int]:
            return {
                "version": VERSION,
                "connector": CONNECTOR,
                "name": self.name,
                "snapshot": "true" if batch.offset.snapshot else "false",
                "db": "",
                **_find_times(part),
                "table": table,
                "table_id": batch.state.table_id,
                "commit_version": part.offset.version,
                "origin": part.file.origin,
            }

        columns = {
            "index": batch.row_indices(),
            "event_id": batch.event_ids(),
            "unpaired": images.alone,
        }
        if batch.row_ids is not None:
            columns["row_id"] = batch.row_ids
        constants = _encode_constants(batch, field.members, find_constants)
        parts = [constants, *message_parts(field.members, columns.items())]
        return [encode_tag(field), *sized_parts(parts)]

    def _find_schema(
        self, batch: ChangeBatch, part: str, message: str, wanted: Fields
    ) -> tuple[int, Fields]:
        """Return the id of the schema that fields are written by, which is registered if there is
        none, and its fields."""
        name = ".".join(filter(None, (self._build_namespace(batch), message)))
        subject = self._name_subject(part, name)
        known = (subject, name, msgspec.json.encode(wanted))
        if known not in self._known:
            self._known[known] = self._make_version(subject, name, wanted)
        number, fields = self._known[known]
        return number, fields

    def _make_version(self, subject: str, name: str, wanted: Fields) -> tuple[int, Fields]:
        """Return id and fields of a version that has the fields, which is registered if there is
        none."""
        versions = self._search_versions(subject, name, wanted)
        if versions.found is not None:
            return versions.found
        if versions.strange:
            raise TargetRefused(
                f"{versions.strange} of subject {subject!r} is not one that a feed can extend, a "
                "Protobuf message of proto3; register one that has the table's columns, or use a "
                "new topic"
            )
        schema = _extend_newest(versions, name, wanted)
        try:
            number = self.registry.register(subject, schema.text, kind="PROTOBUF")
        except TargetRefused as e:
            now = self._search_versions(subject, name, wanted)
            if now.found is not None or len(now.same) > len(versions.same):
                raise TransientError(
                    f"another process registered a schema of subject {subject!r} meanwhile"
                ) from e
            raise TargetRefused(f"{e}{versions.clash and '; ' + versions.clash}") from None
        if number == PLACEHOLDER:
            return number, schema.fields
        # What another process has registered meanwhile comes first on a replay, too.
        versions = self._search_versions(subject, name, wanted)
        if versions.found is None:
            raise TransientError(
                f"the schema registry took a schema of subject {subject!r} and does not show it"
                + (versions.clash and f", or another process registered one too: {versions.clash}")
            )
        return versions.found

    def _search_versions(self, subject: str, name: str, wanted: Fields) -> _Versions:
        """Return the first version of a subject that has the fields, as far as it contradicts no
        earlier one, and what is before it."""
        versions = _Versions()
        for version in self.registry.list_versions(subject):
            number, schema, kind = self._read_version(subject, version)
            if schema is None:
                versions.strange = f"version {version} ({kind})"
            elif schema.name != name:
                if schema.name.rpartition(".")[2] == name.rpartition(".")[2]:
                    versions.alike = schema
            elif clash := self._find_contradicted(subject, versions.same, version, schema):
                versions.clash = (
                    f"version {version} of subject {subject!r} contradicts version {clash}: delete "
                    "it if no record has its id"
                )
            else:
                versions.same[version] = schema
                if has_fields(schema.fields, wanted):
                    versions.found = number, schema.fields
                    break
        return versions

    def _find_contradicted(
        self,
        subject: str,
        earlier: Mapping[int, ProtobufSchema],
        version: int,
        schema: ProtobufSchema,
    ) -> str:
        """Return which version a schema contradicts, and how; "" if it does none."""
        known = (subject, version, tuple(earlier))
        if known not in self._known:
            found = ((i, find_clash(old.fields, schema.fields)) for i, old in earlier.items())
            self._known[known] = next((f"{i} ({said})" for i, said in found if said), "")
        return str(self._known[known])

    def _read_version(self, subject: str, version: int) -> tuple[int, ProtobufSchema | None, str]:
        """Return id, schema and kind of a version, which never change; without a schema if it is
        not understood."""
        known = (subject, version)
        if known in self._known:
            number, schema, kind = self._known[known]
            return number, schema, kind
        number, text, kind = self.registry.read_version(subject, version)
        schema = parse_schema(text) if kind == "PROTOBUF" else None
        if schema is not None:
            self._known[known] = number, schema, kind
        return number, schema, kind


class _Versions(Struct):
    """What a subject has: id and fields of the version that is looked for, those of the same
    message before it, the newest of another one with its name in another package, and the last
    that is not understood or contradicts an earlier one."""

    found: tuple[int, Fields] | None = None
    same: dict[int, ProtobufSchema] = {}
    alike: ProtobufSchema | None = None
    strange: str = ""
    clash: str = ""


def _extend_newest(versions: _Versions, name: str, wanted: Fields) -> ProtobufSchema:
    if versions.same:
        newest, *earlier = reversed(versions.same.values())
        return extend_schema(newest, name, wanted, [schema.fields for schema in earlier])
    if versions.alike is not None:
        with suppress(TargetRefused):  # of another table, it may have columns of other types
            return extend_schema(versions.alike, name, wanted)
    return extend_schema(make_schema(name), name, wanted)


def _build_columns(rows: pa.StructType) -> Fields:
    return build_fields(rows.fields)


def _find_times(part: FilePart) -> dict[str, str | int]:
    time = part.file.timestamp_ms
    return {"ts_ms": time, "ts_us": time * 1000, "ts_ns": time * 1_000_000}


def _encode_constants(
    batch: ChangeBatch, fields: Fields, find: Callable[[FilePart], Mapping[str, str | int]]
) -> ValuePart:
    """Encode fields of which all rows of a part have the same value."""
    part: ValuePart = batch.by_part(
        lambda part: b"".join(encode_constant(fields[name], v) for name, v in find(part).items())
    )
    return part


def _build_transaction(field: Field, batch: ChangeBatch) -> list[ValuePart]:
    order = pc.add(batch.row_indices(), pa.scalar(1, pa.int64()))
    orders = {"total_order": order, "data_collection_order": order}
    name = _encode_constants(batch, field.members, lambda part: {"id": transaction_id(batch, part)})
    parts = [name, *message_parts(field.members, orders.items())]
    return [encode_tag(field), *sized_parts(parts)]
