"""A builder of tables for programs that write very many of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tailer.testing.actions import Action
from tailer.testing.checkpoint_files import CLASSIC_SCHEMA
from tailer.testing.table import TableBuilder

__all__ = ["RememberingBuilder"]

_FILES_MAX = 50_000
_written: dict[str, bytes] = {}


class RememberingBuilder(TableBuilder):
    """Bytes that were written once, by any builder of the process, are not made again."""

    def encode_rows(
        self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, **form: Any
    ) -> bytes:
        """See :class:`tailer.testing.table.TableBuilder`."""
        fields = [(f.name, f.type, f.metadata) for f in schema]
        make = super().encode_rows
        return _once(f"{fields} {rows} {form}", lambda: make(rows, schema, **form))

    def encode_actions(self, actions: Sequence[Action], schema: pa.Schema) -> bytes:
        """See :class:`tailer.testing.log_builder.LogBuilder`."""
        make = super().encode_actions
        if schema is not CLASSIC_SCHEMA:  # to tell others apart takes longer than to write
            return make(actions, schema)
        return _once(f"{actions}", lambda: make(actions, schema))


def _once(key: str, make: Callable[[], bytes]) -> bytes:
    found = _written.get(key)
    if found is None:
        if len(_written) > _FILES_MAX:
            _written.clear()
        found = _written[key] = make()
    return found
