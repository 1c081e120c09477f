"""Calls the compiled part with all that may be wrong: arguments FILE ROUNDS SEED.

Run by `test_compiled_rowbytes.py` with an extension that watches each address and each sum.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from typing import Any

from tests.support.extensions import extension

NUMBERS = (0, 1, 2, 3, 7, 8, 9, 63, 64, -1, -2, 2**31 - 1, 2**31, 2**32, 2**61 - 2, 2**61 - 1,
           2**61, 2**62 - 1, 2**62, 2**63 - 9, 2**63 - 2, 2**63 - 1, -(2**63))  # fmt: skip


def number(dice: random.Random) -> int:
    return dice.choice(NUMBERS) if dice.random() < 0.5 else dice.randrange(12)


def buffer(dice: random.Random, data: bytes) -> Any:
    """Some bytes: as they are, cut, or at an odd address."""
    match dice.randrange(8):
        case 0:
            return None
        case 1:
            return data[: dice.randrange(len(data) + 1)]
        case 2:
            return memoryview(b"x" + data)[1:]
        case _:
            return data


def ends(dice: random.Random, size: int, rows: int) -> bytes:
    places = sorted(dice.randrange(size + 1) for _ in range(rows + 1))
    if dice.random() < 0.3:
        places[dice.randrange(len(places))] = dice.choice([-1, size + 1, 2**31 - 1, -(2**31)])
    return b"".join(place.to_bytes(4, "little", signed=True) for place in places)


def part(dice: random.Random, rows: int) -> Any:
    match dice.randrange(8):
        case 0:
            return dice.randbytes(dice.randrange(9))
        case 1:
            return number(dice)
        case 2:
            return dice.choice([None, "text", (1, 2), 1.5])
    data = dice.randbytes(dice.randrange(40))
    if dice.random() < 0.4:
        return numbers(dice, rows)
    start = dice.randrange(3) if dice.random() < 0.8 else number(dice)
    spare = dice.randrange(4)
    return (
        dice.randrange(13) if dice.random() < 0.9 else dice.choice([-(2**31), 2**31 - 1]),
        buffer(dice, ends(dice, len(data), rows + spare)),
        buffer(dice, data),
        dice.choice([None, buffer(dice, dice.randbytes((rows + spare + 7) // 8))]),
        start,
        dice.choice([None, dice.randbytes(dice.randrange(5))]),
    )


def numbers(dice: random.Random, rows: int) -> Any:
    """An array of numbers of some kind: as many as there are rows, or fewer, or more."""
    kind = dice.randrange(6, 13)
    width = {8: 8, 9: 16, 11: 8}.get(kind, 4)
    bits = dice.randrange(1, 8 * width)
    data = b"".join(
        dice.randrange(-(2**bits), 2**bits).to_bytes(width, "little", signed=True)
        for _ in range(max(0, rows + dice.randrange(-1, 4)))
    )
    start = dice.randrange(3) if dice.random() < 0.9 else number(dice)
    present = dice.choice([None, buffer(dice, dice.randbytes((rows + 7) // 8))])
    constant = dice.choice([None, b'"', bytes([dice.randrange(9)]), b"\xff", b'Z"'])
    return kind, None, buffer(dice, data), present, start, constant


def attempt(native: Any, dice: random.Random) -> None:
    rows = dice.randrange(20)
    parts = [part(dice, rows) for _ in range(dice.randrange(5))]
    if parts and dice.random() < 0.3:
        parts[dice.randrange(len(parts))] = [part(dice, rows) for _ in range(dice.randrange(4))]
    given = rows if dice.random() < 0.7 else number(dice)
    places = b"".join(
        (dice.randrange(rows + 1) if dice.random() < 0.9 else dice.choice(NUMBERS)).to_bytes(
            8, "little", signed=True
        )
        for _ in range(dice.randrange(6))
    )
    with suppress(ValueError, TypeError, IndexError, OverflowError, MemoryError, SystemError):
        match dice.randrange(4):
            case 0:
                # Without an array there is nothing that bounds the rows but memory.
                native.join(parts, given if given < 2**20 or given > 2**60 else rows)
            case 1:
                native.murmur2(parts[:1], given if given < 2**20 or given > 2**60 else rows)
            case 2:
                native.escapes(buffer(dice, dice.randbytes(dice.randrange(9000))))
            case _:
                native.records(
                    parts, given if given < 2**20 or given > 2**60 else rows,
                    buffer(dice, dice.randbytes(dice.randrange(900))) if dice.random() < 0.5
                    else None,
                    buffer(dice, places) if dice.random() < 0.7 else None,
                    min(number(dice), 2**20), number(dice),
                    dice.choice([0, 61, -1, 2**63 - 1, 2**63 - 100]),
                    dice.choice([None, lambda: bytearray(dice.randrange(900)), lambda: None, int]),
                )  # fmt: skip


def main() -> None:
    native = extension("tailer.native._rowbytes", sys.argv[1])
    dice = random.Random(int(sys.argv[3]))
    for _ in range(int(sys.argv[2])):
        attempt(native, dice)
    print("done")


if __name__ == "__main__":
    main()
