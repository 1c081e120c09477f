"""What a :class:`~tests.tables.writer.TableWriter` does for its log: none of it changes the
table."""

from __future__ import annotations

import random
from pathlib import Path

from tailer.testing.actions import Action
from tests.support.builders import VersatileBuilder
from tests.tables.model import TableVersion


class LogUpkeep:
    """The part of a writer that keeps the log short: it draws how, and its builder writes."""

    present: TableVersion
    versions: dict[int, TableVersion]
    builder: VersatileBuilder
    rng: random.Random

    def checkpoint(self, kind: str = "classic", version: int | None = None) -> Path:
        """Write a checkpoint of a version (None: the newest), and ``_last_checkpoint``; its kind is
        one of the builder's. Returns its (first) file."""
        number = self.present.version if version is None else version
        return self.builder.checkpoint(
            number,
            kind=kind,
            actions=_effective(self.versions[number]),
            parts=self.rng.choice([2, 3]),
            sidecars=self.rng.choice([0, 1, 1, 2, 2]),
            # Writers may leave the checksum out.
            checksum=self.rng.random() < 0.75,
        )

    def compact_log(self, first: int) -> Path:
        """Write the log compaction of the versions ``first`` to the newest; two at least."""
        return self.builder.compact_log(first, self.present.version)

    def clean_log(self) -> int:
        """Remove all that is older than the newest checkpoint. Returns its version, the oldest
        that can still be built; with no checkpoint nothing is removed, and it is 0."""
        checkpoints = self.builder.log.glob("*.checkpoint.*")
        newest = max((int(f.name[:20]) for f in checkpoints), default=0)
        self.builder.clean_log(newest)
        return newest


def _effective(version: TableVersion) -> list[Action]:
    """The actions in effect: by the model, for the log may have been cleaned up."""
    domain = version.domain()
    steering = [version.protocol(), version.metadata(), *([] if domain is None else [domain])]
    files = [file.add() for file in version.files.values()]
    return [*steering, *files, *version.tombstones.values()]
