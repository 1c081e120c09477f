"""The options of the data source: Delta's own names, and a few of ours.

Spark hands options over as text, in any case of letters. Every mistake is one sentence that names
the option and what is allowed; an option that nobody knows is a mistake too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar
from zoneinfo import ZoneInfo

from tailer.changes import Offset
from tailer.decode.naming import Removal
from tailer.decode.options import DecodeOptions, DiffOptions
from tailer.decode.plan import ChangeSource
from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, OffsetError
from tailer.log.history import check_start, parse_timestamp

__all__ = ["STORE_PREFIX", "SchemaChange", "SourceOptions", "source_options"]

T = TypeVar("T")
SchemaChange = Literal["fail", "cast"]

#: ``option("store.region", ...)`` goes to the table's store as ``region``.
STORE_PREFIX = "store."

_NAMES_ALLOWED = "column names, separated by commas or as a JSON list, each once"
_SYMBOLS = ("latest", "earliest", "snapshot")
_MIB = 1024 * 1024
#: Less than that the engine of comparisons needs to begin with.
_DIFF_MEMORY_MIN = 16 * _MIB


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query asks for. Picklable: it travels to the executors.

    ``start`` is None, a version, ``latest``, ``earliest``, ``snapshot`` or a time; ``start_offset``
    takes a daemon's place instead. ``ending`` is a version or a time. ``store`` may hold secrets,
    and so is never shown. ``feed`` is for
    the pipeline alone: a feed's own options, pickled; then versions are ``paired``, never cut.
    """

    table: str
    start: str | None = None
    start_offset: Offset | None = None
    ending: str | None = None
    max_files: int = 1000
    max_bytes: int | None = None
    ignore_deletes: bool = False
    skip_change_commits: bool = False
    fail_on_data_loss: bool = True
    exclude: str | None = None
    change_source: ChangeSource = "auto"
    key: tuple[str, ...] = ()
    on_schema_change: SchemaChange = "fail"
    columns: tuple[str, ...] | None = None
    with_ids: bool = False
    paired: bool = False
    feed: str | None = field(default=None, repr=False)
    filter_pushdown: bool = False
    partition_bytes_max: int = 128 * _MIB
    partitions_min: int = 2
    derived_fan_out: int = 8
    diff: DiffOptions = field(default_factory=DiffOptions)
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    torn_commit_max_s: float = 10.0
    store: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def decoding(
        self, target: tuple[TableState, int], removals: tuple[Removal, ...]
    ) -> DecodeOptions:
        """How the executors decode: into the query's own schema, ``target``, of that version.

        ``removals`` are those of column mapping between there and what is read.
        """
        state, version = target
        return replace(
            self.decode,
            target=state,
            target_version=version,
            removals=removals,
            columns=self.columns,
        )


