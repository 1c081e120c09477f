"""The manifest: which files there are, which changes they have, and where the feed continues.

Publications are numbered. Number 7 begins with ``0000000007.begun``, which lists its files; then
come the files, whose names have the number; it ends with ``0000000007.json``, which says the offset
after them. Each of these is created only where it is not there. So a process that was replaced
can't begin the next number, or can't end the one that it has begun: then it removes its files
again. What a process left begun when it died, the next one ends without files, after
``0000000007.aborted``, which lists the files too: that process may live on, create one late and die
before it removes it, so each start removes the files of aborted numbers once more.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio

from tailer.changes import Offset
from tailer.errors import (
    ConfigError,
    OffsetError,
    TargetRefused,
    TransientError,
    ungrouping,
)
from tailer.storage.targets import FolderTarget

FOLDER = "_delta_tailer"
_LAST = f"{FOLDER}/last"
_ENDINGS = (".begun", ".json", ".aborted")
#: How often the number is kept in the file ``last``, from which a start lists the manifest.
_LAST_EVERY = 500


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file as the manifest has it."""

    path: str
    rows: int
    bytes: int
    first_version: int
    last_version: int


def _format_name(number: int, ending: str) -> str:
    return f"{FOLDER}/{number:010}.{ending}"


class Manifest:
    """The manifest of a target. ``number`` is that of the last publication, 0 before the first;
    ``offset`` the one after it."""

    def __init__(self, target: FolderTarget) -> None:
        self._target = target
        self._owner = uuid.uuid4().hex
        self.number = 0
        self.offset: Offset | None = None
        self.feed: str | None = None
        self._aborted: list[int] = []

    async def load(self) -> bool:
        """Read the last publication; return whether the one after it was begun and not ended."""
        self.number, self.offset, self.feed = 0, None, None
        names = set(await self._list_names())
        self._aborted = sorted(int(name[:10]) for name in names if name.endswith(".aborted"))
        numbers = sorted(int(name[:10]) for name in names if not name.endswith(".aborted"))
        if not numbers:
            return False
        begun = f"{numbers[-1]:010}.json" not in names
        self.number = numbers[-1] - begun
        if self.number:
            document = await self._read_document(_format_name(self.number, "json"))
            self.feed = document["feed"]
            found = document["offset"]
            self.offset = None if found is None else self._parse_offset(found)
        return begun

    async def _list_names(self) -> list[str]:
        last = await self._target.read(_LAST)
        after = f"{int(last) - 1:010}.z" if last and last.isdigit() else ""
        names = await self._target.names(FOLDER, after)
        return [name for name in names if name[:10].isdigit() and name[10:] in _ENDINGS]

    async def _read_document(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads(await self._target.read(name) or b"")
            if document["format"] == 1:
                return dict(document)
        except (ValueError, KeyError, TypeError):
            pass
        raise TargetRefused(
            f"{self._target.root}/{name} is damaged: restore it, or remove the folder's files and "
            "start over with `tailer offsets reset`"
        )

    def _parse_offset(self, document: Any) -> Offset:
        try:
            return Offset.from_json(document)
        except OffsetError as e:
            raise TargetRefused(
                f"{self._target.root}/{_format_name(self.number, 'json')}: {e}"
            ) from e

    def check(self, feed: str) -> None:
        """Raise :class:`SinkRejected` if the files are another feed's."""
        if self.feed not in (None, feed):
            raise TargetRefused(
                f"{self._target.root} has the files of the feed {self.feed!r}; name another folder "
                "in the option 'path'"
            )

    async def claim(self, feed: str) -> None:
        """Take the target over: a process that had it can't publish from now on."""
        while True:
            if await self.load():
                await self._abort_begun(feed)
                continue
            self.check(feed)
            self.feed = feed
            if await self._try_to_publish(self.offset, {}, []):
                await self._remove_late_files()
                return

    async def _abort_begun(self, feed: str) -> None:
        """End what another process has begun, and remove its files."""
        begun = await self._read_document(_format_name(self.number + 1, "begun"))
        self.feed = self.feed or begun.get("feed")
        self.check(feed)
        aborted = json.dumps({"format": 1, "files": begun["files"]}).encode()
        await self._target.create(_format_name(self.number + 1, "aborted"), aborted)
        await self._end_without_files(self.number + 1, feed, begun["files"])

    async def _remove_late_files(self) -> None:
        """Remove what the processes of aborted publications have created since."""
        for number in self._aborted:
            if not (await self._read_document(_format_name(number, "json")))["files"]:
                await self._remove_files(
                    (await self._read_document(_format_name(number, "aborted")))["files"]
                )

    async def _end_without_files(self, number: int, feed: str, files: Iterable[str]) -> None:
        """End a publication without files; remove those that it had, unless it has ended."""
        ending = self._format_document(number, feed, self.offset, [])
        if await self._target.create(_format_name(number, "json"), ending):
            await self._remove_files(files)

    async def _remove_files(self, files: Iterable[str]) -> None:
        for path in files:
            await self._target.remove(path)

    async def publish(
        self, offset: Offset | None, sources: Mapping[str, Path], files: list[PublishedFile]
    ) -> None:
        """Publish files, by their names, and the offset after them. Raises :class:`ConfigError`
        if another process has the target."""
        if not await self._try_to_publish(offset, sources, files):
            raise ConfigError(
                f"{self._target.root}: another process writes these files now; stop one of them"
            )

    async def _try_to_publish(
        self, offset: Offset | None, sources: Mapping[str, Path], files: list[PublishedFile]
    ) -> bool:
        number, feed = self.number + 1, self.feed or ""
        begun = {"format": 1, "feed": feed, "owner": self._owner, "files": list(sources)}
        found: list[bool] = []

        async def begin() -> None:
            data = json.dumps(begun).encode()
            found.append(await self._target.create(_format_name(number, "begun"), data))

        with ungrouping():
            async with anyio.create_task_group() as tasks:  # no time more, on a store
                tasks.start_soon(begin)
                left = await self._is_unchanged()
        if not found[0]:
            return False
        if not left:
            await self._target.remove(_format_name(number, "begun"))
            last = _format_name(self.number, "json")
            raise TransientError(
                f"{self._target.root} is not as this feed left it: {last} is missing or "
                "changed; the feed restarts from the state found there"
            )
        published: list[str] = []
        for name, source in sources.items():
            if not await self._target.create(name, source):
                await self._end_without_files(number, feed, published)
                raise TransientError(
                    f"{self._target.root}/{name} is there already, and this feed did not write it; "
                    "the rows go to a file of another name"
                )
            published.append(name)
        document = self._format_document(number, feed, offset, files)
        if not await self._target.create(_format_name(number, "json"), document):
            await self._remove_files(published)
            return False
        self.number, self.offset = number, offset
        if number % _LAST_EVERY == 0:
            await self._target.replace(_LAST, str(number).encode())
        return True

    async def _is_unchanged(self) -> bool:
        """Return whether the last publication is there, as this process knows it."""
        if not self.number:
            return True
        try:
            known = json.loads(await self._target.read(_format_name(self.number, "json")) or b"")
            at: Any = known["offset"]
        except (ValueError, KeyError, TypeError):
            return False
        return bool(at == (None if self.offset is None else self.offset.to_json()))

    def _format_document(
        self, number: int, feed: str, offset: Offset | None, files: list[PublishedFile]
    ) -> bytes:
        document = {
            "format": 1,
            "number": number,
            "feed": feed,
            "owner": self._owner,
            "offset": None if offset is None else offset.to_json(),
            "files": [asdict(file) for file in files],
        }
        return json.dumps(document, ensure_ascii=False).encode() + b"\n"

    async def forget(self) -> None:
        """Remove all files of the manifest, and the manifest."""
        await self._target.remove(_LAST)
        names = await self._list_names()
        for name in names:
            if name.endswith((".begun", ".aborted")):
                await self._remove_files((await self._read_document(f"{FOLDER}/{name}"))["files"])
        for name in reversed(names):  # the first ones last: what is left is a whole manifest
            await self._target.remove(f"{FOLDER}/{name}")
