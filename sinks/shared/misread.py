"""An answer that a client's library can't read, as opposed to a mistake of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from tailer.errors import TailerError, TransientError

_OWN = ("sinks", "tailer")


def find_misread_error(where: str, e: Exception) -> TransientError | None:
    """Return the error for what a library raised while it read an answer of a server's; None where
    code of this project raised it.

    A library that meets bytes which are none of its protocol raises what its own calls raise:
    ValueError, IndexError, RecursionError. A server that answers so may be another one for now, or
    stand behind a proxy that does, so the feed tries again.
    """
    at: TracebackType | None = e.__traceback__
    module = ""
    while at is not None:
        module = at.tb_frame.f_globals.get("__name__", "")
        at = at.tb_next
    if module.partition(".")[0] in _OWN:
        return None
    said = " ".join(str(e).split())
    return TransientError(f"{where}: an answer that can't be read ({type(e).__name__}: {said})")


@contextmanager
def translate_misreads(where: str) -> Iterator[None]:
    """Raise the error of :func:`find_misread_error` for what the block raises, if there is one."""
    try:
        yield
    except TailerError:
        raise
    except Exception as e:
        if (error := find_misread_error(where, e)) is None:
            raise
        raise error from e
