"""What lies where no Delta table is found, and what to type instead.

Looked for only after a table was not found: it takes a few listings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from posixpath import normpath

from tailer.errors import TableError, TailerError, closest
from tailer.store import FolderEntries, Store

#: Most names of a folder that are looked at.
NAMES_MAX = 1000
#: Most folders in a folder that are tried for tables.
_TRIED_MAX = 20
#: Most folders above a place that are tried for a table.
_ABOVE_MAX = 6
#: Most names in a sentence.
_NAMED_MAX = 5

_LOG = "_delta_log"
_OF_A_LOG = re.compile(r"\d{20}\.(?:json|checkpoint\..*)")
_SQL_NAME = re.compile(r"\w+(?:\.\w+){1,2}")
#: Names that end so are files'.
_SUFFIXES = (".json", ".parquet", ".share", ".toml")
_ICEBERG = re.compile(r".*\.metadata\.json|version-hint\.text")


async def make_no_table_error(store: Store) -> TableError:
    """Return the error for a store's root without a Delta table: what is there, what to type."""
    root = store.root
    what, hint = f"its {_LOG} has no commit", "check the path, and that this user may read it"
    # What can't be listed can't be said.
    with suppress(TailerError, OSError, ValueError, NotImplementedError):
        what, hint = await _Surroundings(store).describe_place(root)
    return TableError(f"no Delta table there: {what}", table=root, hint=hint)


