"""The encoder contract: from a batch of changes to the records of a message broker.

An encoder turns a :class:`ChangeBatch` into arrays of keys, values and headers, by columns; the
sink behind it puts them on the wire. It has no state but its configuration and, for Avro, the
schema ids that a registry gave: the same batch gives the same bytes on every run.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailer.changes import ChangeBatch
from tailer.errors import ConfigError
from tailer.sink import take_options

__all__ = ["FORMATS", "Encoder", "Header", "Records", "Registry", "encoder_options", "load_encoder"]

#: The formats, by the name that the configuration gives them.
FORMATS = ("rows", "debezium", "cloudevents", "avro", "arrow")

#: A record header: its name, and one value for all records (bytes) or one for each (a string or
#: binary array; null where that record does not have the header).
Header = tuple[str, pa.Array | bytes]


@dataclass(frozen=True, slots=True)
class Records:
    """What is to be sent for one batch, in order. All arrays have the same length.

    ``keys`` (binary, or None: no record has a key) and ``values`` (binary; null is a tombstone)
    are as they go on the wire, and so is every header. ``timestamp_ms`` is the commit's time, the
    same for all. ``partitions`` (int32), where it is given, overrules the sink's partitioner.

    There may be more records than rows in the batch (tombstones; an update that changes the key)
    or fewer (``arrow``: one for the batch); none for an empty batch.
    """

    keys: pa.BinaryArray | None
    values: pa.BinaryArray
    headers: tuple[Header, ...]
    timestamp_ms: int
    partitions: pa.Int32Array | None = None

    @property
    def num_records(self) -> int:
        """How many records there are."""
        return len(self.values)

    def take(self, places: pa.Array) -> Records:
        """Those at these places (integers), in their order."""
        return Records(
            None if self.keys is None else self.keys.take(places),
            self.values.take(places),
            tuple(
                (name, value if isinstance(value, bytes) else value.take(places))
                for name, value in self.headers
            ),
            self.timestamp_ms,
            None if self.partitions is None else self.partitions.take(places),
        )


class Encoder(typing.Protocol):
    """One format with its options. Pure and synchronous: it runs in a worker thread."""

    #: Whether it wants an update as one row with ``ChangeBatch.before``; a sink that uses it has
    #: an attribute ``paired`` of that value, and the feed pairs for it.
    paired: bool
    #: The columns that a record's key is made of; empty: records have no key.
    key_columns: tuple[str, ...]

    def encode(self, batch: ChangeBatch) -> Records:
        """The records of a batch.

        Raises :class:`TableError` naming the version where a key column is missing or a value
        can't be written, :class:`SinkRejected` where a schema registry refuses the schema and
        :class:`TransientError` where it does not answer.
        """


class Registry(typing.Protocol):
    """A schema registry, as an encoder uses it."""

    def register(self, subject: str, schema: str) -> int:
        """The id of an Avro schema (its JSON text) under a subject, registered if it is new.

        Raises :class:`SinkRejected` if the registry refuses the schema as incompatible,
        :class:`TransientError` if it does not answer.
        """


#: What every format takes. ``name`` is the feed's name and ``topic`` the topic's, which the sink
#: fills in; ``table`` the table's name in the events, if not the one in its metadata.
_COMMON: dict[str, tuple[type, Any]] = {
    "key": (list, []),
    "tombstones": (bool, False),
    "name": (str, ""),
    "topic": (str, ""),
    "table": (str, ""),
}
_OWN: dict[str, dict[str, tuple[type, Any]]] = {
    "rows": {"ids": (bool, False)},
    "debezium": {"schema": (bool, False)},
    "cloudevents": {"mode": (str, "structured")},
    "avro": {
        "registry": (dict, {}),
        "subjects": (str, "topic"),
        "envelope": (str, "rows"),
    },
    "arrow": {"ids": (bool, False), "record_bytes_max": (int, 900_000)},
}


def encoder_options(format: str) -> dict[str, tuple[type, Any]]:  # noqa: A002  # the option's name
    """The options of a format: type and default of each, as :func:`tailer.sink.take_options` takes
    them. Raises :class:`ConfigError` for a format that there is not."""
    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; there are: {', '.join(FORMATS)}")
    return {**_COMMON, **_OWN.get(format, {})}


def load_encoder(
    format: str,  # noqa: A002  # the option's name
    options: Mapping[str, Any],
    registry: Registry | None = None,
    folder: Path | None = None,
) -> Encoder:
    """The encoder of a format with its options (:func:`encoder_options`).

    ``registry`` stands in for the one that the options name; ``folder`` is what its files are
    relative to. Raises :class:`ConfigError` naming the format or the option that is wrong.
    """
    taken = take_options(format, options, encoder_options(format), what="format")
    key = tuple(taken["key"])
    if not all(isinstance(name, str) for name in key):
        raise ConfigError(f"option 'key' of format {format!r} is not a list of column names")
    if taken["tombstones"] and not key:
        raise ConfigError("tombstones need a key: name its columns in the option 'key'")
    return _made(format, key, taken, registry, folder)


def _made(
    format: str,  # noqa: A002
    key: tuple[str, ...],
    taken: Mapping[str, Any],
    registry: Registry | None,
    folder: Path | None,
) -> Encoder:
    common = {"tombstones": taken["tombstones"]}
    if format == "debezium":
        from sinks.encode.debezium import DebeziumEncoder

        names = {name: taken[name] for name in ("schema", "name", "table")}
        return DebeziumEncoder(key, **names, **common)
    if format == "cloudevents":
        from sinks.encode.cloudevents import CloudEventsEncoder

        binary = _choice(format, "mode", taken, ("structured", "binary")) == "binary"
        return CloudEventsEncoder(key, binary=binary, table=taken["table"], **common)
    if format == "avro":
        return _avro(key, taken, registry, folder)
    if format == "arrow":
        from sinks.encode.arrow import ArrowEncoder

        if key:
            raise ConfigError("format 'arrow' has no keys: rows of many keys are in one record")
        return ArrowEncoder(ids=taken["ids"], record_bytes_max=taken["record_bytes_max"])
    from sinks.encode.rows import RowsEncoder

    return RowsEncoder(key, ids=taken["ids"], **common)


def _avro(
    key: tuple[str, ...],
    taken: Mapping[str, Any],
    registry: Registry | None,
    folder: Path | None,
) -> Encoder:
    from sinks.encode.avro import AvroEncoder
    from sinks.encode.registry import load_registry

    subjects = _choice("avro", "subjects", taken, ("topic", "record", "topic_record"))
    debezium = _choice("avro", "envelope", taken, ("rows", "debezium")) == "debezium"
    if registry is None:
        registry = load_registry(taken["registry"], folder)
    return AvroEncoder(
        registry,
        key,
        topic=taken["topic"],
        subjects=subjects,  # type: ignore[arg-type]  # one of the choices
        debezium=debezium,
        tombstones=taken["tombstones"],
        name=taken["name"],
        table=taken["table"],
    )


def _choice(
    format: str,  # noqa: A002
    option: str,
    taken: Mapping[str, Any],
    choices: tuple[str, ...],
) -> str:
    value = taken[option]
    if value not in choices:
        raise ConfigError(
            f"option {option!r} of format {format!r} is {value!r}; it is one of: "
            f"{', '.join(choices)}"
        )
    return str(value)
