"""The names that an output gives to columns of its own, beside those of the table.

A table may have any names. Where one of its columns has the name of a column that the output adds,
one of the two would hide the other, so it is refused, by name, before a row is written.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tailer.errors import UnsupportedTable

#: What the names begin with, unless an option says otherwise.
OWN_PREFIX = "_"


def add_prefix(name: str, prefix: str) -> str:
    """Return one of our names, which begins with an underscore, with the prefix in its place."""
    return prefix + name.removeprefix(OWN_PREFIX)


def fold_case(name: str) -> str:
    """Return what names have in common that differ in case alone. Each character has one small
    letter: databases have no other pairs."""
    return "".join(character.lower()[0] for character in name)


class OwnNames(Struct, frozen=True):
    """``names`` are those of the output's own columns, and ``fixed`` those among its columns that
    nothing renames. ``folded``: the output does not tell names apart that differ in case alone,
    neither these nor the table's."""

    names: tuple[str, ...] = ()
    folded: bool = False
    fixed: tuple[str, ...] = ()

    @classmethod
    def of(cls, *names: str, prefix: str = OWN_PREFIX, folded: bool = False) -> OwnNames:
        """Return own names, each with the prefix in place of its underscore."""
        return cls(tuple(add_prefix(name, prefix) for name in names), folded)

    def check(self, columns: Iterable[str]) -> None:
        """Raise :class:`UnsupportedTable` for a column that has one of these names, and for two
        columns that the output can't tell apart."""
        taken = {self._fold_key(name): name for name in (*self.names, *self.fixed)}
        seen: dict[str, str] = {}
        for column in columns:
            key = self._fold_key(column)
            if key in taken:
                ours = ", or rename ours with the option own_prefix"
                raise UnsupportedTable(
                    f"the table has a column {column!r}, and the output adds a column "
                    f"{taken[key]!r} of its own",
                    hint="exclude the table's with the option select"
                    + (ours if taken[key] in self.names else ""),
                )
            if key in seen:
                raise UnsupportedTable(
                    f"the table has the columns {seen[key]!r} and {column!r}, which are one name "
                    "in this output",
                    hint="exclude one of them with the option select, or rename it",
                )
            seen[key] = column

    def _fold_key(self, name: str) -> str:
        return fold_case(name) if self.folded else name


#: Those of an output that adds nothing.
NO_NAMES = OwnNames()
