"""The settings of decoding and comparing. Code that only passes them on need not load the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tailer.decode.naming import Removal
    from tailer.decode.tracking import OnRead
    from tailer.delta.snapshot import TableState

from msgspec import Struct, structs

#: Files up to this size are decoded many at a time (:mod:`tailer.decode.small_files`), of which a
#: larger one gains little.
SMALL_FILE_BYTES_MAX = 128 * 1024


#: The names of data columns, in order; or what gives them for each state.
ColumnChoice: TypeAlias = "tuple[str, ...] | Callable[[TableState], tuple[str, ...]]"


class DecodeOptions(Struct, frozen=True):
    """Bounds and settings of decoding.

    ``target`` casts all rows into that state's schema (a range in one schema); None leaves them
    in the schema that their file was written with. ``target_version`` is the target's (None: later
    than all files), and ``removals`` are the column mapping removals between the files and it, in
    order. With ``own_columns``, columns that the file's own state did not have are null, even if
    the file still has them (a column that was dropped and added again).
    ``writer_timezone`` is for partition timestamps without a zone. ``page_checksums`` verifies
    page checksums where a file has them, as parquet-java makes them, which takes about 5 % of the
    time. ``row_ids`` requests row ids too; ``on_read`` is called with the number of bytes read.
    Pages are bounded by ``page_batch_bytes``, where batches are smaller.
    """

    batch_rows_max: int = 131_072
    batch_bytes_max: int = 32 * 1024 * 1024
    writer_timezone: str = "UTC"
    target: TableState | None = None
    target_version: int | None = None
    removals: tuple[Removal, ...] = ()
    columns: ColumnChoice | None = None
    page_checksums: bool = True
    row_ids: bool = False
    own_columns: bool = False
    on_read: OnRead | None = None
    page_batch_bytes: int = 0

    def halve_batches(self) -> DecodeOptions:
        """Return the options for batches half as large, of the same files."""
        return structs.replace(
            self,
            batch_rows_max=max(1, self.batch_rows_max // 2),
            batch_bytes_max=max(1, self.batch_bytes_max // 2),
            page_batch_bytes=max(self.page_batch_bytes, self.batch_bytes_max),
        )


class Bucket(Struct, frozen=True):
    """Bucket ``number`` of ``of``, from 0, of the rows that one comparison by row ids has found
    changed: a range of their ids. Together the buckets give all changes, each once. Every task
    that takes one looks at all ids, because any id that occurs twice decides for all rows: then the
    first bucket has all changes."""

    number: int
    of: int


class DiffOptions(Struct, frozen=True):
    """Bounds of the comparison. ``memory_bytes_max`` is the engine's; ``spill_folder`` None: the
    system's temporary folder. ``keep_bytes_max`` bounds the decoded rows that are kept for output,
    so that a file need not be read a second time. ``bucket`` None: all rows."""

    memory_bytes_max: int = 512 * 1024 * 1024
    spill_folder: str | None = None
    threads: int = 2
    keep_bytes_max: int = 96 * 1024 * 1024
    bucket: Bucket | None = None
