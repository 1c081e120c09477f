"""Preimages that wait for their postimages: in memory up to a bound, then in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import spilling
from tailer.files.spill import SpillFolder


@dataclass(slots=True)
class _Held:
    """Some preimages: their places, sorted, and their rows, in memory or in a file."""

    places: pa.Int64Array
    rows: pa.RecordBatch | Path
    remaining: int


@dataclass(slots=True)
class Preimages:
    """Preimages that wait for their postimages: in memory up to a bound, then in files.

    They are added in ascending order of place, and each is taken once.
    """

    bytes_max: int
    folder: str | None = None
    held_bytes: int = 0
    _held: list[_Held] = field(default_factory=list)
    _spill: SpillFolder | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.clear()
        if self._spill is not None:
            self._spill.close()

    def add_rows(self, places: pa.Int64Array, rows: pa.RecordBatch) -> None:
        """Keep the rows of these places."""
        self._held.append(_Held(places, rows, len(places)))
        self.held_bytes += int(rows.nbytes)
        while self.held_bytes > self.bytes_max:
            self._move_to_file(next(h for h in self._held if isinstance(h.rows, pa.RecordBatch)))

    def _move_to_file(self, held: _Held) -> None:
        """Move the rows that have waited longest in memory into a file."""
        assert isinstance(held.rows, pa.RecordBatch)
        with spilling(self.folder):
            if self._spill is None:
                self._spill = SpillFolder("tailer-pairs-", self.folder)
            path = Path(self._spill.folder, f"{held.places[0].as_py()}.arrow")
            with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, held.rows.schema) as ipc:
                ipc.write_batch(held.rows)
        self.held_bytes -= int(held.rows.nbytes)
        held.rows = path

    def take_rows(self, places: pa.Int64Array) -> pa.StructArray:
        """Return the rows of these places, in their order. Each is returned once."""
        parts, found = [], []
        low, high = (edge.as_py() for edge in pc.min_max(places).values())
        for held in list(self._held):
            if held.places[-1].as_py() < low or held.places[0].as_py() > high:
                continue
            at = pc.index_in(held.places, value_set=places)
            wanted = at.is_valid()
            count = pc.sum(wanted).as_py() or 0
            if count:
                indices = pa.arange(0, len(at)).filter(wanted)
                parts.append(self._read_rows(held, indices))
                found.append(at.filter(wanted))
                held.remaining -= count
                if not held.remaining:
                    self._drop_held(held)
        order = pc.sort_indices(pa.concat_arrays(found))
        return pa.concat_arrays(parts).take(order)

    def _read_rows(self, held: _Held, indices: pa.Int64Array) -> pa.StructArray:
        if isinstance(held.rows, pa.RecordBatch):
            return held.rows.take(indices).to_struct_array()
        with pa.memory_map(str(held.rows)) as source, pa.ipc.open_file(source) as reader:
            return reader.get_batch(0).take(indices).to_struct_array()

    def _drop_held(self, held: _Held) -> None:
        self._held.remove(held)
        if isinstance(held.rows, pa.RecordBatch):
            self.held_bytes -= int(held.rows.nbytes)
        else:
            held.rows.unlink()


class Numbers(Sequence[int]):
    """An Arrow array as a sequence of integers, for bisection."""

    def __init__(self, values: pa.Int64Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index].as_py()
