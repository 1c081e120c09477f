"""Temporary files: where they are, and what it means that one can't be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailer.errors import TransientError

__all__ = ["no_room", "spilling"]


@contextmanager
def spilling(folder: str | None) -> Iterator[None]:
    """Around the making and writing of temporary files in a folder; None: the system's own.

    Raises :class:`TransientError` for an OSError: a full disk has room again some time.
    """
    try:
        yield
    except OSError as e:
        raise no_room(folder, e.strerror or str(e)) from e


def no_room(folder: str | None, reason: str) -> TransientError:
    """The error of a temporary file that could not be written, for that reason."""
    where = folder or "the system's temporary folder"
    return TransientError(
        f"temporary files can't be written to {where} ({reason}); make room there, or let "
        "spill_folder be another folder"
    )
