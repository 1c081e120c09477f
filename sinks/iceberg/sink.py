"""The Iceberg sink: a copy of a table (a mirror), or a log of its changes, in an Iceberg table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from sinks.iceberg.patches import patch_pyiceberg
from sinks.iceberg.table import FAULTS, IcebergTarget
from sinks.iceberg.types import check_names
from sinks.shared.change_rows import check_type
from sinks.shared.options import make_table_settings
from sinks.shared.table_sink import TableSink
from tailer.changes import is_arrow_variant
from tailer.settings import REQUIRED, Setting


def _parse_name(text: str) -> str:
    # The package takes a table's place for a URL: what follows ? or # in it would get lost.
    if "." not in text or not all(text.split(".")) or re.search(r"[\0?#]", text):
        raise ValueError(text)
    return text


def _parse_properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties by their names. TOML makes of `s3.endpoint = "..."` a table `s3`, of
    which the package takes no notice: rows would go to another store."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TABLES:
            more = {name: value}
        elif isinstance(value, Mapping):
            more = {f"{name}.{inner}": each for inner, each in _parse_properties(value).items()}
        elif isinstance(value, bool):
            more = {name: str(value).lower()}
        elif isinstance(value, str | int | float):
            more = {name: str(value)}
        else:
            raise ValueError(name)
        if more.keys() & found.keys():
            raise ValueError(name)
        found |= more
    return found


#: Properties of a REST catalog that are tables for the package too.
_TABLES = ("auth", "ssl")
SETTINGS: dict[str, Setting] = {
    "table": Setting("text", REQUIRED, "The target table, in a namespace.",
        form="namespace.name, without ? and #", parse=_parse_name),
    **make_table_settings(("mirror", "log")),
    "catalog": Setting(
        "table", {}, "The catalog, by pyiceberg's properties: `name`, `type`, `uri`, `warehouse`, "
        "and those of its store.", secret=True, parse=_parse_properties,
        unset="pyiceberg's own configuration",
    ),
}  # fmt: skip


class IcebergSink(TableSink):
    """A copy of a table, or a log of its changes, in an Iceberg table, exactly once."""

    settings = SETTINGS
    faults = FAULTS
    kind = "iceberg"
    _target: IcebergTarget

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> IcebergSink:  # noqa: ARG003
        """Create the sink. Options: :data:`SETTINGS`."""
        connect = partial(_open_catalog, dict(options["catalog"]))
        target = IcebergTarget(options["table"], connect)
        more = {name: options[name] for name in ("mode", "own_prefix")}
        return cls(target, key=tuple(options["key"]), **more)

    def check_columns(self, schema: pa.Schema) -> None:
        for column in schema:
            if not is_arrow_variant(column.type):  # which becomes text
                check_type(column.name, column.type, "this table")
        check_names(schema)

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:  # noqa: ARG002  # the columns are checked
        """Ask the catalog for the table; rights on a store are only visible by a write."""
        await anyio.to_thread.run_sync(self._ask_catalog)

    def _ask_catalog(self) -> None:
        with self._target.translate_errors():
            try:
                self._target.catalog.load_table(self._target.name)
            except NoSuchTableError:
                return


patch_pyiceberg()


def _open_catalog(properties: dict[str, Any]) -> Catalog:
    named = dict(properties)
    return load_catalog(named.pop("name", "default"), **named)
