"""The Delta sink: a copy of a table (a mirror), its history, or a log of its changes, in a Delta
table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from sinks.delta.table import FAULTS, DeltaTarget
from sinks.shared.change_rows import check_type
from sinks.shared.options import make_table_settings
from sinks.shared.table_sink import TableSink
from tailer.changes import is_arrow_variant
from tailer.errors import TargetRefused
from tailer.settings import REQUIRED, Setting
from tailer.storage.targets import LocalTarget

SETTINGS: dict[str, Setting] = {
    "path": Setting("text", REQUIRED, "The target table: a folder, or an address that deltalake "
        "accepts."),
    **make_table_settings(("mirror", "history", "log")),
    "storage_options": Setting(
        "table", {}, "Storage options of deltalake, all strings.", secret=True,
    ),
}  # fmt: skip


class DeltaSink(TableSink):
    """A copy of a table, or a log of its changes, in a Delta table, exactly once."""

    settings = SETTINGS
    faults = FAULTS
    kind = "delta"

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> DeltaSink:
        """Create the sink. Options: :data:`SETTINGS`."""
        path = options["path"]
        address = path if "://" in path else str(folder / path)
        more = {name: options[name] for name in ("mode", "own_prefix")}
        target = DeltaTarget(address, options["storage_options"])
        return cls(target, key=tuple(options["key"]), **more)

    def check_columns(self, schema: pa.Schema) -> None:
        for column in schema:
            if not is_arrow_variant(column.type):  # which becomes text
                check_type(column.name, column.type, "this table")
            for character, name in (("`", "a backtick"), ("\x00", "the character NUL")):
                if character in column.name:
                    raise TargetRefused(
                        f"the column {column.name!r} has {name} in its name, which deltalake can't "
                        "write; exclude it with the feed's option 'select'"
                    )

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:  # noqa: ARG002  # the columns are checked
        """Try the folder; rights on a store are only visible by a write."""
        address = self._target.address
        if "://" not in address:
            await LocalTarget(Path(address)).rehearse()
