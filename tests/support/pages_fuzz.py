"""Decodes damaged pages: arguments FILE ROUNDS SEED FOLDER.

Run by `test_compiled_pages.py` with an extension that watches each address and each sum. FOLDER has
whole Parquet files that are not compressed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.extensions import extension
from tests.support.footers_fuzz import END, damaged

FORMS = 6
TEXT = 5
LENGTHS = {0: 4, 1: 8, 2: 4, 3: 8}
SIZES = {0: 4, 1: 8, 2: 16, 3: 16, 4: 16}


def pages(native: Any, data: bytes, chunk: tuple[int, ...]) -> Iterator[tuple[Any, bytes]]:
    """The pages of a column chunk as far as they can be told apart."""
    at, end = chunk[5], chunk[5] + chunk[6]
    while at < end:
        header = native.header(data[at : at + 512])
        if header is None:
            return
        at += header[0] + header[3]
        yield header, data[at - header[3] : at]


def take(native: Any, dice: random.Random, form: int, length: int, page: Any, words: Any) -> int:
    """Take a page's rows in arrays of any size; returns how many were taken."""
    header, content = page
    state = bytearray(native.STATE_SIZE)
    is_nullable = dice.random() < 0.7
    split = 4 + int.from_bytes(content[:4], "little") if is_nullable else 0
    levels, values = content[4:split] if is_nullable else None, content[split:]
    coded = words is not None and dice.random() < 0.8
    native.begin(state, header[4], values[0] % 33 if coded and values else 0 if coded else -1)
    taken = 0
    count: int
    left: int
    for _ in range(50):
        rows, done, used = dice.choice([1, 7, 8, 100, 3000]), 0, 0
        out = bytearray(dice.choice([0, 10, 1000]) if form == TEXT else rows * SIZES[form])
        bits, ends = bytearray((rows + 7) // 8), bytearray(4 * (rows + 1))
        for _ in range(10):
            count, used, left = native.take(
                state, form, length, levels, values, words[0] if coded else None,
                bits, ends, out, words[1] if coded else None, rows, done, used,
            )  # fmt: skip
            if count < 0 or not left or done + count == rows:
                break
            done, out = done + count, out + bytes(len(out) + 64)
        taken += max(count, 0)
        native.nulls(state)
        if count < 0 or not left:
            return taken
    return taken


def main() -> None:
    native = extension("tailer._pages", sys.argv[1])
    dice = random.Random(int(sys.argv[3]))
    whole = [path.read_bytes() for path in sorted(Path(sys.argv[4]).glob("*.parquet"))]
    taken = 0
    for _ in range(int(sys.argv[2])):
        data = dice.choice(whole)
        if dice.random() < 0.8:
            data = damaged(dice, data)
        length = int.from_bytes(data[-END:-4], "little")
        for chunk in native.chunks(data[-END - length : -END], dice.randrange(3)) or ():
            form = dice.randrange(FORMS)
            size = LENGTHS.get(form, dice.randrange(1, 17))
            words = None
            for header, content in pages(native, data, chunk):
                if header[1] == 2:
                    words = native.dictionary(form, size, content, header[4])
                else:
                    taken += take(native, dice, form, size, (header, content), words)
    assert taken
    print("done")


if __name__ == "__main__":
    main()
