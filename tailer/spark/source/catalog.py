"""A table of Spark's catalog: ``CREATE TABLE feed USING tailer OPTIONS (path '/data/orders')``.

Spark gives a source its options when such a table is made, among words of the catalog's own, and
none when it is read; all it gives then is the schema that it has kept. So the options are kept in
the schema, as metadata of the column that each schema has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailer.changes import CHANGE_TYPE
from tailer.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEPT = "tailer.options"
#: What the catalog puts before the name of each option of ``OPTIONS (...)``.
_PREFIX = "option."
#: What a catalog that anyone may read is not to keep.
_SECRET = re.compile("secret|password|token", re.IGNORECASE)


def in_catalog(options: Mapping[str, str]) -> bool:
    """Return whether these are the options of a table of the catalog."""
    return "provider" in {name.lower() for name in options}


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the source's options, of those of a table of the catalog.

    Raises :class:`ConfigError` for one with a secret.
    """
    by_lower = {name.lower(): value for name, value in options.items()}
    own = {
        name.removeprefix(_PREFIX): value
        for name, value in by_lower.items()
        if name.startswith(_PREFIX) and name != f"{_PREFIX}serialization.format"
    }
    if "path" in by_lower and "table" not in own:
        own["path"] = by_lower["path"]
    for name in own:
        if _SECRET.search(name):
            raise ConfigError(
                f"the catalog would show the option {name!r} to everyone: leave it out, and set it "
                "in the environment of Spark's processes"
            )
    return own


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema that keeps the options."""
    for field in schema.fields:
        if field.name == CHANGE_TYPE:
            field.metadata = {**field.metadata, _KEPT: dict(options)}
    return schema


def kept_options(schema: StructType) -> dict[str, str] | None:
    """Return the options that a schema keeps; None if it has none."""
    options: Any = None
    for field in schema.fields:
        if field.name == CHANGE_TYPE:
            options = field.metadata.get(_KEPT)
    return options if isinstance(options, dict) else None