class _Given:
    """The options as they came; each must be asked for, or it is unknown."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.values = {name.lower(): value for name, value in options.items()}
        self.known: dict[str, str] = {}

    def take(self, name: str, parse: Callable[[str], T], allowed: str, default: T) -> T:
        self.known[name.lower()] = name
        text = self.values.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError:
            raise ConfigError(f"option {name} is {text!r}, and must be {allowed}") from None

    def text(self, name: str) -> str | None:
        return self.take(name, str, "text", None)

    def flag(self, name: str, default: bool) -> bool:  # noqa: FBT001  # a default has no name
        return self.take(name, _flag, "true or false", default)

    def count(self, name: str, default: int | None) -> int | None:
        return self.take(name, _positive, "a number above 0", default)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        def parse(text: str) -> str:
            if text.lower() not in allowed:
                raise ValueError(text)
            return text.lower()

        return self.take(name, parse, f"one of {', '.join(allowed)}", allowed[0])

    def finish(self) -> dict[str, str]:
        """The store's options; the rest must have been asked for."""
        store = {}
        for name, value in self.values.items():
            if name.startswith(STORE_PREFIX):
                store[name.removeprefix(STORE_PREFIX)] = value
            elif name not in self.known:
                known = ", ".join(sorted(set(self.known.values()) - {"feed"}))
                raise ConfigError(f"the tailer source has no option {name!r}; it has {known}")
        return store


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _positive(text: str) -> int:
    """A count, or a size as Spark writes them: 64m, 1g."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    number = int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else 0
    if number <= 0:
        raise ValueError(text)
    return number


def _names(text: str) -> tuple[str, ...]:
    """Column names: separated by commas, or a JSON list where a name has one."""
    if text.lstrip().startswith("["):
        names = json.loads(text)
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(text)
    return tuple(names)


def _memory(text: str) -> int:
    size = _positive(text)
    if size < _DIFF_MEMORY_MIN:
        raise ValueError(text)
    return size


def _zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (OSError, KeyError) as e:  # KeyError: there is none of that name
        raise ValueError(text) from e
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as e:
        raise ValueError(text) from e
    return text


def _offset(text: str) -> Offset:
    try:
        return Offset.from_json(json.loads(text))
    except OffsetError as e:
        raise ConfigError(f"option startingOffset: {e}") from None


def _start(given: _Given) -> tuple[str | None, Offset | None]:
    version, moment = given.text("startingVersion"), given.text("startingTimestamp")
    offset = given.take("startingOffset", _offset, "an offset of this table as JSON", None)
    if sum(value is not None for value in (version, moment, offset)) > 1:
        raise ConfigError(
            "startingVersion, startingTimestamp and startingOffset exclude each other; give one"
        )
    if version is not None:
        version = version.strip().lower()
        if version not in _SYMBOLS and not (version.isascii() and version.isdigit()):
            raise ConfigError(
                f"option startingVersion is {version!r}, and must be a version, latest, earliest "
                "or snapshot"
            )
    if moment is not None:
        moment = _time("startingTimestamp", moment)
    start = version or moment
    if start is not None:
        check_start(start)
    return start, offset


def _time(name: str, text: str) -> str:
    try:
        parse_timestamp(text)
    except ConfigError as e:
        raise ConfigError(f"option {name}: {e}") from None
    return text.strip()


def _ending(given: _Given) -> str | None:
    version, moment = given.text("endingVersion"), given.text("endingTimestamp")
    if version is not None and moment is not None:
        raise ConfigError("endingVersion and endingTimestamp exclude each other; give one")
    if version is not None and not (version.strip().isascii() and version.strip().isdigit()):
        raise ConfigError(f"option endingVersion is {version!r}, and must be a version")
    return _time("endingTimestamp", moment) if moment is not None else version


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a query, checked. Raises :class:`ConfigError` for the first mistake."""
    given = _Given(options)
    path, table = given.text("path"), given.text("table")
    if bool(path) == bool(table):
        raise ConfigError("say which table: load(path), or option table, and not both")
    if not given.flag("readChangeFeed", True):
        raise ConfigError(
            "option readChangeFeed is false, and the tailer source reads nothing else"
        )
    start, offset = _start(given)
    if given.flag("ignoreChanges", False):
        raise ConfigError(
            "option ignoreChanges is for reading tables, not changes; to pass over commits that "
            "update or delete, set skipChangeCommits"
        )
    rows, size = given.count("batchRowsMax", 65_536), given.count("batchBytesMax", 32 * _MIB)
    memory = DiffOptions().memory_bytes_max
    memory = given.take("diffMemoryBytesMax", _memory, "a size of at least 16m", memory)
    parsed = SourceOptions(
        table=str(path or table),
        start=start,
        start_offset=offset,
        ending=_ending(given),
        max_files=given.count("maxFilesPerTrigger", 1000) or 1000,
        max_bytes=given.count("maxBytesPerTrigger", None),
        ignore_deletes=given.flag("ignoreDeletes", False),
        skip_change_commits=given.flag("skipChangeCommits", False),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        exclude=given.take("excludeRegex", _pattern, "a regular expression", None),
        change_source=given.choice("changeSource", ("auto", "cdf", "derived")),  # type: ignore[arg-type]
        key=given.take("key", _names, _NAMES_ALLOWED, ()),
        on_schema_change=given.choice("onSchemaChange", ("fail", "cast")),  # type: ignore[arg-type]
        columns=given.take("columns", _names, _NAMES_ALLOWED, None),
        with_ids=given.flag("withIds", False),
        paired=given.text("feed") is not None,
        feed=given.text("feed"),
        filter_pushdown=given.flag("filterPushdown", False),
        partition_bytes_max=given.count("maxPartitionBytes", 128 * _MIB) or 1,
        partitions_min=given.count("minPartitions", os.cpu_count() or 2) or 1,
        derived_fan_out=given.count("derivedFanOut", 8) or 1,
        diff=DiffOptions(memory_bytes_max=memory, spill_folder=given.text("spillFolder")),
        decode=DecodeOptions(
            batch_rows_max=rows or 1,
            batch_bytes_max=size or 1,
            writer_timezone=given.take("writerTimezone", _zone, "a time zone's name", "UTC"),
        ),
        torn_commit_max_s=float(given.count("tornCommitMaxSeconds", 10) or 10),
    )
    return replace(parsed, store=given.finish())
