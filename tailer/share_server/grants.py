"""What is shared, and with whom. Names are case-insensitive, and keep the case of the file.

A recipient without a grant gets the same answers as for an object that does not exist.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailer.errors import ConfigError
from tailer.sharing.model import Share, ShareSchema, Table

Wrong = Callable[[str, str], ConfigError]


@dataclass(frozen=True, slots=True)
class TableConfig:
    """One shared table. ``history``: old versions can be requested; ``cdf``: its changes can.

    ``also`` are folders outside the table's in which its files may be (shallow clones); ``store``
    the options of the table's store. ``proxy``: files on S3 pass through this server, instead of
    being read by pre-signed URLs of S3.
    """

    share: str
    schema: str
    name: str
    location: str
    history: bool = False
    cdf: bool = False
    also: tuple[str, ...] = ()
    proxy: bool = False
    store: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """The name without regard to case."""
        return self.share.lower(), self.schema.lower(), self.name.lower()

    def to_wire(self) -> Table:
        """Return the table as lists show it; its ids come from the names, so they are stable."""
        return Table(
            self.name,
            self.schema,
            self.share,
            _make_id("share", self.key[:1]),
            _make_id("table", self.key),
        )


def _make_id(kind: str, names: tuple[str, ...]) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"delta-sharing:{kind}:" + "/".join(names)))


@dataclass(slots=True)
class _Node:
    """A share or a schema, and its content: by name without case, in order."""

    name: str
    children: dict[str, _Node | TableConfig] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def add_child(self, name: str, child: _Node | TableConfig, wrong: Wrong) -> None:
        lowered = name.lower()
        # A dot would make a client's address `share.schema.table` ambiguous.
        if not name or set(name) & set("./\\") or not name.isprintable():
            raise wrong(
                "", "has a name that is empty, or has a dot, a slash or a control character"
            )
        if lowered in self.children:
            other = self.children[lowered].name
            raise wrong("", f"collides with {other!r}: names differ by more than their case")
        self.children[lowered] = child
        self.order.append(lowered)


class Catalog:
    """All shares of a configuration."""

    def __init__(self) -> None:
        self._root = _Node("")

    def add_share(self, name: str, wrong: Wrong) -> None:
        """Add a share; ``wrong`` makes the error for a name that collides or is invalid."""
        self._root.add_child(name, _Node(name), wrong)

    def add_schema(self, share: str, name: str, wrong: Wrong) -> None:
        """Add a schema to an existing share."""
        self._require_node(share).add_child(name, _Node(name), wrong)

    def add_table(self, table: TableConfig, wrong: Wrong) -> None:
        """Add a table to an existing schema."""
        self._require_node(table.share, table.schema).add_child(table.name, table, wrong)

    def _require_node(self, *names: str) -> _Node:
        node = self.find_entry(*names)
        assert isinstance(node, _Node)
        return node

    def find_entry(self, *names: str) -> _Node | TableConfig | None:
        """Return a share, schema or table by its names; None if it does not exist."""
        node: _Node | TableConfig | None = self._root
        for name in names:
            node = node.children.get(name.lower()) if isinstance(node, _Node) else None
        return node

    def list_children(self, *names: str) -> list[str]:
        """Return the names below, without case, in order; for the pages of a list."""
        node = self.find_entry(*names)
        if not isinstance(node, _Node):
            return []
        node.order.sort()  # names are only added at the start; sorting a sorted list costs nothing
        return node.order

    def list_tables(self) -> list[TableConfig]:
        """Return every table of every share."""
        tables: list[TableConfig] = []
        stack: list[_Node | TableConfig] = [self._root]
        while stack:
            node = stack.pop()
            if isinstance(node, TableConfig):
                tables.append(node)
            else:
                stack += node.children.values()
        return tables


class Grants:
    """Which recipient may see what: grants are paths of one to three names."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._granted: dict[str, set[tuple[str, ...]]] = {}

    def add_recipient(self, recipient: str) -> None:
        """Register a recipient, who may have no grant yet."""
        self._granted.setdefault(recipient, set())

    @property
    def recipients(self) -> list[str]:
        """All recipients of the configuration."""
        return sorted(self._granted)

    def add_grant(self, recipient: str, grant: str) -> bool:
        """Grant ``share``, ``share.schema`` or ``share.schema.table``.

        Return False if it does not exist.
        """
        names = tuple(grant.lower().split("."))
        if len(names) > 3 or self.catalog.find_entry(*names) is None:
            return False
        self._granted.setdefault(recipient, set()).add(names)
        return True

    def can_see(self, recipient: str, *names: str) -> bool:
        """Return whether a share, schema or table is granted, or anything in it is."""
        wanted = tuple(name.lower() for name in names)
        if self.catalog.find_entry(*wanted) is None:
            return False
        return any(
            wanted[: len(grant)] == grant[: len(wanted)]
            for grant in self._granted.get(recipient, ())
        )

    def find_share(self, recipient: str, share: str) -> Share | None:
        """Return a share that the recipient sees, else None."""
        node = self.catalog.find_entry(share) if self.can_see(recipient, share) else None
        return Share(node.name, _make_id("share", (share.lower(),))) if node else None

    def find_schema(self, recipient: str, share: str, schema: str) -> ShareSchema | None:
        """Return a schema that the recipient sees, else None."""
        if not self.can_see(recipient, share, schema):
            return None
        above, node = self.catalog.find_entry(share), self.catalog.find_entry(share, schema)
        return ShareSchema(node.name, above.name) if above and node else None

    def find_table(self, recipient: str, share: str, schema: str, table: str) -> TableConfig | None:
        """Return a table that the recipient may read, else None."""
        if not self.can_see(recipient, share, schema, table):
            return None
        node = self.catalog.find_entry(share, schema, table)
        return node if isinstance(node, TableConfig) else None

    def list_after(
        self, recipient: str, parent: tuple[str, ...], last: tuple[str, ...], *, deep: bool
    ) -> list[tuple[str, ...]]:
        """Return the paths below ``parent`` that the recipient sees, after ``last``, in order.

        An empty ``last``: from the first. ``deep``: the tables of a share, in all of its schemas.
        """
        following: list[tuple[str, ...]] = []
        names = self.catalog.list_children(*parent)
        first = bisect_right(names, last[0]) if last and not deep else 0
        for name in names[first:]:
            path = (*parent, name)
            if not self.can_see(recipient, *path):
                continue
            if not deep:
                following.append((name,))
                continue
            if last and name < last[0]:
                continue
            inner = self.list_after(recipient, path, last[1:] if last and name == last[0] else (),
                               deep=False)  # fmt: skip
            following += [(name, *tail) for tail in inner]
        return following
