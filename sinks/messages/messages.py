"""A batch as messages, in arrays, and how they are divided among requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.parts import table_name
from sinks.shared.routes import Route
from tailer.changes import COMMIT_VERSION, ChangeBatch
from tailer.errors import RowsRefused
from tailer.sink.encoder import Encoder

#: No limit that a server tells is more: no value of Arrow's texts has more bytes.
_LIMIT_MAX = 2**31 - 1


def parse_limit(limit: Any, otherwise: int, least: int = 1) -> int:
    """Return a limit that a server gives, or ``otherwise`` if it gives none, or nonsense, by
    which no row is refused: less than the ``least`` that it can be set to, say."""
    try:
        found = int(limit)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return found if least <= found <= _LIMIT_MAX else otherwise


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request takes: messages, bytes of all of them with ``overhead`` for each, and bytes
    of a single one (None: those of a request), which is alone if it has more than the request's.
    ``remedy`` is for a message that is too large. ``one_key``: a request takes messages of one key
    alone."""

    messages: int
    bytes: int
    message_bytes: int | None = None
    overhead: int = 0
    remedy: str = ""
    one_key: bool = False


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of consecutive rows, one each, in order: ``values`` (binary), the events'
    ``ids``, and ``keys`` (binary; None: they have none). ``places`` are where each of them goes
    (texts by a dictionary; None: all to one place). ``versions`` and ``table`` are for errors."""

    batch: ChangeBatch
    values: pa.BinaryArray
    ids: pa.StringArray
    versions: pa.Int64Array
    table: str
    keys: pa.BinaryArray | None = None
    places: pa.Array | None = None

    @classmethod
    def from_batch(
        cls, batch: ChangeBatch, encoder: Encoder, route: Route | None = None
    ) -> Messages:
        """Encode a batch, which has rows."""
        records = encoder.encode(batch)
        ids: Any = dict(records.whole_headers())["_event_id"]
        versions = batch.rows.column(COMMIT_VERSION)
        places = None if route is None else route.name_rows(batch, {})
        if route is not None and (long := route.find_long_name(places)) is not None:
            place, said = long
            raise RowsRefused(
                f"table {table_name(batch, '')}, version {versions[place]}: for the event "
                f"{ids[place]}, {said}; route by a column of short values, or park such rows with "
                'on_reject = "park"'
            )
        return cls(
            batch, records.whole_values(), ids, versions, table_name(batch, ""), records.keys,
            places,
        )  # fmt: skip

    def list_places(self, place: str) -> list[str]:
        """Return where each message goes: ``place``, if all go to one."""
        return [place] * len(self) if self.places is None else self.places.to_pylist()

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, first: int, end: int) -> Messages:
        """Return the messages ``first`` to ``end`` (exclusive) of the same batch."""
        return self._apply(lambda array: array.slice(first, end - first))

    def take(self, places: pa.Int64Array) -> Messages:
        """Return the messages at these places."""
        return self._apply(lambda array: array.take(places))

    def without_ids(self, ids: pa.StringArray) -> Messages:
        """Return the messages that have none of these ids."""
        left = pc.invert(pc.is_in(self.ids, ids))
        return self._apply(lambda array: array.filter(left))

    def _apply(self, some: Callable[[pa.Array], pa.Array]) -> Messages:
        return replace(
            self,
            values=some(self.values),
            ids=some(self.ids),
            versions=some(self.versions),
            keys=None if self.keys is None else some(self.keys),
            places=None if self.places is None else some(self.places),
        )

    def split_into_requests(self, limits: RequestLimits) -> Iterator[Messages]:
        """Yield the messages in requests, as many in each as it takes. Raises
        :class:`SinkRejected`, before the first, if one is too large."""
        self.check_sizes(limits)
        yield from self.split_checked(limits)

    def split_checked(self, limits: RequestLimits) -> Iterator[Messages]:
        """Do the same with messages that :meth:`check_sizes` has seen."""
        ends = self._view_ends() if len(self) else []
        first = 0
        while first < len(self):
            begun, most = first, min(first + limits.messages, len(self))

            def size(end: int, begun: int = begun) -> int:
                return ends[end] - ends[begun] + (end - begun) * limits.overhead

            first += max(1, bisect_right(range(begun + 1, most + 1), limits.bytes, key=size))
            yield self.slice(begun, first)

    def _view_ends(self) -> Sequence[int]:
        """Return the places of the values in their buffer: one more than there are values."""
        ends = memoryview(self.values.buffers()[1]).cast("i")
        return ends[self.values.offset : self.values.offset + len(self) + 1]

    def check_sizes(self, limits: RequestLimits) -> None:
        """Raise :class:`SinkRejected`, naming the first one, if a message is too large."""
        most = limits.message_bytes
        if most is None:
            most = limits.bytes - limits.overhead
        sizes = pc.binary_length(self.values)
        place = pc.index(pc.greater(sizes, most), value=True).as_py()
        if place >= 0:
            raise RowsRefused(
                f"table {self.table}, version {self.versions[place]}: the event "
                f"{self.ids[place]} has {sizes[place]} bytes, and at most {most} can be sent; "
                f"{limits.remedy}exclude columns with `select`, or park such rows with "
                'on_reject = "park"'
            )
