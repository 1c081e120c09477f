"""The work orders of a stream, as files in its checkpoint: one for each batch.

    CHECKPOINT/tailer/orders/000000000000000042.txt

The first line is JSON: the batch's number, the offsets between which it lies, and what it was
planned by. Each further line is a task. Spark's own file source hands the files to the query, in
the order of their times, and keeps in the checkpoint which ones it has begun. A file gets its name
when it is complete, and a name is given once: a process that is killed leaves at most a file
without a name, and of two processes that plan for one checkpoint the second one is refused.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from tailer.errors import OffsetError
from tailer.files.durable import make_folder, sync_folder

_NAME = re.compile(r"(\d{18})\.txt")
#: Committed batches whose orders are kept: as many as Spark itself keeps offsets of.
_KEPT = 100


class OrderHead(Struct, frozen=True, kw_only=True):
    """What a file says of its batch. ``start`` and ``end`` are offsets as JSON; ``error`` is the
    sentence that ends the query, in a file without work."""

    number: int
    start: dict[str, Any]
    end: dict[str, Any]
    made_by: str
    error: str | None = None
    format: int = 1

    @classmethod
    def from_line(cls, line: str) -> OrderHead:
        """Return the head in a file's first line. Raises :class:`OffsetError` if it is damaged."""
        try:
            head = cls(**json.loads(line))
        except (ValueError, TypeError):
            raise OffsetError("a work order's first line is damaged") from None
        if head.format != 1:
            raise OffsetError(f"the work order has format {head.format}, and only 1 is known here")
        return head


