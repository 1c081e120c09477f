"""Decodes damaged pages: arguments FILE ROUNDS SEED FOLDER.

Run by `test_compiled_pages.py` with an extension that watches each address and each sum. FOLDER has
whole Parquet files.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from tests.support.extensions import extension
from tests.support.footers_fuzz import END, damaged

FORMS = 7
TEXT = 5
LENGTHS = {0: 4, 1: 8, 2: 4, 3: 8}
SIZES = {0: 4, 1: 8, 2: 16, 3: 16, 4: 16, 6: 4}
NOTHING, BYTES, ROOM, UNPACKED = range(4)


def ask(dice: random.Random, column: Any, form: int, rows: int, *, is_nullable: bool) -> bytearray:
    """Ask a column for rows, or measure them; returns the array's buffer."""
    if form == TEXT and dice.random() < 0.2:
        column.begin(max(rows, 1), None, None, None)
        return bytearray()
    out = bytearray(dice.choice([0, 10, 1000]) if form == TEXT else rows * SIZES[form])
    validity = bytearray((rows + 7) // 8) if is_nullable else None
    column.begin(rows, validity, bytearray(4 * (rows + 1)) if form == TEXT else None, out)
    return out


def serve(
    dice: random.Random, column: Any, data: bytearray, out: bytearray
) -> tuple[int, bytearray]:
    """Give what a column needs. Returns what it was, and the array's buffer."""
    need, size, used, _, _, done = column.state()
    if need == BYTES:
        with column.window(size + dice.choice([0, 0, 100, 100_000])) as window:
            some = data[: len(window)]
            window[: len(some)] = some
            column.filled(len(some))
            del data[: len(some)]
    elif need == ROOM and done and dice.random() < 0.3:
        column.cut()
        return NOTHING, out
    elif need == ROOM:
        out = bytearray(out + bytes(len(out) + 64))
        assert used <= len(out)
        column.grow(out)
    elif need == UNPACKED:
        page = column.packed()
        column.give(dice.choice([page, b""])[:size].ljust(size, b"\x01"))
    return need, out


def decode(native: Any, dice: random.Random, data: bytes, chunk: tuple[int, ...]) -> int:
    """Decode a column chunk in arrays of any size; returns how many of them."""
    form, is_nullable = dice.randrange(FORMS), dice.random() < 0.7
    length = LENGTHS.get(form, dice.randrange(1, 17))
    _, codec, _, rows, _, start, size = chunk
    size = min(size, len(data))
    codec = codec if dice.random() < 0.9 else dice.choice([0, 1, 6])
    column = native.Column(
        form, length, is_nullable, codec, min(rows, 10_000), size, dice.random() < 0.3
    )
    rest = bytearray(data[start : start + size])
    for taken in range(30):
        out = ask(dice, column, form, dice.choice([0, 1, 7, 8, 100, 3000]), is_nullable=is_nullable)
        for _ in range(200):
            native.run((column,))
            need, out = serve(dice, column, rest, out)
            if need == NOTHING:
                break
            if need > UNPACKED:
                return taken
        column.dictionary()
    return 30


def main() -> None:
    native = extension("tailer.native._pages", sys.argv[1])
    dice = random.Random(int(sys.argv[3]))
    whole = [path.read_bytes() for path in sorted(Path(sys.argv[4]).glob("*.parquet"))]
    taken = 0
    for _ in range(int(sys.argv[2])):
        data = dice.choice(whole)
        if dice.random() < 0.8:
            data = damaged(dice, data)
        length = int.from_bytes(data[-END:-4], "little")
        at = dice.randrange(len(data))
        native.page_sizes(data[at:])
        native.longest(data[at:])
        native.is_ascii(data, at, dice.randrange(-1, len(data) + 2))
        for _, _, chunks in native.groups(data[-END - length : -END]) or ():
            for chunk in chunks:
                taken += decode(native, dice, data, chunk)
    assert taken
    print("done")


if __name__ == "__main__":
    main()
