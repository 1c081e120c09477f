"""Where a round's table lies: a folder, or a bucket behind a front that cuts and lies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.catalog.server import CatalogServer
from tests.catalog.writer import ManagedTable
from tests.clouds.servers import Container
from tests.s3.fixture import Bucket
from tests.s3.front import Fault, Front, run_front
from tests.support.link import TROUBLES, Link

#: What a network or a server does and a feed must survive: kinds of :data:`tests.s3.front.FAULTS`.
_PASSING = ("500", "503", "429", "timeout", "reset", "truncated", "lost", "short and whole")
_OPERATIONS = ("get", "head", "list", "put")


@dataclass(frozen=True)
class Place:
    """A table's address, a folder for state beside it, and the options of both sides."""

    table: str
    state: str
    deltalake: Mapping[str, str] = field(default_factory=dict)
    #: The daemon's section ``[store.NAME]``.
    section: str = ""
    front: Front | None = None

    @property
    def remote(self) -> bool:
        """Whether there is a network between it and the daemon."""
        return self.front is not None

    def disturb(self, draw: Callable[[int], int]) -> str:
        """Let some of the next requests go wrong; ``draw(n)`` is a number below n."""
        if self.front is None:
            return ""
        kind, operation = _PASSING[draw(len(_PASSING))], _OPERATIONS[draw(len(_OPERATIONS))]
        count = 1 + draw(5)
        self.front.fail(Fault(kind, operation, count=count, after=draw(3)))
        return f"{kind} x{count} of {operation}"

    def heal(self) -> None:
        """From now on, all goes well."""
        if self.front is not None:
            self.front.heal()


@dataclass(frozen=True)
class CatalogPlace(Place):
    """A table that its catalog manages. The daemon reaches the catalog by a link, its writer goes
    past it; ``server`` is the tests' own, which can also be late."""

    managed: ManagedTable = field(default_factory=lambda: ManagedTable(""))
    link: Link | None = None
    server: CatalogServer | None = None

    @property
    def remote(self) -> bool:
        return True

    def disturb(self, draw: Callable[[int], int]) -> str:
        assert self.link is not None
        if self.server is not None and draw(2):
            self.server.late = 1 + draw(3)
            return f"{self.server.late} versions late"
        trouble = TROUBLES[draw(len(TROUBLES))]
        self.link.disturb(trouble)
        return trouble

    def heal(self) -> None:
        if self.link is not None:
            self.link.heal()
        if self.server is not None:
            self.server.late = 0


def local_place(folder: Path) -> Place:
    """A table in a folder."""
    return Place(str(folder / "table"), str(folder / "state"))


@contextmanager
def remote_place(bucket: Bucket | Container) -> Iterator[Place]:
    """A table in a bucket. The daemon sees it through a front, the writer does not."""
    with run_front(bucket) as front:
        scheme = bucket.address("").partition(":")[0]
        lines = [
            f"[store.{scheme}]",
            *(f"{k} = {json.dumps(v)}" for k, v in front.bucket.options.items()),
        ]
        yield Place(
            bucket.address("lake/table"),
            bucket.address("state"),
            bucket.deltalake,
            "\n".join(lines),
            front,
        )
