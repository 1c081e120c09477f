"""How long the texts and bytes of a table's columns may be.

MySQL cuts blanks off that do not fit, also in its strict mode, and so makes two keys one. So every
length is known here, and compared before a value is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from sinks.sql.text import Room

#: The lengths of a table's columns; of texts without a length their bytes.
LENGTHS = """
    SELECT column_name, data_type, character_maximum_length FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = ? AND character_maximum_length IS NOT NULL
"""
#: Bytes that the columns of a key have together, and the most of a character.
_KEY_BYTES, _CHARACTER_BYTES = 3072, 4
_OTHER_BYTES = 16
#: No value of Arrow's texts has more bytes.
_ANY = 2**31
_CHARACTERS = ("char", "varchar")


def find_key_rooms(key: Sequence[str], schema: pa.Schema) -> dict[str, Room]:
    """Return the room of the texts and bytes of a key: they share what an index takes."""
    types = pa.types
    sized = [
        f for f in map(schema.field, key) if types.is_binary(f.type) or types.is_string(f.type)
    ]
    if not sized:
        return {}
    most = (_KEY_BYTES - _OTHER_BYTES * (len(key) - len(sized))) // len(sized)
    return {f.name: _make_room(f.type, most) for f in sized}


def _make_room(data_type: pa.DataType, size: int) -> Room:
    if pa.types.is_binary(data_type):
        return Room(size, "bytes")
    return Room(size // _CHARACTER_BYTES, "characters")


def find_table_rooms(
    rows: Sequence[tuple[str, str, int]], key: Mapping[str, Room]
) -> dict[str, Room]:
    """Return the room of each column of a table, from the rows of :data:`LENGTHS`. Columns of the
    key have no more than in ``key``, because keys are looked up by tables that are made so."""
    rooms = {
        name: Room(int(most), "characters" if kind in _CHARACTERS else "bytes")
        for name, kind, most in rows
        if int(most) < _ANY
    }
    return rooms | {
        name: min(room, rooms.get(name, room), key=lambda one: one.most)
        for name, room in key.items()
    }
