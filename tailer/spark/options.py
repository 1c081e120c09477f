"""The options of the data source: Delta's own names, and a few of ours.

Spark passes options as text, with names in lower case. An unknown option is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from msgspec import structs

from tailer.changes import Offset, counting_id
from tailer.config.settings import FEED
from tailer.decode.options import DecodeOptions, DiffOptions
from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, OffsetError
from tailer.plan.rules import ChangeSource
from tailer.settings import Setting, SettingTable
from tailer.spark.session_zone import as_time

SchemaChange = Literal["fail", "cast"]

#: ``option("store.region", ...)`` goes to the table's store as ``region``.
STORE_PREFIX = "store."
#: So does ``option("store.secret.account_key", ...)``: Spark hides options by their names.
_HIDDEN_PREFIX = "store.secret."
#: Secrets whose names Spark's ``spark.redaction.regex`` does not have: it shows them in plans.
_SHOWN = ("account_key",)

#: What says in Delta that changes are to be read, as this source always does.
_FEED = ("readchangefeed", "readchangedata")
_SYMBOLS = ("latest", "earliest", "snapshot")
_MIB = 1024 * 1024
#: Rows of an Arrow batch: Java holds it twice.
_BATCH_ROWS_MAX = 65_536


class QueryTarget(NamedTuple):
    """The state whose schema a query's rows have, and its version."""

    state: TableState
    version: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a query. Picklable: they are sent to the executors.

    ``start`` is None, a version, ``latest``, ``earliest``, ``snapshot`` or a time; ``start_offset``
    takes a daemon's offset instead. ``ending`` is a version or a time. ``store`` may hold secrets,
    and so is never shown; ``in_session``: it is the session's access to the table.
    """

    table: str
    start: str | None = None
    start_offset: Offset | None = None
    ending: str | None = None
    max_files: int = 1000
    max_bytes: int | None = None
    max_versions: int | None = None
    ignore_deletes: bool = False
    skip_change_commits: bool = False
    fail_on_data_loss: bool = True
    change_source: ChangeSource = "auto"
    key: tuple[str, ...] = ()
    on_schema_change: SchemaChange = "fail"
    columns: tuple[str, ...] | None = None
    with_ids: bool = False
    partition_bytes_max: int = 128 * _MIB
    partitions_min: int = 2
    diff: DiffOptions = field(default_factory=DiffOptions)
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    store: Mapping[str, Any] = field(default_factory=dict, repr=False)
    in_session: bool = False

    def counting_id(self) -> str:
        """Return an id of the options that determine how the changes of a version are counted, as
        for a daemon's feed."""
        passing = (self.ignore_deletes, self.skip_change_commits)
        named = (self.change_source, self.key, None)
        return counting_id(*named, *passing)


