from collections.abc import Sequence
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
    first: int,
    most: int,
    room: int,
    before: int,
    /,
) -> tuple[bytearray, int]: ...
