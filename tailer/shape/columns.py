"""The table's columns by the names that a configuration gives them.

A configuration is written for the table as it is now, and read in every version. So a name is
looked up in the newest version that is known, and there is the same column, whatever it was called
before; a name that the newest version does not have is the version's own.

| the version | an expression or condition | a column that is only passed on |
|---|---|---|
| has the column, also under another name | its values | its values |
| lacks it, and the newest one has it: it was added later | null | left out |
| lacks it, and so does the newest one: it was dropped, or renamed before the feed ran | the feed \
stops | left out |

Expressions and conditions compute with the newest type of a column, where it was widened.
"""

from __future__ import annotations

from tailer.delta.snapshot import TableState
from tailer.delta.types import DataType, StructField


class TableColumns:
    """Finds columns by their names. ``zone`` is the writer's time zone."""

    def __init__(self, zone: str = "UTC") -> None:
        self.zone = zone
        self._newest: tuple[int, TableState] | None = None
        #: Physical names by the names that columns have had: a rename does not change them.
        self._known: dict[str, str] = {}

    @property
    def are_known(self) -> bool:
        """Whether any version's state is known."""
        return self._newest is not None

    def learn_state(self, version: int, state: TableState) -> None:
        """Take the state of a version, if it is the newest so far."""
        if self._newest is None or version >= self._newest[0]:
            self._newest = version, state
            for field in state.schema if state.mapping != "none" else ():
                self._known[field.name.lower()] = state.physical_name(field).lower()

    def find_column(self, name: str, state: TableState) -> StructField | None:
        """Return a column as a version's state has it; None if that lacks it."""
        newest = self._find_newest(name)
        own = _find_by_name(state, name)
        if newest is None and own is not None:
            self._known.setdefault(name.lower(), state.physical_name(own).lower())
            return own
        # The first name of a column whose table got column mapping later is its physical one.
        physical = self._known.get(name.lower(), name.lower())
        stored = (f for f in state.schema if state.physical_name(f).lower() == physical)
        return next(stored, own)

    def find_newest_type(self, name: str) -> DataType | None:
        """Return the type that a column has in the newest version; None if that lacks it."""
        newest = None
        if self._newest is not None:
            newest = self.find_column(name, self._newest[1])
        return None if newest is None else newest.type

    def _find_newest(self, name: str) -> StructField | None:
        return None if self._newest is None else _find_by_name(self._newest[1], name)


def _find_by_name(state: TableState, name: str) -> StructField | None:
    found = (f for f in state.schema if f.name.lower() == name.lower())
    return next(found, None)


class NeededColumns:
    """The columns of a table that are decoded: those of these ``names``, in their order."""

    def __init__(self, names: tuple[str, ...], columns: TableColumns) -> None:
        self._names = names
        self._columns = columns

    def __call__(self, state: TableState) -> tuple[str, ...]:
        """Return the names that they have in a state, each once."""
        found = (self._columns.find_column(name, state) for name in self._names)
        return tuple(dict.fromkeys(field.name for field in found if field is not None))