def _parse_names(names: list[str]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(names)
    return tuple(names)


def _parse_offset(text: str) -> Offset:
    try:
        return Offset.from_json(json.loads(text))
    except OffsetError as e:
        raise ConfigError(f"option 'startingOffset' of the tailer source: {e}") from None


def _parse_start(text: str) -> str:
    symbol = text.strip().lower()
    return symbol if symbol in _SYMBOLS else _parse_version(text)


def _parse_version(text: str) -> str:
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise ValueError(text)
    return text.strip()


def _parse_time(text: str) -> str:
    return as_time(text)


_COLUMNS = "column names, separated by commas or as a JSON list, each once"
_TIME = "a time such as 2026-01-31T12:00:00Z, in the session's zone unless it says another"
SOURCE: dict[str, Setting] = {
    "path": Setting(
        "text", None, "Address of the table, as given to `load(...)`; in SQL also as `table`.",
        form="an address", elsewhere=("table",),
    ),
    "startingVersion": Setting(
        "text", None, "First version, inclusive; `snapshot` gives all rows as inserts, then the "
        "changes that follow.", form="a version, latest, earliest or snapshot", parse=_parse_start,
        unset="stream: `snapshot`; batch: required",
    ),
    "startingTimestamp": Setting(
        "text", None, "Start at the first version at or after this time.", form=_TIME,
        parse=_parse_time,
    ),
    "startingOffset": Setting(
        "text", None, "Stream: an offset of the daemon, as printed by `tailer offsets export`.",
        form="an offset of this table as JSON", parse=_parse_offset, advanced=True,
    ),
    "endingVersion": Setting(
        "text", None, "Last version, inclusive; rows have its schema, also in a stream.",
        form="a version", parse=_parse_version, unset="the newest",
    ),
    "endingTimestamp": Setting(
        "text", None, "End with the last version at or before this time.", form=_TIME,
        parse=_parse_time,
    ),
    "maxFilesPerTrigger": Setting(
        "whole", 1000, "Stream: maximum files per batch; a version may span several batches.",
        unit="files",
    ),
    "maxBytesPerTrigger": Setting(
        "whole", None, "Stream: maximum bytes per batch, but at least one file.", unit="bytes",
    ),
    "maxVersionsPerTrigger": Setting(
        "whole", None, "Stream: maximum versions per batch.", unit="versions", advanced=True,
    ),
    "ignoreDeletes": Setting(
        "flag", False, "Skip versions that only remove files, as Delta's streaming source does.",
        advanced=True,
    ),
    "skipChangeCommits": Setting(
        "flag", False, "Skip versions that delete, update, merge or overwrite, as Delta's does.",
        advanced=True,
    ),
    "failOnDataLoss": Setting(
        "flag", True, "If false, continue at the first version whose changes can still be read; a "
        "warning names what is skipped.",
    ),
    "changeSource": FEED["change_source"],
    "key": structs.replace(FEED["key"], form=_COLUMNS, parse=_parse_names),
    "onSchemaChange": Setting(
        "text", "fail", "What to do with versions whose schema differs from the query's: `fail` "
        "refuses them, `cast` converts their rows to the query's schema; see *Another schema*.",
        choices=("fail", "cast"),
    ),
    "columns": Setting(
        "texts", None, "Data columns to read; Spark gives a Python source no column "
        "selection.", form=_COLUMNS, parse=_parse_names, unset="all",
    ),
    "withIds": Setting("flag", False, "Add the columns `_event_id` and `_origin`.", advanced=True),
    "minPartitions": Setting(
        "whole", None, "Minimum number of tasks, if there is enough to read.", unit="tasks",
        unset="processors of the driver", advanced=True,
    ),
    "maxPartitionBytes": Setting(
        "whole", 128 * _MIB, "Maximum bytes of files per task.", unit="bytes", advanced=True,
    ),
    "diffMemoryBytesMax": Setting(
        "whole", DiffOptions().memory_bytes_max, "Memory limit for a comparison, per task.",
        unit="bytes", least=16 * _MIB,  # the engine of comparisons needs this much to begin with
        advanced=True,
    ),
    "spillFolder": Setting(
        "text", None, "Folder for temporary files of comparisons; every executor must be able to "
        "write to it.", unset="the system's temporary folder", advanced=True,
    ),
    "writerTimezone": structs.replace(FEED["writer_timezone"], advanced=True),
}  # fmt: skip
_NO_TABLE = "changes are read from startingVersion to endingVersion, and tables by format delta"
_TABLE = SettingTable(
    "the tailer source", SOURCE, text=True, spelling=str.lower, renames=True,
    answers={
        "versionasof": _NO_TABLE,
        "timestampasof": _NO_TABLE,
        "schematrackinglocation": "leave it out, columns are followed through renames without it",
        "ignorechanges": "it is for reading tables; to skip commits that update or delete, set "
        "skipChangeCommits",
        "excluderegex": "leave it out, and filter rows by a condition of the query",
        "witheventtimeorder": "leave it out, changes are always in the order of versions",
    },
)  # fmt: skip


def _take_exclusive(taken: Mapping[str, Any], *names: str) -> Any:
    """Return the one given option of several that exclude each other; None if none is given."""
    given = [taken[name] for name in names if taken[name] is not None]
    if len(given) > 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        raise ConfigError(f"{listed} exclude each other; give one")
    return given[0] if given else None


def _store_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the table's store, by its own names for them."""
    for name in _SHOWN:
        if f"{STORE_PREFIX}{name}" in given:
            raise ConfigError(
                f"Spark would show the value of 'store.{name}' in its plans; call the option "
                f"'{_HIDDEN_PREFIX}{name}', which Spark hides"
            )
    return {
        name.removeprefix(_HIDDEN_PREFIX).removeprefix(STORE_PREFIX): value
        for name, value in given.items()
    }


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Check a query's options and return them. Raises :class:`ConfigError` for the first
    mistake."""
    given = {name.lower(): value for name, value in options.items()}
    store = {name: value for name, value in given.items() if name.startswith(STORE_PREFIX)}
    feed_flags = {given.pop(name).strip().lower() for name in _FEED if name in given}
    taken = _TABLE.take({name: given[name] for name in given if name not in store})
    if not taken["path"]:
        raise ConfigError("say which table: load(path), or in SQL the option path or table")
    if feed_flags - {"true"}:
        raise ConfigError("readChangeFeed is not true, and the source reads nothing else")
    start = _take_exclusive(taken, "startingVersion", "startingTimestamp", "startingOffset")
    return SourceOptions(
        table=taken["path"],
        start=start if isinstance(start, str) else None,
        start_offset=taken["startingOffset"],
        ending=_take_exclusive(taken, "endingVersion", "endingTimestamp"),
        max_files=taken["maxFilesPerTrigger"],
        max_bytes=taken["maxBytesPerTrigger"],
        max_versions=taken["maxVersionsPerTrigger"],
        ignore_deletes=taken["ignoreDeletes"],
        skip_change_commits=taken["skipChangeCommits"],
        fail_on_data_loss=taken["failOnDataLoss"],
        change_source=taken["changeSource"],
        key=taken["key"],
        on_schema_change=taken["onSchemaChange"],
        columns=taken["columns"],
        with_ids=taken["withIds"],
        partition_bytes_max=taken["maxPartitionBytes"],
        partitions_min=taken["minPartitions"] or os.cpu_count() or 2,
        diff=DiffOptions(taken["diffMemoryBytesMax"], taken["spillFolder"]),
        decode=DecodeOptions(
            batch_rows_max=_BATCH_ROWS_MAX,
            writer_timezone=taken["writerTimezone"],
        ),
        store=_store_options(store),
    )
