"""A catalog that ratifies the commits of a simulated table.

It is late, away, stale, and says that commits are published which are not. Commits are published a
while after they were ratified, and the writer stages commits that are never ratified.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tailer.store import Store
from tailer.store.unity.answers import CatalogTable, Ratified
from tailer.store.unity.store import CatalogStore, TableSource
from tests.simulation.bucket import Bucket, BucketFolder

#: How long a commit stays unpublished at most, in seconds, and a half of that on the average.
_PUBLISHED_S = 20.0


class SimulatedCatalog:
    """The catalog of one table in ``folder`` of a bucket. It has chance of its own, from a seed."""

    def __init__(self, bucket: Bucket, folder: str, seed: int) -> None:
        self.bucket, self.world = bucket, bucket.world
        self.log = f"{folder}/_delta_log"
        self.rng = random.Random(f"catalog {seed}")
        self.table_id = ""
        self.latest = -1
        self.published = -1
        self.staged: dict[int, tuple[str, float]] = {}
        self._names = 0

    def begin(self, table_id: str) -> None:
        """Have another table at the place, without a version."""
        self.table_id, self.latest, self.published = table_id, -1, -1
        self.staged.clear()

    # The writer's side

    def stage(self, version: int, data: bytes) -> str:
        """Write a staged commit; return its name."""
        self._names += 1
        name = f"{version:020d}.{self._names:032d}.json"
        self.bucket.put(f"{self.log}/_staged_commits/{name}", data)
        return name

    def ratify(self, version: int, name: str) -> None:
        """Make a staged commit the version, which is published later; the first one at once."""
        assert version == self.latest + 1
        self.latest = version
        wait_s = self.rng.uniform(0.0, _PUBLISHED_S) if version else 0.0
        self.staged[version] = name, self.world.now + wait_s
        self.publish()

    def publish(self, *, all_of_them: bool = False) -> None:
        """Publish in order what is due, or all; what was staged is cleaned up now and then."""
        for version in range(self.published + 1, self.latest + 1):
            name, due_s = self.staged[version]
            if due_s > self.world.now and not all_of_them:
                return
            staged = f"{self.log}/_staged_commits/{name}"
            self.bucket.put(f"{self.log}/{version:020d}.json", self.bucket.files[staged].data)
            self.published = version
            if self.rng.random() < 0.3:
                self.bucket.remove(staged)

    # The reader's side

    async def load(self) -> CatalogTable:
        """Answer a reader."""
        stale = self.world.fault("stale list", "the catalog's answer")
        lies = self.world.fault("short", "the catalog's answer")
        return await self.world.request("load table", lambda: self._answer(stale=stale, lies=lies))

    def _answer(self, *, stale: bool, lies: bool) -> CatalogTable:
        self.publish()
        latest = max(0, self.latest - self.rng.randint(1, 3)) if stale else self.latest
        first = self.published + 1
        if lies:
            first += self.rng.randint(0, 2)  # it says that these are published
        elif first and self.rng.random() < 0.5:
            first -= 1  # and it has not been told of this one
        commits = {
            version: Ratified(version, self.staged[version][0], 0, 0)
            for version in range(max(1, first), latest + 1)
        }
        return CatalogTable(self.table_id, "simulated", True, latest, commits)


class CatalogFolder(BucketFolder):
    """A folder of a bucket, as a builder of tables writes it: commits go to the catalog."""

    def __init__(self, catalog: SimulatedCatalog, folder: str) -> None:
        super().__init__(catalog.bucket, folder)
        self._catalog = catalog

    def put(
        self, location: str, data: bytes, *, mtime_ms: int | None = None, new: bool = False
    ) -> None:
        """See :class:`tailer.testing.table_files.TableFiles`."""
        commit = re.fullmatch(r"_delta_log/([0-9]{20})\.json", location)
        if commit is None:
            super().put(location, data, mtime_ms=mtime_ms, new=new)
        else:
            version = int(commit[1])
            self._catalog.ratify(version, self._catalog.stage(version, data))


def catalog_store(catalog: SimulatedCatalog, files: Callable[[], Store]) -> CatalogStore:
    """Return a store of the table as its catalog shows it."""

    async def close() -> None:
        """It has no connections."""

    async def opened(_: CatalogTable) -> Store:
        return files()

    source = TableSource(catalog.load, opened, close, "the simulated catalog")
    return CatalogStore("simulated:table", source, lambda: catalog.world.now)
