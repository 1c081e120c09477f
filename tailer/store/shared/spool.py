"""Writing an answer to the disk: its lines to their files, and its URLs to their table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio.to_thread

from tailer.errors import spilling
from tailer.sharing.answers import SharedFile
from tailer.store.shared.links import LinkTable, Origin

#: Lines are gathered up to this many bytes before they are written.
_FLUSH_BYTES = 1024 * 1024


class AnswerSpool:
    """Writes the lines of an answer to their files, and its URLs, a megabyte at a time."""

    def __init__(self, links: LinkTable, origin: Origin) -> None:
        self._links = links
        self._origin = origin
        self._lines: dict[Path, list[bytes]] = {}
        self._files: list[SharedFile] = []
        self._bytes = 0

    async def add_file(self, file: Path | None, shared: SharedFile) -> None:
        """Add one file of the answer; with ``file`` None, only its URLs."""
        self._files.append(shared)
        self._bytes += len(shared.url)
        if file is not None:
            line = json.dumps({shared.kind: shared.action}, separators=(",", ":")).encode() + b"\n"
            self._lines.setdefault(file, []).append(line)
            self._bytes += len(line)
        if self._bytes >= _FLUSH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write what was added."""
        await anyio.to_thread.run_sync(self._write_lines)
        self._lines, self._files, self._bytes = {}, [], 0

    @spilling(None)
    def _write_lines(self) -> None:
        for file, lines in self._lines.items():
            with file.open("ab") as f:
                f.writelines(lines)
        self._links.store_links(self._files, self._origin)


@spilling(None)
def append_actions(file: Path, actions: list[dict[str, Any]]) -> None:
    """Append actions to a file of the log, one per line."""
    with file.open("ab") as f:
        f.writelines(json.dumps(a, separators=(",", ":")).encode() + b"\n" for a in actions)


@spilling(None)
def complete_removes(file: Path, lacking: set[str]) -> None:
    """Add the missing partition columns to the removes of a commit.

    Spark leaves out those that are null, and a log reader would look for the file in the version
    before.
    """
    if not lacking:
        return
    whole = file.with_suffix(".whole")
    with file.open("rb") as old, whole.open("wb") as new:
        for line in old:
            action = json.loads(line)
            if "remove" in action:
                values = action["remove"].get("partitionValues") or {}
                action["remove"]["partitionValues"] = {**dict.fromkeys(lacking), **values}
            new.write(json.dumps(action, separators=(",", ":")).encode() + b"\n")
    whole.replace(file)
