"""Decoders of JSON to Structs, each made once and by one thread at a time.

msgspec inspects a Struct's fields when its first decoder is made. It runs Python code meanwhile,
and another thread then finds the Struct half inspected: the process ends by SIGSEGV.
A daemon's feeds begin to read their logs at the same moment, so that this is not rare.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_made: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_making = Lock()


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of a kind. It is made on first use, which takes milliseconds.

    Who converts to a kind by ``msgspec.convert`` calls this first, for the same reason.
    """
    decoder = _made.get(kind)
    if decoder is None:
        with _making:
            decoder = _made.get(kind) or msgspec.json.Decoder(kind)
            _made[kind] = decoder
    return decoder