class _Surroundings:
    """Looks around in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def describe_place(self, root: str) -> tuple[str, str]:
        """Return what lies at a place, and what to type instead."""
        root = root if "://" in root else normpath(root)
        above = await self._find_table_above(root)
        entries = await self._store.entries(root)
        if above is not None:
            place = "is the log of" if root == f"{above}/{_LOG}" else "lies in"
            return f"it {place} the table {above}", f"type {above}"
        if entries is None:
            return await self._describe_absent(root)
        if _LOG in entries.folders:
            return await self._describe_empty_log(root)
        return await self._describe_folder(root, entries)

    async def _is_table(self, address: str) -> bool:
        log = await self._store.entries(f"{address}/{_LOG}")
        return log is not None and any(map(_OF_A_LOG.fullmatch, log.files))

    async def _find_table_above(self, root: str) -> str | None:
        """Return the table that a place lies in."""
        for number, folder in enumerate(_list_parents(root)):
            if number == _ABOVE_MAX:
                break
            if await self._is_table(folder):
                return folder
        return None

    async def _describe_absent(self, root: str) -> tuple[str, str]:
        """Return what a place is that is no folder: a file, or nothing."""
        up, _, name = root.rpartition("/")
        beside = await self._store.entries(up or "/")
        if beside is not None and name in beside.files:
            return _describe_file(root, name)
        for parent in _list_parents(root):
            siblings = await self._store.entries(parent)
            if siblings is None:
                continue
            missing = root.removeprefix(parent).lstrip("/").partition("/")[0]
            what = f"there is no {missing} in {parent}"
            named = missing.endswith(_SUFFIXES)
            by_lower = {
                name.lower(): name for name in (siblings.files if named else siblings.folders)
            }
            close = closest(missing.lower(), by_lower)
            if close is not None:
                return what, f"did you mean {parent.rstrip('/')}/{by_lower[close]}?"
            if _SQL_NAME.fullmatch(missing) and parent == up and not named:
                return what, (
                    f"if {missing} is a table of a catalog, type its location, which `DESCRIBE "
                    f"DETAIL {missing}` says"
                )
            if root.startswith("/dbfs/") and parent == "/":
                return what, (
                    "Databricks mounts it on its clusters alone; elsewhere type the storage's own "
                    "address, such as s3://bucket/key"
                )
            return what, f"{parent} has {_join_names(siblings.folders, 'no folders')}"
        return "there is nothing at this address", "check the address"

    async def _describe_empty_log(self, root: str) -> tuple[str, str]:
        log = await self._store.entries(f"{root}/{_LOG}")
        has = _join_names([] if log is None else [*log.files, *log.folders], "nothing")
        return (
            f"its {_LOG} has no commit, and no checkpoint: it has {has}",
            "the table is not written yet, or its log was removed",
        )

    async def _describe_folder(self, root: str, entries: FolderEntries) -> tuple[str, str]:
        if ".hoodie" in entries.folders:
            return "it is a table of Apache Hudi", "only Delta tables are read"
        metadata = None
        if "metadata" in entries.folders:
            metadata = await self._store.entries(f"{root}/metadata")
        if metadata is not None and any(map(_ICEBERG.fullmatch, metadata.files)):
            return "it is a table of Apache Iceberg", "only Delta tables are read"
        tables = await self._find_tables(root, entries.folders)
        if tables:
            return (
                f"it is a folder with tables in it: {_join_names(tables, '')}",
                f"type one of them, such as {root}/{tables[0]}",
            )
        if await self._has_parquet(root, entries):
            spark = f"CONVERT TO DELTA parquet.`{root}`"
            hint = f"only Delta tables are read; in Spark, {spark} makes it one"
            return f"it is a folder of Parquet files without a {_LOG}", hint
        names = [*entries.files, *entries.folders]
        return (
            f"the folder has {_join_names(names, 'nothing in it')}, and no {_LOG}",
            "type the folder of a table, which has one",
        )

    async def _find_tables(self, root: str, folders: Sequence[str]) -> list[str]:
        """Return the tables right in a folder; without any, those one level further down."""
        tried = [name for name in sorted(folders) if not name.startswith((".", "_"))][:_TRIED_MAX]
        tables = [name for name in tried if await self._is_table(f"{root}/{name}")]
        for name in [] if tables else tried:
            entries = await self._store.entries(f"{root}/{name}")
            for below in sorted(entries.folders if entries else ())[:_TRIED_MAX]:
                if await self._is_table(f"{root}/{name}/{below}"):
                    tables.append(f"{name}/{below}")
                if len(tables) > _NAMED_MAX:
                    return tables
        return tables

    async def _has_parquet(self, root: str, entries: FolderEntries) -> bool:
        """Return whether a folder has Parquet files, perhaps in folders of partitions."""
        for _ in range(_ABOVE_MAX):
            if any(name.endswith((".parquet", ".parq")) for name in entries.files):
                return True
            partition = next((name for name in entries.folders if "=" in name), None)
            if partition is None:
                return False
            root = f"{root}/{partition}"
            below = await self._store.entries(root)
            if below is None:
                return False
            entries = below
        return False


def _describe_file(root: str, name: str) -> tuple[str, str]:
    """Return what a file is, by its name."""
    if name.endswith(".toml"):
        commands = f"`tailer run {root}`, or `tailer verify {root} FEED` with the name of a feed"
        return "it is a file, by its name a configuration", f"type {commands}, or a feed's table"
    if name.endswith(".share"):
        return (
            "it is a profile of Delta Sharing",
            f"type {root}#share.schema.table; `tailer shares {root}` lists them",
        )
    if name.endswith(".parquet"):
        return "it is one Parquet file", "type the folder of a Delta table"
    return "it is a file", f"type the folder of a Delta table, which has a {_LOG}"


def _list_parents(root: str) -> Iterator[str]:
    """Yield the folders above a place, the nearest first; on S3 up to the bucket."""
    scheme = root.find("://")
    while True:
        root = root.rpartition("/")[0]
        if scheme >= 0 and len(root) <= scheme + 2:
            return
        yield root or "/"
        if not root:
            return


def _join_names(names: Sequence[str], none: str) -> str:
    """Return some names for a sentence."""
    if not names:
        return none
    shown = ", ".join(sorted(names)[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown} and {len(names) - _NAMED_MAX} more"
