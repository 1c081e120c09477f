"""Whether a selection fits a table as it is now: what a user learns before anything runs."""

from __future__ import annotations

from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, SchemaChanged, meant
from tailer.shape.columns import TableColumns
from tailer.shape.selection import Selection
from tailer.shape.shaper import Shaper


def check_selection(selection: Selection, state: TableState, zone: str = "UTC") -> TableState:
    """Return what sinks see of a table's present state.

    Raises :class:`ConfigError` for a selection that does not fit it.
    """
    names = state.schema.names
    known = {name.lower() for name in names}
    select = () if selection.select is None else selection.select.list_columns()
    for key, wanted in (("select", select), ("mask", selection.masks)):
        for name in wanted:
            if name.lower() not in known:
                raise ConfigError(
                    f"{key} names no column {name!r}{meant(name, names)}; it has {', '.join(names)}"
                )
    shaper = Shaper(selection, TableColumns(zone))
    try:
        shaper.check_state(state)
    except SchemaChanged as e:
        raise ConfigError(str(e)) from None
    return shaper.shape_state(state)