class OrderFiles:
    """The order files of one checkpoint, which is a local folder or a mounted one."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.folder = checkpoint / "tailer" / "orders"

    def prepare(self) -> None:
        """Make the folder, and remove files that a killed process has left without a name."""
        make_folder(self.folder)
        for left in self.folder.parent.glob("new-*"):
            left.unlink(missing_ok=True)
        if not (self._checkpoint / "offsets").exists():
            self._prepare_for_spark()

    def _prepare_for_spark(self) -> None:
        """Make what Spark makes for a new query, an id and folders.

        Where Hadoop's library for the system is missing, Spark starts a process for each file and
        folder that it makes, to set its mode.
        """
        new = self._synced("metadata", [json.dumps({"id": str(uuid.uuid4())})])
        with suppress(FileExistsError):  # begun by another process, or by this one before
            os.link(new, self._checkpoint / "metadata")
        new.unlink()
        for folder in ("sources/0", "commits", "offsets"):
            (self._checkpoint / folder).mkdir(parents=True, exist_ok=True)

    def numbers(self) -> list[int]:
        """Return the numbers of all files, in order."""
        found = (_NAME.fullmatch(entry.name) for entry in os.scandir(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def head(self, number: int) -> OrderHead:
        """Return the first line of a file."""
        path = self._path(number)
        with path.open(encoding="ascii") as file:
            try:
                return OrderHead.from_line(file.readline())
            except OffsetError as e:
                raise OffsetError(str(e), path=str(path)) from None

    def create(self, head: OrderHead, tasks: Iterable[str]) -> bool:
        """Write a file; return False if there is one of this number."""
        new = self._written(head, tasks)
        try:
            os.link(new, self._path(head.number))
        except FileExistsError:
            return False
        finally:
            new.unlink()
        sync_folder(self.folder)
        return True

    def replace(self, head: OrderHead, tasks: Iterable[str]) -> None:
        """Write a file in the place of the one of this number."""
        path = self._path(head.number)
        new = self._written(head, tasks, path.stat().st_mtime_ns)
        new.replace(path)
        sync_folder(self.folder)

    def _written(self, head: OrderHead, tasks: Iterable[str], time_ns: int | None = None) -> Path:
        new = self._synced(str(head.number), (json.dumps(structs.asdict(head)), *tasks))
        at = self._next_time_ns(head.number) if time_ns is None else time_ns
        os.utime(new, ns=(at, at))
        return new

    def _synced(self, name: str, lines: Iterable[str]) -> Path:
        """Write a file that has no name yet for others."""
        new = self.folder.parent / f"new-{os.getpid()}-{name}"
        with new.open("w", encoding="ascii") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        return new

    def _next_time_ns(self, number: int) -> int:
        """Return now, but a millisecond after the file before: Spark takes files by their times."""
        before = self._path(number - 1)
        last = before.stat().st_mtime_ns if before.exists() else 0
        return max(time.time_ns(), last + 1_000_000)

    def remove(self, number: int) -> None:
        """Remove a file."""
        self._path(number).unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove the files of batches that were committed long ago."""
        last = self.committed()
        for number in self.numbers():
            if number >= last - _KEPT:
                break
            self.remove(number)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:018}.txt"

    # What Spark has begun and committed

    def begun(self) -> int:
        """Return the number of the last file that Spark has given to a batch; -1 if none."""
        batches = _batches(self._checkpoint / "sources" / "0")
        return self._last_file(max(batches, default=-1))

    def committed(self) -> int:
        """Return the number of the last file of a committed batch; -1 if there is none."""
        commits = _batches(self._checkpoint / "commits")
        return self._last_file(self._log_offset(max(commits))) if commits else -1

    def lines_of(self, batch: int) -> list[str]:
        """Return the lines of the files that Spark has given to a batch: heads, and tasks.

        It is one file, or more: a driver that is killed between Spark's two lists, of begun files
        and of batches, leaves one that the next batch takes too.
        """
        before = self._log_offset(batch - 1) if batch else -1
        return [
            line
            for number in self._begun_files(before, self._log_offset(batch))
            for line in self._path(number).read_text(encoding="ascii").splitlines()
        ]

    def _log_offset(self, batch: int) -> int:
        """Return how far in Spark's list of begun files a batch goes."""
        path = self._checkpoint / "offsets" / str(batch)
        try:
            return int(json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["logOffset"])
        except (OSError, ValueError, LookupError, TypeError):
            raise OffsetError(
                "the checkpoint is not one of a stream of work orders",
                path=str(path),
                hint="give each query a checkpoint folder for itself",
            ) from None

    def query_id(self) -> str | None:
        """Return the id of the query that runs from this checkpoint; None if none has begun."""
        try:
            text = (self._checkpoint / "metadata").read_text(encoding="utf-8")
            return str(json.loads(text)["id"])
        except (OSError, ValueError, LookupError):
            return None

    def _last_file(self, offset: int) -> int:
        """Return the number of the last file up to an offset of Spark's list of begun files."""
        return max(self._begun_files(offset - 1, offset), default=-1) if offset >= 0 else -1

    def _begun_files(self, after: int, to: int) -> list[int]:
        """Return the numbers of the files in Spark's list behind an offset, up to another one."""
        folder = self._checkpoint / "sources" / "0"
        compacted = sorted(_batches(folder, ".compact"))
        found: set[int] = set()
        for offset in range(after + 1, to + 1):
            path = folder / str(offset)
            if not path.exists():
                later = (n for n in compacted if n >= offset)
                path = folder / f"{next(later, offset)}.compact"
            found.update(_numbers(path, offset))
        return sorted(found)


def _batches(folder: Path, ending: str = "") -> list[int]:
    if not folder.is_dir():
        return []
    pattern = (
        re.compile(rf"(\d+){re.escape(ending)}") if ending else re.compile(r"(\d+)(\.compact)?")
    )
    found = (pattern.fullmatch(entry.name) for entry in os.scandir(folder))
    return [int(match[1]) for match in found if match]


def _numbers(path: Path, offset: int) -> Iterator[int]:
    """Yield the numbers of an offset's files in one file of Spark's list: a version, then JSON
    lines."""
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        entry = json.loads(line)
        match = _NAME.search(entry["path"])
        if match and entry["batchId"] == offset:
            yield int(match[1])
