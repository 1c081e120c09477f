"""Databases that are one file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailer.errors import TargetRefused, may_heal, out_of_reach
from tailer.files.durable import try_place


@contextmanager
def rehearsal_of_file(path: Path) -> Iterator[Path]:
    """Provide the place of another file, in which a table may be made, if one could be at ``path``.

    Raises the error of a start if it could not: the database's own file may be locked by a daemon.
    """
    try:
        try_place(path)
    except OSError as e:
        if may_heal(e):
            raise out_of_reach(f"{path} can't be written", e) from e
        raise TargetRefused(f"{path} can't be written ({e.strerror}); check the folder") from e
    with tempfile.TemporaryDirectory(prefix="delta-tailer-check-") as folder:
        yield Path(folder) / path.name
