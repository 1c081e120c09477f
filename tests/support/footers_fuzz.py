"""Merges Parquet files with damaged footers: arguments FILE ROUNDS SEED FOLDER.

Run by `test_compiled_footers.py` with an extension that watches each address and each sum. FOLDER
has whole Parquet files.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.support.extensions import extension

END = 8  # the length of a footer, and the magic bytes


def damaged(dice: random.Random, whole: bytes) -> bytes:
    """A file with other bytes in its footer or its pages, cut, or with a wrong length of footer."""
    data = bytearray(whole)
    length = int.from_bytes(data[-END:-4], "little")
    first = len(data) - END - length
    for _ in range(dice.choice([0, 1, 1, 2, 5])):
        start = dice.choice([first, first, len(data) - END - 16, 0])
        at = dice.randrange(max(0, start), len(data))
        data[at] = dice.choice([0, 0x19, 0x7F, 0x80, 0xFF, data[at] ^ 1 << dice.randrange(8)])
    match dice.randrange(12):
        case 0:
            return bytes(data[: dice.randrange(len(data) + 1)])
        case 1:
            data[-END:-4] = dice.choice([0, length - 1, length + 1, len(data), 2**32 - 1]).to_bytes(
                4, "little"
            )
        case 2:  # ten bytes of a number, and more
            at = dice.randrange(first, len(data) - END)
            data[at:at] = b"\xff" * dice.randrange(1, 12)
    return bytes(data)


def main() -> None:
    native = extension("tailer.native._footers", sys.argv[1])
    dice = random.Random(int(sys.argv[3]))
    whole = [path.read_bytes() for path in sorted(Path(sys.argv[4]).glob("*.parquet"))]
    merged = 0
    for _ in range(int(sys.argv[2])):
        one = dice.choice(whole)
        files = [
            one if dice.random() < 0.5 else damaged(dice, one) for _ in range(dice.randrange(5))
        ]
        bounds = dice.choice([0, 10, 2**63 - 1]), dice.choice([0, 1000, 2**63 - 1])
        data, rows, largest = native.merge(files, *bounds)
        assert largest >= 0
        assert len(data) <= 8 * sum(map(len, files)) + 1024
        merged += len(rows) > 1
    assert merged
    print("done")


if __name__ == "__main__":
    main()
