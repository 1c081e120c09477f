from collections.abc import Callable, Sequence
from typing import Any

INTERFACE: int

def escapes(data: Any, /) -> bool: ...
def join(parts: Sequence[object], rows: int, /) -> tuple[bytes, bytes]: ...
def murmur2(parts: Sequence[object], rows: int, /) -> bytes: ...
def records(
    parts: Sequence[object],
    rows: int,
    times: Any,
    places: Any,
    most: int,
    room: int,
    before: int,
    spares: Callable[[], bytearray | None] | None,
    /,
) -> list[tuple[bytearray, int]]: ...
