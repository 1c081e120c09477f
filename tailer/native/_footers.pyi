from typing import Any

INTERFACE: int

def merge(files: list[Any], rows_max: int, bytes_max: int, /) -> tuple[bytes, list[int], int]: ...
