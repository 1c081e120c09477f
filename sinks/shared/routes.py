"""Names with columns in them: where each row goes by what is in it, as in ``orders.{country}``.

| in braces | becomes |
|---|---|
| ``{feed}``, ``{table}`` | what the sink fills in for all rows |
| ``{country}`` | the row's value; ``null`` if it is null or empty |
| ``{country|none}`` | the same, with another name for null |
| ``{{orders}}`` | ``{orders}``, as it stands: a hash tag of Redis |

A byte that the target's names can't have becomes ``_`` (in a URL ``%``) and its two hexadecimal
digits. Two values that become one name share the target.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, TargetRefused, meant

_BRACES = re.compile(r"\{\{([^{}]*)\}\}|\{([^{}|]+)(?:\|([^{}]*))?\}")
_NULL = "null"
#: More topics than this are no routes but a mistake.
TARGETS_MAX = 1000


class Route:
    """A template. ``filled`` are the names in braces that the sink fills in, ``unsafe`` matches
    what a value's part of a name can't have, ``escape`` stands before the digits of its bytes.
    ``option`` is its name, for messages; a line of a name may have ``bytes_max`` bytes (0: any
    number)."""

    def __init__(
        self,
        template: str,
        option: str,
        filled: Collection[str],
        unsafe: re.Pattern[str],
        escape: str = "_",
        bytes_max: int = 0,
    ) -> None:
        self.template = template
        self._option, self._bytes_max = option, bytes_max
        self._unsafe, self._escape = unsafe, escape
        self._parts: list[str | tuple[str, str]] = []
        at = 0
        for found in _BRACES.finditer(template):
            literal, column, null = found.groups()
            if column in filled:
                continue
            part = f"{{{literal}}}" if column is None else (column, null or _NULL)
            self._parts += [template[at : found.start()], part]
            at = found.end()
        self._parts.append(template[at:])

    @property
    def columns(self) -> list[str]:
        """Return the columns in it; none if all rows go to one target."""
        return [part[0] for part in self._parts if isinstance(part, tuple)]

    def mask_columns(self, by: str) -> str:
        """Return the template with ``by`` in the place of each column."""
        return "".join(part if isinstance(part, str) else by for part in self._parts)

    def check(self, columns: pa.Schema) -> None:
        """Raise :class:`ConfigError` for a column that rows do not have, or that is in no name."""
        for name in self.columns:
            if name not in columns.names:
                raise ConfigError(
                    f"option {self._option!r} names the column {name!r}, which the rows do not "
                    f"have{meant(name, columns.names)}"
                )
            kind = columns.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise ConfigError(
                    f"option {self._option!r} names the column {name!r}, which is a {kind}: name "
                    "one of texts, numbers or dates"
                )

    def name_rows(self, batch: ChangeBatch, filled: Mapping[str, str]) -> pa.DictionaryArray:
        """Return each row's name (texts by a dictionary)."""
        parts = []
        for part in self._parts:
            if isinstance(part, str):
                for name, value in filled.items():
                    part = part.replace(f"{{{name}}}", value)  # noqa: PLW2901
                parts.append(pa.repeat(pa.scalar(part), batch.num_rows))
            else:
                parts.append(self._format_values(batch.rows.column(part[0]), part[1]))
        return pc.binary_join_element_wise(*parts, "").dictionary_encode()

    def find_long_name(self, names: pa.DictionaryArray) -> tuple[int, str] | None:
        """Return the place of the first row whose name is too long, and what is wrong with it."""
        for number, name in enumerate(names.dictionary.to_pylist() if self._bytes_max else ()):
            size = max(len(line.encode()) for line in name.split("\n"))
            if size > self._bytes_max:
                place = pc.index(names.indices, number).as_py()
                most = self._bytes_max
                return place, f"{self._option!r} would have {size} bytes, and may have {most}"
        return None

    def _format_values(self, column: pa.Array, null: str) -> pa.StringArray:
        coded = column.cast(pa.string()).dictionary_encode()
        safe = [
            self._unsafe.sub(self._escape_bytes, value) or null
            for value in coded.dictionary.to_pylist()
        ]
        return pc.fill_null(pa.array(safe, pa.string()).take(coded.indices), null)

    def _escape_bytes(self, match: re.Match[str]) -> str:
        # Dots alone would lead to another folder of a URL, also if they are encoded as it has it.
        escape = self._escape if match[0].strip(".") else "_"
        return "".join(f"{escape}{byte:02X}" for byte in match[0].encode())

    def split_rows(
        self, batch: ChangeBatch, filled: Mapping[str, str]
    ) -> Iterator[tuple[str, ChangeBatch]]:
        """Yield each target's name and its rows, in the order of their first rows."""
        names = self.name_rows(batch, filled)
        known = names.dictionary.to_pylist()
        if len(known) == 1:
            yield known[0], batch
        elif known:
            yield from zip(known, batch.groups(names.indices), strict=True)


class Targets:
    """The targets that a process has made for a feed: ``most`` at most, since a column of many
    values is a mistake that a cluster remembers."""

    def __init__(self, most: int = TARGETS_MAX) -> None:
        self._most = most
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str, what: str) -> None:
        """Note a target. Raises :class:`TargetRefused` for one too many."""
        self._names.add(name)
        if len(self._names) > self._most:
            raise TargetRefused(
                f"{what} {name!r} would be one more than {self._most} targets of one feed; "
                "route by a column of fewer values, or by an expression over it"
            )
