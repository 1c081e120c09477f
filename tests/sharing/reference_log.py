"""A table on the disk as the reference server needs it: its commits, plainly read.

Written for tests alone: it takes the whole log into memory, knows no checkpoints, and trusts it.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any

from tailer.delta.actions import DeletionVectorDescriptor
from tailer.delta.paths import find_dv_location, parse_location

Action = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One file action of a version, with the version's time in epoch ms."""

    kind: str
    action: Action
    version: int
    timestamp: int


def file_id(path: str) -> str:
    """What names a file in every answer."""
    return md5(path.encode(), usedforsecurity=False).hexdigest()


def dv_file(action: Action) -> str | None:
    """Where an action's deletion vector lies, relative to the table; None if there is no file."""
    dv = action.get("deletionVector")
    if dv is None:
        return None
    return find_dv_location(
        DeletionVectorDescriptor(
            dv["storageType"], dv["pathOrInlineDv"], dv["sizeInBytes"], 0, dv.get("offset")
        )
    )


class ReferenceTable:
    """A table's folder, read anew whenever its log has grown."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._commits: dict[int, list[Action]] = {}
        self._times: dict[int, int] = {}
        self._lock = threading.Lock()  # a client may ask again before the last answer is made

    def _read(self) -> None:
        with self._lock:
            self._read_on()

    def _read_on(self) -> None:
        log = self.folder / "_delta_log"
        while True:
            version = len(self._commits)
            file = log / f"{version:020d}.json"
            if not file.exists():
                return
            actions = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
            self._commits[version] = actions
            self._times[version] = self._time(version, file)

    def _time(self, version: int, file: Path) -> int:
        since = self._enabled_since(version)
        if since is not None and version >= since:
            for action in self._commits[version]:
                if "commitInfo" in action:
                    return int(action["commitInfo"]["inCommitTimestamp"])
        mtime = file.stat().st_mtime_ns // 1_000_000
        return max(mtime, self._times[version - 1] + 1) if version else mtime

    def _enabled_since(self, version: int) -> int | None:
        configuration = self.metadata(version).get("configuration", {})
        if configuration.get("delta.enableInCommitTimestamps") != "true":
            return None
        return int(configuration.get("delta.inCommitTimestampEnablementVersion", 0))

    @property
    def version(self) -> int:
        """The newest version."""
        self._read()
        return max(self._commits)

    def timestamp(self, version: int) -> int:
        """A version's time in epoch ms."""
        return self._times[version]

    def _last(self, kind: str, version: int) -> Action:
        for v in range(version, -1, -1):
            for action in self._commits[v]:
                if kind in action:
                    return dict(action[kind])
        raise LookupError(kind)

    def protocol(self, version: int) -> Action:
        """The protocol action in force."""
        return self._last("protocol", version)

    def metadata(self, version: int) -> Action:
        """The metaData action in force."""
        return self._last("metaData", version)

    def changes_metadata(self, version: int) -> bool:
        """Whether a version has a metaData action."""
        return any("metaData" in action for action in self._commits[version])

    def has_feed(self, version: int) -> bool:
        """Whether the change data feed is on after a version."""
        configuration = self.metadata(version).get("configuration", {})
        return bool(configuration.get("delta.enableChangeDataFeed") == "true")

    def snapshot(self, version: int) -> list[Change]:
        """The files of a version."""
        live: dict[tuple[str, str], Change] = {}
        for v in range(version + 1):
            for kind in ("remove", "add"):
                for action in self._commits[v]:
                    if kind not in action:
                        continue
                    value = action[kind]
                    dv = value.get("deletionVector") or {}
                    key = (
                        parse_location(value["path"]),
                        f"{dv.get('pathOrInlineDv')}{dv.get('offset')}",
                    )
                    if kind == "remove":
                        live.pop(key, None)
                    else:
                        live[key] = Change("add", value, v, self._times[v])
        return list(live.values())

    def data_changes(self, version: int, *, feed: bool) -> list[Change]:
        """A version's change data, or without ``feed`` its data changes."""
        found = [
            Change(kind, action[kind], version, self._times[version])
            for action in self._commits[version]
            for kind in ("cdc", "add", "remove")
            if kind in action
        ]
        cdc = [change for change in found if change.kind == "cdc"]
        if feed and cdc:
            return cdc
        return [c for c in found if c.kind != "cdc" and c.action.get("dataChange", True)]
